//! Runs in the image that is their code: what such a pod looks like, which runs have one, and what follows where no node can pull it.

use std::time::Duration;

use api::attempt::Reason;
use api::image::PinnedImage;
use api::inputs::Keys;
use api::run::{Action, RunState};
use api::{TerraformRun, condition};
use engine::manifests::{ImagePods, runner_pod};
use engine::run::{Effect, Lock, LoginCopy};
use engine::{Read, Wake, later};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::run::{Scene, scene};
use crate::runner_override::{asked, everything, on_a_cluster};
use crate::world::outcome;

const RUNNER: &str = "example.org/runner:1";

fn pinned() -> PinnedImage {
    let digest = format!("sha256:{}", "a".repeat(64));
    serde_json::from_value(
        json!({ "host": "docker.io", "path": "team/code", "tag": "1.0.1", "digest": digest }),
    )
    .unwrap()
}

fn pods() -> ImagePods {
    ImagePods {
        rewrites: vec![
            ("docker.io".to_owned(), "mirror.example".to_owned()),
            ("docker.io/team".to_owned(), "mirror.example:5000/hub".to_owned()),
        ],
        pull_secrets: vec!["everybody".to_owned(), "login".to_owned()],
    }
}

/// As it is in its registry for nodes, by the longest rewrite.
fn as_pulled() -> String {
    format!("mirror.example:5000/hub/code@sha256:{}", "a".repeat(64))
}

fn image_scene(action: Action) -> Scene {
    let mut scene = scene(action);
    scene.settings = on_a_cluster();
    scene.settings.image_pods = Some(pods());
    scene.run.spec.image = Some(pinned());
    scene.run.spec.in_image = true;
    scene.run.metadata.uid = Some("run-1".to_owned());
    scene
}

fn made(scene: &Scene) -> Option<Pod> {
    scene.decide().effects.into_iter().find_map(|effect| match effect {
        Effect::CreatePod(pod) => Some(*pod),
        _ => None,
    })
}

fn stops(scene: &Scene) -> bool {
    scene.decide().effects.iter().any(|effect| matches!(effect, Effect::StopPod { .. }))
}

fn keep_status(scene: &mut Scene) {
    for effect in scene.decide().effects {
        if let Effect::SetStatus(status) = effect {
            scene.run.status = Some(*status);
        }
    }
}

fn ready(run: &TerraformRun) -> (String, String) {
    let status = run.status.as_ref().unwrap();
    let ready = condition::find(&status.conditions, "Ready").unwrap();
    (ready.reason.clone(), ready.message.clone())
}

fn containers(pod: &Pod) -> Vec<(String, String)> {
    let spec = pod.spec.as_ref().unwrap();
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.map(|one| (one.name.clone(), one.image.clone().unwrap())).collect()
}

fn named(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, image)| ((*name).to_owned(), (*image).to_owned())).collect()
}

/// A pod of the image that waits because of `reason`.
fn waiting(pod: Pod, reason: &str) -> Pod {
    let state = json!({ "waiting": { "reason": reason } });
    let container = json!({ "name": "runner", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let status = json!({ "phase": "Pending", "containerStatuses": [container] });
    Pod { status: serde_json::from_value(status).unwrap(), ..pod }
}

#[test]
fn the_container_is_of_the_image_and_the_program_is_brought_there() {
    let scene = image_scene(Action::Plan);
    let pod = made(&scene).unwrap();
    assert_eq!(containers(&pod), named(&[("terrane", RUNNER), ("runner", &as_pulled())]));
    let pod = serde_json::to_value(pod).unwrap();
    let spec = &pod["spec"];
    let program = json!({ "name": "terrane-program", "mountPath": "/var/lib/terrane/program" });
    assert_eq!(spec["initContainers"][0]["command"], json!(["terrane", "carry", "/var/lib/terrane/program"]));
    assert_eq!(spec["initContainers"][0]["volumeMounts"][0]["mountPath"], program["mountPath"]);
    let command = spec["containers"][0]["command"].as_array().unwrap();
    assert_eq!(command[0], "/var/lib/terrane/program/lib/ld.so", "whatever loader the image has");
    assert_eq!(command.last().unwrap(), "runner");
    // Images may be made for root, and no runner is.
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["runAsUser"], 65532);
    for container in [&spec["initContainers"][0], &spec["containers"][0]] {
        let confined = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        });
        assert_eq!(container["securityContext"], confined);
    }
    let env = spec["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({ "name": "TERRANE_CARRIED", "value": "/var/lib/terrane/program" })));
    // What the init container writes, the runner only reads.
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    let carried = mounts.iter().find(|mount| mount["name"] == "terrane-program").unwrap();
    assert_eq!(carried["readOnly"], true);
}

