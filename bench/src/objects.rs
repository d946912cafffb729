//! The objects that are written: ConfigMaps for plain writes, and layers as large as ones that have run for a while.

use bytes::Bytes;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "bench";

/// Where layers are.
pub fn layers() -> String {
    format!("/apis/terrane.dev/v1alpha1/namespaces/{NAMESPACE}/terraformlayers")
}

pub fn config_maps() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// Half a kilobyte, as small objects of a cluster are. Put together as text: the client shares the processors with the server.
pub fn config_map(name: &str) -> Bytes {
    const REST: &str = concat!(
        r#"","labels":{"app":"bench"}},"data":{"region":"eu-west-1","text":""#,
        "A quarter of a kilobyte of text, as the settings of a small program would be: a few lines that nobody reads twice, ",
        "and that everybody needs when they are gone. It says where to listen, whom to ask, how long to wait, and what to do then.",
        r#""}}"#
    );
    [r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":""#, name, REST].concat().into()
}

/// A layer as a person writes it.
pub fn layer(index: usize) -> Bytes {
    let object = json!({
        "apiVersion": "terrane.dev/v1alpha1",
        "kind": "TerraformLayer",
        "metadata": {"name": layer_name(index), "labels": {"team": format!("team-{}", index % 40)}},
        "spec": {
            "repository": {"name": "infrastructure"},
            "branch": "main",
            "path": format!("environments/production/{index}"),
            "opentofu": {"enabled": true, "version": "1.11.5"},
            "remediationStrategy": {"autoApply": true},
            // Nothing runs for it, so that only the API is measured.
            "suspend": true,
        },
    });
    object.to_string().into()
}

/// The status of a layer that has been planned and applied, as a merge patch.
pub fn layer_status(index: usize) -> Bytes {
    let commit = format!("{index:040x}");
    let time = "2026-01-01T00:00:00Z";
    let run = |number: usize| json!({"name": format!("{}-plan-{number:08x}", layer_name(index)), "action": "plan", "commit": commit, "date": time, "result": "Succeeded"});
    let conditions: Vec<Value> =
        ["Ready", "IsPlanArtifactUpToDate", "IsApplyUpToDate", "IsLastRelevantCommitPlanned", "Drifted"]
            .into_iter()
            .map(|name| {
                json!({
                    "type": name, "status": "True", "reason": "Applied", "lastTransitionTime": time,
                    "observedGeneration": 1, "message": "The plan of the relevant commit is applied and nothing has drifted since.",
                })
            })
            .collect();
    let status = json!({"status": {
        "observedGeneration": 1,
        "state": "Idle",
        "why": "nothing to do",
        "lastResult": "Plan: 0 to create, 0 to update, 0 to delete",
        "revision": {"branch": commit, "relevant": commit, "short": "0000000", "planned": commit, "applied": commit},
        "latestRuns": (0..5).map(run).collect::<Vec<_>>(),
        "conditions": conditions,
    }});
    status.to_string().into()
}

pub fn layer_name(index: usize) -> String {
    format!("layer-{index:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map_is_one() {
        let object: Value = serde_json::from_slice(&config_map("x")).expect("JSON");
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!("ConfigMap"), &json!("x")));
    }
}
