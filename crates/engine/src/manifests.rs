//! What the objects that Terrane makes look like.

mod asked;
mod builder;
mod inside;

use std::collections::BTreeMap;

use api::attempt::INPUT_VARIABLE;
use api::inputs::{Keys, Kind, Object};
use api::overrides::RunnerOverride;
use api::run::{Action, TerraformRun};
use api::{DATASTORE_AUDIENCE, LOCAL_IMAGE, PROCESS_NODE_TAINT, label};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::{Value, json};

use crate::names;

pub use builder::{builder_pod, login_copy};
pub use inside::{DOCKER_CONFIG_KEY, DOCKER_CONFIG_TYPE, ImagePods, Inside, pull_copy};
pub(crate) use inside::{is_inside, login};

/// What a runner's pod calls this program by, in every image.
pub const RUNNER_PROGRAM: &str = "terrane";

/// Keeps the pod of an apply in the API until its result is recorded, whoever deletes it: one that is absent was never made, and what
/// it changes is never lost sight of. A plan changes nothing and may be repeated.
pub const POD_FINALIZER: &str = "terrane.dev/result";

/// How runner pods are made.
#[derive(Debug, Clone)]
pub struct RunnerSettings {
    pub image: String,
    pub service_account: String,
    /// Where runners reach the datastore.
    pub datastore_url: String,
    /// What runners find programs on; empty leaves it to the image.
    pub path: Option<String>,
    /// What else every runner is told in its environment; no secrets.
    pub environment: Vec<(String, String)>,
    pub secrets: RunnerSecrets,
}

/// Secrets of a layer's own namespace, by name, that its runners are given where they exist: credentials for a cloud, most often. Their
/// values are for the kubelet to read; nothing of Terrane sees them.
#[derive(Debug, Clone, Default)]
pub struct RunnerSecrets {
    /// Its keys become variables of the environment.
    pub environment: Option<String>,
    /// Its keys become files of [`CREDENTIALS_DIRECTORY`]; one called `credentials` is shown to the tools of AWS.
    pub files: Option<String>,
}

pub const CREDENTIALS_DIRECTORY: &str = "/etc/terrane/credentials";

/// An apply that is told to stop needs time to save its state.
const APPLY_GRACE_SECONDS: i64 = 3600;
const PLAN_GRACE_SECONDS: i64 = 60;
const REPORT_SECONDS: i64 = 15;
const TOKEN_SECONDS: i64 = 600;
const TOKEN_DIRECTORY: &str = "/var/run/terrane";
/// Where the objects that a layer's variables come from are, each below its number.
const INPUT_DIRECTORY: &str = "/var/run/terrane-inputs";
/// The same for plan and apply, or `abspath()` in the code would show changes that are not there.
const WORK_DIRECTORY: &str = "/var/lib/terrane/work";
/// On a process node a mount path is a name for a directory of the machine; pods that give the same name here get the same directory,
/// one after the other. Other nodes ignore it.
pub const DIRECTORY_ANNOTATION: &str = "node.terrane.dev/directory";