fn copy(scene: &Scene) -> Option<LoginCopy> {
    scene.decide().effects.into_iter().find_map(|effect| match effect {
        Effect::CopyLogin(copy) => Some(*copy),
        _ => None,
    })
}

/// A kubelet reads one key of Secrets of one type. Whatever else logs in, there is a copy of it that a kubelet can read.
#[test]
fn nodes_pull_with_the_layers_login_or_the_namespaces_and_what_all_pull_with() {
    let key = Keys::Only(["dockerhub-cred".parse().unwrap()].into());
    for (credentials, secret, keys, expected) in [
        (Value::Null, "terrane-registry", Keys::All, vec!["terrane-registry", "COPY", "everybody", "login"]),
        (json!({ "secretName": "login" }), "login", Keys::All, vec!["login", "COPY", "everybody"]),
        (
            json!({ "secretName": "login", "key": ".dockerconfigjson" }),
            "login",
            Keys::All,
            vec!["login", "COPY", "everybody"],
        ),
        // Under another key a kubelet finds nothing, or another account.
        (
            json!({ "secretName": "mine", "key": "dockerhub-cred" }),
            "mine",
            key,
            vec!["COPY", "everybody", "login"],
        ),
    ] {
        let mut scene = image_scene(Action::Plan);
        if !credentials.is_null() {
            let source = json!({ "name": "team/code", "tag": "1", "credentials": credentials });
            scene.world.layer.spec.image = serde_json::from_value(source).unwrap();
        }
        let (pod, copy) = (made(&scene).unwrap(), copy(&scene).unwrap());
        assert_eq!((copy.secret.as_str(), &copy.keys), (secret, &keys));
        let name = copy.copy.metadata.name.unwrap();
        assert_eq!(name, format!("{}-pull", pod.metadata.name.as_ref().unwrap()));
        let expected = expected.into_iter().map(|one| if one == "COPY" { name.as_str() } else { one });
        let expected: Vec<Value> = expected.map(|name| json!({ "name": name })).collect();
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(pod["spec"]["imagePullSecrets"], json!(expected));
    }
}

#[test]
fn the_copy_that_a_node_pulls_with_is_the_runs_and_is_there_before_the_pod() {
    let mut scene = image_scene(Action::Plan);
    scene.run.metadata.name = Some("db-plan-1".to_owned());
    let copied = copy(&scene).unwrap().copy;
    assert_eq!(copied.type_.as_deref(), Some("kubernetes.io/dockerconfigjson"));
    assert_eq!(copied.metadata.namespace, scene.run.metadata.namespace);
    assert_eq!(copied.metadata.owner_references.unwrap()[0].uid, "run-1");
    assert_eq!((copied.data, copied.string_data, copied.immutable), (None, None, Some(true)));
    let effects = scene.decide().effects;
    let at = |wanted: fn(&Effect) -> bool| effects.iter().position(wanted).unwrap();
    let copied = at(|effect| matches!(effect, Effect::CopyLogin(_)));
    assert!(at(|effect| matches!(effect, Effect::SetStatus(_))) < copied, "the intent is first");
    assert!(copied < at(|effect| matches!(effect, Effect::CreatePod(_))));

    // A pod of the runners' own image needs none.
    scene.run.spec.in_image = false;
    assert_eq!((copy(&scene), made(&scene).is_some()), (None, true));
}

