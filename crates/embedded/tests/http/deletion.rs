//! Deletion: preconditions, finalizers, propagation, collections, namespaces.

use serde_json::{Value, json};

use crate::harness::{Api, MAPS, PODS, config_map, pod};

#[tokio::test]
async fn preconditions_hold_a_deletion_back() {
    let api = Api::start().await;
    let created = api.post(MAPS, &config_map("a")).await.object();
    let path = format!("{MAPS}/a");
    let (code, message) = api.delete(&path, &json!({"preconditions": {"uid": "other"}})).await.refusal();
    let uid = created["metadata"]["uid"].as_str().unwrap();
    assert_eq!(code, 409);
    assert_eq!(
        message,
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
    );
    assert_eq!(api.delete(&path, &json!({"preconditions": {"resourceVersion": "1"}})).await.code, 409);
    let answer = api.delete(&path, &json!({"preconditions": {"uid": uid}})).await.object();
    assert_eq!(
        (&answer["kind"], &answer["status"], &answer["details"]["uid"]),
        (&json!("Status"), &json!("Success"), &json!(uid))
    );
}

#[tokio::test]
async fn finalizers_keep_an_object_until_the_last_is_gone() {
    let api = Api::start().await;
    let mut map = config_map("a");
    map["metadata"]["finalizers"] = json!(["example.dev/x"]);
    api.post(MAPS, &map).await.object();
    let path = format!("{MAPS}/a");
    let marked = api.delete(&path, &Value::Null).await.object();
    assert_eq!(
        (&marked["kind"], &marked["metadata"]["deletionGracePeriodSeconds"]),
        (&json!("ConfigMap"), &json!(0))
    );
    let (code, message) = api.post(MAPS, &config_map("a")).await.refusal();
    assert_eq!((code, message.as_str()), (409, "object is being deleted: configmaps \"a\" already exists"));
    let added = json!({"metadata": {"finalizers": ["example.dev/x", "example.dev/y"]}});
    let (code, message) = api.patch(&path, "merge-patch+json", &added).await.refusal();
    assert_eq!(code, 422);
    assert!(message.contains("no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.dev/y\"}"), "{message}");
    api.patch(&path, "merge-patch+json", &json!({"metadata": {"finalizers": null}})).await.object();
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn propagation_is_told_to_the_garbage_collector_by_a_finalizer() {
    let api = Api::start().await;
    for (policy, finalizer) in [("Orphan", "orphan"), ("Foreground", "foregroundDeletion")] {
        api.post(MAPS, &config_map(&policy.to_lowercase())).await.object();
        let path = format!("{MAPS}/{}", policy.to_lowercase());
        let marked = api.delete(&path, &json!({"propagationPolicy": policy})).await.object();
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
    }
    let (code, message) =
        api.delete(&format!("{MAPS}/orphan"), &json!({"propagationPolicy": "Foo"})).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
}

#[tokio::test]
async fn a_scheduled_pod_gets_its_grace_and_goes_when_the_node_confirms() {
    let api = Api::start().await;
    let mut scheduled = pod("p");
    scheduled["spec"]["nodeName"] = "n".into();
    api.post(PODS, &scheduled).await.object();
    let path = format!("{PODS}/p");
    let marked = api.delete(&path, &Value::Null).await.object();
    assert_eq!(
        (&marked["metadata"]["deletionGracePeriodSeconds"], &marked["metadata"]["generation"]),
        (&json!(30), &json!(2))
    );
    let shorter = api.delete(&path, &json!({"gracePeriodSeconds": 5})).await.object();
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = api.delete(&path, &json!({"gracePeriodSeconds": 50})).await.object();
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    api.delete(&path, &json!({"gracePeriodSeconds": 0})).await.object();
    assert_eq!(api.get(&path).await.code, 404);
    api.post(PODS, &pod("q")).await.object();
    api.delete(&format!("{PODS}/q"), &Value::Null).await.object();
    assert_eq!(api.get(&format!("{PODS}/q")).await.code, 404);
}

#[tokio::test]
async fn a_namespace_terminates_takes_nothing_new_and_goes_when_finalized() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.object();
    let going = api.delete("/api/v1/namespaces/n", &Value::Null).await.object();
    assert_eq!(
        (&going["status"]["phase"], &going["spec"]["finalizers"]),
        (&json!("Terminating"), &json!(["kubernetes"]))
    );
    let answer = api.post("/api/v1/namespaces/n/configmaps", &config_map("a")).await;
    assert_eq!(answer.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let (code, message) = answer.refusal();
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "configmaps \"a\" is forbidden: unable to create new content in namespace n because it is being terminated"
    );
    let mut finalized = going.clone();
    finalized["spec"] = json!({});
    api.put("/api/v1/namespaces/n/finalize", &finalized).await.object();
    assert_eq!(api.get("/api/v1/namespaces/n").await.code, 404);
}