/// The pod of one attempt. It can reach the datastore as itself, and nothing of Kubernetes, whatever is asked of it.
pub fn runner_pod(
    run: &TerraformRun,
    repository: &str,
    attempt: u32,
    objects: &BTreeMap<Object, Keys>,
    asked: &RunnerOverride,
    inside: Option<&Inside>,
    settings: &RunnerSettings,
) -> Option<Pod> {
    let name = run.metadata.name.as_deref()?;
    let uid = run.metadata.uid.as_deref()?;
    let grace = match run.spec.action {
        Action::Plan | Action::Build => PLAN_GRACE_SECONDS,
        Action::Apply => APPLY_GRACE_SECONDS,
    };
    let places = Places { token: TOKEN_DIRECTORY, work: WORK_DIRECTORY };
    let mut env = environment(uid, attempt, grace, places, settings);
    if let Some(path) = &settings.path {
        env.push(json!({ "name": "PATH", "value": path }));
    }
    for index in 0..objects.len() {
        let name = format!("{INPUT_VARIABLE}{index}");
        env.push(json!({ "name": name, "value": input_directory(index) }));
    }
    env.extend(settings.environment.iter().map(|(name, value)| json!({ "name": name, "value": value })));
    let mut mounts = vec![
        json!({ "name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": true }),
        json!({ "name": "work", "mountPath": WORK_DIRECTORY }),
    ];
    let mut volumes = vec![token_volume(), json!({ "name": "work", "emptyDir": {} })];
    // The clouds' credentials are for what plans and applies.
    let secrets = match run.spec.action {
        Action::Plan | Action::Apply => settings.secrets.clone(),
        Action::Build => RunnerSecrets::default(),
    };
    if let Some(secret) = &secrets.files {
        mounts.push(json!({ "name": "credentials", "mountPath": CREDENTIALS_DIRECTORY, "readOnly": true }));
        volumes.push(json!({ "name": "credentials", "secret": { "secretName": secret, "optional": true } }));
        let file = format!("{CREDENTIALS_DIRECTORY}/credentials");
        env.push(json!({ "name": "AWS_SHARED_CREDENTIALS_FILE", "value": file }));
    }
    let env_from: Vec<_> = secrets
        .environment
        .iter()
        .map(|secret| json!({ "secretRef": { "name": secret, "optional": true } }))
        .collect();
    let finalizers: &[&str] = if run.spec.action.mutates() { &[POD_FINALIZER] } else { &[] };
    // Only process nodes have this image, and they keep other pods away.
    let tolerations = if settings.image == LOCAL_IMAGE {
        json!([{ "key": PROCESS_NODE_TAINT, "operator": "Exists", "effect": "NoSchedule" }])
    } else {
        json!([])
    };
    for (index, (object, keys)) in objects.iter().enumerate() {
        let name = format!("input-{index}");
        mounts.push(json!({ "name": name, "mountPath": input_directory(index), "readOnly": true }));
        volumes.push(input_volume(&name, object, keys));
    }
    let mut pod = json!({
        "metadata": {
            "name": names::pod(name, attempt),
            "namespace": run.metadata.namespace,
            "labels": {
                label::MANAGED_BY: "terrane",
                label::LAYER: run.spec.layer.name,
                label::REPOSITORY: label_value(repository),
                label::RUN: name,
                label::RUN_UID: uid,
                label::ATTEMPT: attempt.to_string(),
                label::ACTION: run.spec.action.as_str(),
            },
            "annotations": { DIRECTORY_ANNOTATION: names::directory(run.spec.layer.name.as_str()) },
            "finalizers": finalizers,
            "ownerReferences": [owner(run)?],
        },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": settings.service_account,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": grace,
            "tolerations": tolerations,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "runner",
                "image": settings.image,
                "command": [RUNNER_PROGRAM, "runner"],
                "env": env,
                "envFrom": (!env_from.is_empty()).then_some(env_from),
                "securityContext": asked::confinement(),
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    if let Some(inside) = inside {
        inside::enter(&mut pod, inside, &settings.image, asked);
    }
    asked::lay_over(&mut pod, asked);
    serde_json::from_value(pod).ok()
}

/// Where a runner finds its token and its room.
#[derive(Clone, Copy)]
struct Places {
    token: &'static str,
    work: &'static str,
}

/// What every runner is told of its attempt.
fn environment(
    run_uid: &str,
    attempt: u32,
    grace: i64,
    places: Places,
    settings: &RunnerSettings,
) -> Vec<Value> {
    vec![
        json!({ "name": "TERRANE_DATASTORE_URL", "value": settings.datastore_url }),
        json!({ "name": "TERRANE_RUN_UID", "value": run_uid }),
        json!({ "name": "TERRANE_ATTEMPT", "value": attempt.to_string() }),
        json!({ "name": "TERRANE_TOKEN_FILE", "value": format!("{}/token", places.token) }),
        json!({ "name": "TERRANE_WORK_DIR", "value": places.work }),
        // A little less than the pod has, so that the result can still be reported.
        json!({ "name": "TERRANE_GRACE_SECONDS", "value": (grace - REPORT_SECONDS).to_string() }),
    ]
}

fn token_volume() -> Value {
    json!({ "name": "token", "projected": { "sources": [{ "serviceAccountToken": {
        "audience": DATASTORE_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token",
    } }] } })
}

fn input_directory(index: usize) -> String {
    format!("{INPUT_DIRECTORY}/{index}")
}

/// No more of an object than is asked for. All of it is optional: a pod that waits for what is missing would wait for ever, a runner
/// says so.
fn input_volume(name: &str, object: &Object, keys: &Keys) -> Value {
    let items: Vec<Value> = match keys {
        Keys::All => Vec::new(),
        Keys::Only(keys) => keys.iter().map(|key| json!({ "key": key, "path": key })).collect(),
    };
    match object.kind {
        Kind::Secret => json!({ "name": name, "secret": {
            "secretName": object.name, "items": items, "optional": true,
        } }),
        Kind::ConfigMap => json!({ "name": name, "configMap": {
            "name": object.name, "items": items, "optional": true,
        } }),
    }
}

/// A name as the value of a label, which is shorter than a name may be. The digest keeps two long names apart.
pub fn label_value(name: &str) -> String {
    const MOST: usize = 63;
    const START: usize = 40;
    if name.len() <= MOST {
        return name.to_owned();
    }
    let start: String = name.chars().take(START).collect();
    format!("{start}-{}", api::text::Sha256::of(name.as_bytes()).short())
}

fn append(list: Option<&mut Value>, more: impl IntoIterator<Item = Value>) {
    if let Some(Value::Array(entries)) = list {
        entries.extend(more);
    }
}

fn owner(run: &TerraformRun) -> Option<OwnerReference> {
    run.controller_owner_ref(&())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn run() -> TerraformRun {
        serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": "db-plan-1", "namespace": "default", "uid": "r" },
            "spec": {
                "layer": { "name": "db", "uid": "l", "revision": "b".repeat(40) }, "action": "plan", "state": "a".repeat(64),
                "trigger": { "kind": "commit", "reason": "new" },
            },
        }))
        .unwrap()
    }

    fn settings(image: &str, secrets: RunnerSecrets) -> RunnerSettings {
        RunnerSettings {
            image: image.to_owned(),
            service_account: "default".to_owned(),
            datastore_url: "https://datastore".to_owned(),
            path: None,
            environment: Vec::new(),
            secrets,
        }
    }

    fn build(settings: &RunnerSettings) -> Pod {
        runner_pod(&run(), "infra", 0, &BTreeMap::new(), &RunnerOverride::default(), None, settings).unwrap()
    }

    #[test]
    fn runners_are_given_secrets_by_name_and_go_without_those_that_are_not_there() {
        let secrets = RunnerSecrets {
            environment: Some("cloud".to_owned()),
            files: Some("aws-credentials".to_owned()),
        };
        let with = settings("example.org/terrane:1", secrets);
        let pod = build(&with);
        let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
        let container = &spec["containers"][0];
        assert_eq!(container["envFrom"], json!([{ "secretRef": { "name": "cloud", "optional": true } }]));
        assert_eq!(
            spec["volumes"][2],
            json!({ "name": "credentials", "secret": { "secretName": "aws-credentials", "optional": true } })
        );
        assert_eq!(
            container["volumeMounts"][2],
            json!({ "name": "credentials", "mountPath": "/etc/terrane/credentials", "readOnly": true })
        );
        let shown =
            json!({ "name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/etc/terrane/credentials/credentials" });
        assert!(container["env"].as_array().unwrap().contains(&shown));

        let pod = build(&settings("i", RunnerSecrets::default()));
        let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
        assert_eq!(spec["containers"][0].get("envFrom"), None);
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn only_runners_that_are_processes_tolerate_process_nodes() {
        for (image, expected) in [(LOCAL_IMAGE, vec![PROCESS_NODE_TAINT]), ("example.org/terrane:1", vec![])]
        {
            let settings = settings(image, RunnerSecrets::default());
            let pod = build(&settings);
            let tolerations = pod.spec.unwrap().tolerations.unwrap_or_default();
            let keys: Vec<&str> = tolerations.iter().filter_map(|one| one.key.as_deref()).collect();
            assert_eq!(keys, expected, "{image}");
        }
    }
}