#[test]
fn without_the_setting_the_wish_or_with_an_image_that_was_asked_for_it_is_the_runners() {
    let plain = named(&[("runner", RUNNER)]);
    let mut scene = image_scene(Action::Plan);
    scene.settings.image_pods = None;
    assert_eq!(containers(&made(&scene).unwrap()), plain);
    let mut scene = image_scene(Action::Plan);
    scene.run.spec.in_image = false;
    assert_eq!(containers(&made(&scene).unwrap()), plain);
    let mut scene = image_scene(Action::Plan);
    scene.settings.allow(everything());
    scene.world.layer.spec.override_runner_spec = Some(asked(json!({ "image": "example.org/own:2" })));
    assert_eq!(containers(&made(&scene).unwrap()), named(&[("runner", "example.org/own:2")]));
}

#[test]
fn what_is_asked_of_runners_comes_after_what_brings_the_program() {
    let scene = image_scene(Action::Plan);
    let inside = pods().inside(&scene.run, 0, &pinned(), None);
    let wish = asked(json!({
        "initContainers": [{ "name": "fetch", "image": "example.org/fetch" }],
        "imagePullSecrets": [{ "name": "own" }],
        "resources": { "limits": { "memory": "1Gi" } },
        "volumes": [{ "name": "room", "emptyDir": {} }],
        "volumeMounts": [{ "name": "room", "mountPath": "/tmp" }],
    }));
    let wish = everything().settle(None, Some(&wish)).unwrap();
    let pod =
        runner_pod(&scene.run, "db", 0, &Default::default(), &wish, Some(&inside), &scene.settings.runner);
    let pod = pod.unwrap();
    let expected = named(&[("terrane", RUNNER), ("fetch", "example.org/fetch"), ("runner", &as_pulled())]);
    assert_eq!(containers(&pod), expected);
    let pod = serde_json::to_value(pod).unwrap();
    let limits = json!({ "limits": { "memory": "1Gi" } });
    assert_eq!(pod["spec"]["initContainers"][0]["resources"], limits, "a quota counts it too");
    assert_eq!(pod["spec"]["initContainers"][1].get("resources"), None);
    let copy = format!("{}-0-pull", scene.run.metadata.name.as_ref().unwrap());
    let secrets =
        ["terrane-registry", &copy, "everybody", "login", "own"].map(|name| json!({ "name": name }));
    assert_eq!(pod["spec"]["imagePullSecrets"], json!(secrets));
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let of_tmp: Vec<&Value> = mounts.iter().filter(|mount| mount["mountPath"] == "/tmp").collect();
    assert_eq!(of_tmp.len(), 1, "the API takes no path twice: {mounts:?}");
}

/// The intent is written and the pod is there.
fn under_way(action: Action) -> Scene {
    let mut scene = image_scene(action);
    let holder = scene.run.metadata.uid.clone();
    scene.lock = Read::Present(Lock { holder, fence: 7, holder_is_done: false });
    let pod = made(&scene).unwrap();
    keep_status(&mut scene);
    scene.outcome = Read::Absent;
    scene.pod = Read::Present(waiting(pod, "ImagePullBackOff"));
    scene
}

/// The plan's pod waited long enough for its image, and is asked to go.
fn left() -> Scene {
    let mut scene = under_way(Action::Plan);
    let until = later(scene.now, Duration::from_secs(120));
    assert_eq!(scene.decide().wake, Wake::At(until));
    assert!(!stops(&scene), "a registry may be restarted");
    keep_status(&mut scene);
    assert_eq!(ready(&scene.run).0, "PodNotStarting");
    scene.now = until;
    assert!(stops(&scene));
    keep_status(&mut scene);
    scene
}

#[test]
fn a_plan_whose_image_cannot_be_pulled_goes_on_without_it_after_a_while() {
    // The kubelet ends the pod; whether its end is seen or only that it is gone comes to the same.
    for is_seen in [true, false] {
        let mut scene = left();
        let name = scene.run.status.as_ref().unwrap().attempts[0].pod_name.clone();
        let words = format!(
            "image {} cannot be pulled for pod {name}; the next attempt has its files in the runners' own image",
            as_pulled(),
        );
        assert_eq!(ready(&scene.run), ("ImageNotPulled".to_owned(), words));
        scene.pod = match scene.pod {
            Read::Present(pod) if is_seen => {
                let status = serde_json::from_value(json!({ "phase": "Failed" })).unwrap();
                Read::Present(Pod { status, ..pod })
            }
            _ => Read::Absent,
        };
        keep_status(&mut scene);
        let status = scene.run.status.clone().unwrap();
        assert_eq!(status.state, Some(RunState::FailureGracePeriod));
        assert_eq!(status.attempts[0].reason.as_deref(), Some("ImageNotPulled"));
        scene.pod = Read::Absent;
        scene.now = later(scene.now, Duration::from_secs(3600));
        let pod = made(&scene).unwrap();
        assert_eq!(containers(&pod), named(&[("runner", RUNNER)]), "its files are unpacked there");
    }
}

