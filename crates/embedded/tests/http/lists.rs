//! Lists: selectors, pages, revisions.

use serde_json::{Value, json};

use crate::harness::{Api, MAPS, PODS, config_map, pod};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_show_one_state_whatever_is_written_meanwhile() {
    let api = Api::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        api.post(MAPS, &config_map(name)).await.object();
    }
    let first = api.get(&format!("{MAPS}?limit=2")).await.object();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
    api.post(MAPS, &config_map("bb")).await.object();
    api.delete(&format!("{MAPS}/d"), &Value::Null).await.object();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.object();
    assert_eq!((names(&second), &second["metadata"]["remainingItemCount"]), (vec!["c", "d"], &json!(1)));
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.object();
    assert_eq!((names(&third), third["metadata"].get("continue")), (vec!["e"], None));
    let across = api.get("/api/v1/configmaps?limit=3").await.object();
    let token = across["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names(&api.get(&format!("/api/v1/configmaps?continue={token}")).await.object()), ["c", "e"]);
}

#[tokio::test]
async fn tokens_that_are_foreign_or_too_old_are_refused() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let (code, message) = api.get(&format!("{MAPS}?limit=1&continue=foo")).await.refusal();
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "invalid continue token: continue key is not valid: invalid character '~' looking for beginning of value"
    );
    // {"v":"meta.k8s.io/v1","rv":1,"start":"a\u0000"}
    let old = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0";
    let answer = api.get(&format!("{MAPS}?limit=1&continue={old}")).await;
    assert_eq!((answer.code.as_u16(), answer.reason().as_str()), (410, "Expired"));
    // The same with a start of "../secrets/x".
    let wandering = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9zZWNyZXRzL3gifQ";
    assert_eq!(api.get(&format!("{MAPS}?limit=1&continue={wandering}")).await.code, 400);
}

#[tokio::test]
async fn selectors_choose() {
    let api = Api::start().await;
    for (name, phase) in [("p", "Running"), ("q", "Pending")] {
        let mut object = pod(name);
        object["metadata"]["labels"] = json!({"name": name});
        api.post(PODS, &object).await.object();
        api.patch(&format!("{PODS}/{name}/status"), "merge-patch+json", &json!({"status": {"phase": phase}}))
            .await
            .object();
    }
    for (query, expected) in [
        ("labelSelector=name%20in%20(p,x)", vec!["p"]),
        ("labelSelector=name%21%3Dp", vec!["q"]),
        ("labelSelector=%21name", vec![]),
        ("fieldSelector=status.phase%3DRunning", vec!["p"]),
        ("fieldSelector=status.phase%21%3DRunning,spec.nodeName%3D", vec!["q"]),
        ("fieldSelector=metadata.name%3Dq", vec!["q"]),
    ] {
        assert_eq!(names(&api.get(&format!("{PODS}?{query}")).await.object()), expected, "{query}");
    }
    for (query, message) in [
        ("labelSelector=a%20in%20b", "unable to parse requirement: found 'b' expected: '('"),
        ("fieldSelector=spec.foo%3D1", "field label not supported: spec.foo"),
        ("fieldSelector=foo", "invalid selector: 'foo'; can't understand 'foo'"),
    ] {
        assert_eq!(api.get(&format!("{PODS}?{query}")).await.refusal(), (400, message.to_owned()));
    }
}

#[tokio::test]
async fn revisions_are_honoured() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let revision: u64 =
        api.get(MAPS).await.object()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        api.get(&format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact")).await.code,
        200
    );
    let future = api.get(&format!("{MAPS}?resourceVersion={}", revision + 9)).await;
    assert_eq!((future.code.as_u16(), future.reason().as_str()), (504, "Timeout"));
    let (code, message) = api.get(&format!("{MAPS}?resourceVersion=x")).await.refusal();
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax"
    );
    let (code, message) = api.get(&format!("{MAPS}?resourceVersionMatch=Exact")).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    );
}
