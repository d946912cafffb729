//! The pod in which kaniko builds an image, and the Secret that it logs in with. kaniko needs root and executes what a Dockerfile says, so the pod
//! is in a namespace of builds alone; nothing that a tenant may ask of its runners reaches it.

use std::collections::BTreeMap;

use api::attempt::INPUT_VARIABLE;
use api::run::TerraformRun;
use api::{BUILDER_ACCOUNT, label};
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::{Value, json};

use super::{PLAN_GRACE_SECONDS, Places, RunnerSettings, environment, label_value, token_volume};
use crate::{Kaniko, names};

/// kaniko unpacks other images over the root of its own, and leaves this directory alone: all that the runner needs is below it.
const TOKEN_DIRECTORY: &str = "/kaniko/token";
const WORK_DIRECTORY: &str = "/kaniko/work";
const LOGIN_DIRECTORY: &str = "/kaniko/login";
/// The program with the libraries that it was made for, whatever libraries the root has by then.
const PROGRAM: [&str; 5] =
    ["/kaniko/lib/ld.so", "--library-path", "/kaniko/lib", "/kaniko/terrane", "runner"];
const EXECUTOR: &str = "/kaniko/executor";
/// Which authorities are believed about registries' certificates.
const AUTHORITIES: &str = "/kaniko/ssl/certs/ca-certificates.crt";
/// What unpacking an image and becoming the user of a `RUN` line takes. All of it is in what Pod Security calls `baseline`.
const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETUID"];

/// The pod of one attempt of a build. Its labels say whose it is: an owner in another namespace cannot be named.
pub fn builder_pod(
    run: &TerraformRun,
    repository: &str,
    attempt: u32,
    kaniko: &Kaniko,
    settings: &RunnerSettings,
) -> Option<Pod> {
    let uid = run.metadata.uid.as_deref()?;
    let name = names::builder_pod(run.spec.layer.name.as_str(), uid, attempt);
    let places = Places { token: TOKEN_DIRECTORY, work: WORK_DIRECTORY };
    let mut env = environment(uid, attempt, PLAN_GRACE_SECONDS, places, settings);
    env.push(json!({ "name": format!("{INPUT_VARIABLE}0"), "value": LOGIN_DIRECTORY }));
    env.push(json!({ "name": "TERRANE_KANIKO", "value": EXECUTOR }));
    env.push(json!({ "name": "SSL_CERT_FILE", "value": AUTHORITIES }));
    env.extend(settings.environment.iter().map(|(name, value)| json!({ "name": name, "value": value })));
    let mut labels = labels(run, attempt)?;
    labels.insert(label::REPOSITORY, json!(label_value(repository)));
    labels.insert(label::ACTION, json!(run.spec.action.as_str()));
    let pod = json!({
        "metadata": { "name": name, "namespace": kaniko.namespace, "labels": labels },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": BUILDER_ACCOUNT,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": PLAN_GRACE_SECONDS,
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "runner",
                "image": kaniko.image,
                "command": PROGRAM,
                "env": env,
                "securityContext": {
                    "runAsUser": 0,
                    "runAsGroup": 0,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"], "add": CAPABILITIES },
                },
                "volumeMounts": [
                    { "name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": true },
                    { "name": "work", "mountPath": WORK_DIRECTORY },
                    { "name": "login", "mountPath": LOGIN_DIRECTORY, "readOnly": true },
                ],
            }],
            "volumes": [
                token_volume(),
                { "name": "work", "emptyDir": {} },
                // A pod that waits for what is missing would wait for ever, a runner says so.
                { "name": "login", "secret": { "secretName": name, "optional": true } },
            ],
        },
    });
    serde_json::from_value(pod).ok()
}

/// The Secret that the pod of this attempt mounts, without what it is to hold.
pub fn login_copy(run: &TerraformRun, attempt: u32, kaniko: &Kaniko) -> Option<Secret> {
    let name = names::builder_pod(run.spec.layer.name.as_str(), run.metadata.uid.as_deref()?, attempt);
    let secret = json!({
        "metadata": { "name": name, "namespace": kaniko.namespace, "labels": labels(run, attempt)? },
        "immutable": true,
    });
    serde_json::from_value(secret).ok()
}

/// Which attempt of which run an object of the builds' namespace is for.
fn labels(run: &TerraformRun, attempt: u32) -> Option<BTreeMap<&'static str, Value>> {
    Some(BTreeMap::from([
        (label::MANAGED_BY, json!("terrane")),
        (label::LAYER, json!(label_value(run.spec.layer.name.as_str()))),
        (label::RUN, json!(run.metadata.name)),
        (label::RUN_UID, json!(run.metadata.uid.as_deref()?)),
        (label::RUN_NAMESPACE, json!(run.metadata.namespace.as_deref()?)),
        (label::ATTEMPT, json!(attempt.to_string())),
    ]))
}