#[test]
fn that_costs_a_run_none_of_its_tries() {
    let mut scene = left();
    scene.run.spec.max_retries = 0;
    scene.pod = Read::Absent;
    keep_status(&mut scene);
    assert_eq!(scene.run.status.as_ref().unwrap().state, Some(RunState::FailureGracePeriod));
}

#[test]
fn what_the_runner_reported_counts_though_its_pod_was_being_ended() {
    let mut scene = left();
    scene.outcome = Read::Present(outcome(Action::Plan, Reason::Succeeded, scene.now));
    scene.pod = Read::Absent;
    keep_status(&mut scene);
    assert_eq!(scene.run.status.as_ref().unwrap().state, Some(RunState::Succeeded));
}

#[test]
fn an_apply_waits_for_the_image_that_its_plan_was_made_in() {
    let mut scene = under_way(Action::Apply);
    scene.now = later(scene.now, Duration::from_secs(3600));
    assert!(!stops(&scene));
    assert_eq!(scene.decide().wake, Wake::OnChange);
}

/// The program was brought at this moment, and the image is still missing.
fn brought(scene: &mut Scene, finished_at: Timestamp) {
    let Read::Present(pod) = &mut scene.pod else { panic!("there is no pod") };
    let state = json!({ "terminated": { "exitCode": 0, "finishedAt": finished_at.to_string() } });
    set_before(pod, state);
}

fn set_before(pod: &mut Pod, state: Value) {
    let container = json!({ "name": "terrane", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state });
    pod.status.as_mut().unwrap().init_container_statuses =
        serde_json::from_value(json!([container])).unwrap();
}

#[test]
fn a_node_has_its_time_from_when_it_needs_the_image_however_late_the_pod_came() {
    let mut scene = under_way(Action::Plan);
    scene.now = later(scene.now, Duration::from_secs(3600));
    let came = scene.now;
    brought(&mut scene, came);
    assert_eq!(scene.decide().wake, Wake::At(later(scene.now, Duration::from_secs(120))));
    assert!(!stops(&scene));
}

#[test]
fn another_version_of_the_runners_image_does_not_end_a_pod_that_waits_for_its_own() {
    let mut scene = under_way(Action::Apply);
    let now = scene.now;
    brought(&mut scene, now);
    scene.settings.runner.image = "example.org/runner:2".to_owned();
    assert!(!stops(&scene), "what it waits for is the same");
    scene.settings.image_pods.as_mut().unwrap().rewrites.clear();
    assert!(stops(&scene), "it is read elsewhere now");
}

#[test]
fn a_program_that_could_not_be_brought_is_told_and_nothing_has_begun() {
    for action in [Action::Plan, Action::Apply] {
        let mut scene = under_way(action);
        let Read::Present(pod) = &mut scene.pod else { panic!("there is no pod") };
        set_before(pod, json!({ "terminated": { "exitCode": 1 } }));
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        keep_status(&mut scene);
        let status = scene.run.status.clone().unwrap();
        let attempt = &status.attempts[0];
        assert_eq!(attempt.reason.as_deref(), Some("RunnerNotStarted"));
        let name = &attempt.pod_name;
        let words = format!(
            "container terrane of pod {name} failed before the runner began (exit code 1); `kubectl logs {name} --container terrane` says why"
        );
        assert_eq!(attempt.message.as_deref(), Some(words.as_str()));
        assert_eq!(status.state, Some(RunState::FailureGracePeriod), "an apply too: it may be tried again");
    }
}
