//! Create, get, update, status.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::harness::{Api, MAPS, PODS, config_map, pod};

#[tokio::test]
async fn kube_creates_reads_replaces_and_deletes() {
    let api = Api::start().await;
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    let map: ConfigMap = serde_json::from_value(config_map("a")).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    assert_eq!(created.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(maps.get("a").await.unwrap(), created);
    let mut changed = created.clone();
    changed.data.get_or_insert_default().insert("b".into(), "2".into());
    let replaced = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(replaced.metadata.resource_version, created.metadata.resource_version);
    let stale = maps.replace("a", &PostParams::default(), &changed).await.unwrap_err();
    let kube::Error::Api(status) = stale else { panic!("{stale}") };
    assert_eq!(status.reason, "Conflict");
    assert_eq!(
        status.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    maps.delete("a", &DeleteParams::default()).await.unwrap().map_left(|_| panic!("the deletion is done"));
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_write_without_effect_keeps_the_revision() {
    let api = Api::start().await;
    let created = api.post(MAPS, &config_map("a")).await.object();
    let same = api.put(&format!("{MAPS}/a"), &created).await.object();
    assert_eq!(same["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    let unconditional = api.put(&format!("{MAPS}/a"), &config_map("a")).await.object();
    assert_eq!(unconditional["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn pods_start_pending_with_defaults_and_only_their_status_path_moves_them() {
    let api = Api::start().await;
    let mut sent = pod("p");
    sent["status"] = json!({"phase": "Running"});
    let created = api.post(PODS, &sent).await.object();
    assert_eq!(created["status"]["phase"], "Pending");
    assert_eq!(created["status"]["qosClass"], "BestEffort");
    assert_eq!(created["metadata"]["generation"], 1);
    let spec = &created["spec"];
    assert_eq!(spec["restartPolicy"], "Always");
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["dnsPolicy"], "ClusterFirst");
    assert_eq!(spec["schedulerName"], "default-scheduler");
    assert_eq!(spec["enableServiceLinks"], true);
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["containers"][0]["terminationMessagePath"], "/dev/termination-log");

    let mut changed = created.clone();
    changed["status"]["phase"] = "Running".into();
    changed["metadata"]["labels"] = json!({"a": "b"});
    let main = api.put(&format!("{PODS}/p"), &changed).await.object();
    assert_eq!(
        (&main["status"]["phase"], &main["metadata"]["labels"]),
        (&json!("Pending"), &json!({"a": "b"}))
    );
    assert_eq!(main["metadata"]["generation"], 1);
    let mut changed = main.clone();
    changed["status"]["phase"] = "Running".into();
    changed["spec"]["nodeName"] = "elsewhere".into();
    let status = api.put(&format!("{PODS}/p/status"), &changed).await.object();
    assert_eq!(status["status"]["phase"], "Running");
    assert_eq!(status["spec"].get("nodeName"), None);
}

#[tokio::test]
async fn both_sorts_of_events_show_one_object() {
    let api = Api::start().await;
    let event = json!({
        "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "Started",
        "message": "it runs", "type": "Normal", "source": {"component": "node"}, "firstTimestamp": "2026-01-01T00:00:00Z",
    });
    api.post("/api/v1/namespaces/default/events", &event).await.object();
    let v1 = api.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.object();
    assert_eq!(
        (&v1["apiVersion"], &v1["note"], &v1["regarding"]["name"]),
        (&json!("events.k8s.io/v1"), &json!("it runs"), &json!("p"))
    );
    let new = json!({
        "metadata": {"name": "f"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "note": "n", "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "action": "A", "reportingController": "terrane.dev/x", "reportingInstance": "i",
    });
    api.post("/apis/events.k8s.io/v1/namespaces/default/events", &new).await.object();
    let core = api.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=p,reportingComponent=terrane.dev/x").await.object();
    assert_eq!(core["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&core["items"][0]["message"], &core["items"][0]["involvedObject"]["name"]),
        (&json!("n"), &json!("p"))
    );
}

#[tokio::test]
async fn put_creates_a_lease_and_leases_need_a_revision() {
    let api = Api::start().await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let lease =
        json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}});
    assert_eq!(api.put(path, &lease).await.code, 201);
    let (code, message) = api.put(path, &lease).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );
}
