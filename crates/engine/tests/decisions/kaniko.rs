//! Builds by kaniko: its pod is root, and so it is in the namespace of builds and nowhere else, with a copy of one Secret and nothing of what a
//! tenant asks of its runners.

use std::collections::BTreeMap;

use api::image::ImageBuilder;
use api::run::{Action, RunState};
use api::text::ImageDigest;
use api::{TerraformRun, condition};
use engine::queue::{Limit, Slot};
use engine::run::{Effect, LoginCopy, home, is_leftover, is_ours, pod_namespace};
use engine::{Builder, Builds, Kaniko, Read};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::run::{Scene, scene};
use crate::runner_override::{asked, everything, on_a_cluster};
use crate::world::{World, settings, world};

const BUILDS: &str = "terrane-builds";

fn by_kaniko() -> Builds {
    let kaniko =
        Kaniko { namespace: BUILDS.to_owned(), image: "example.org/builder:1".to_owned(), cache: None };
    Builds { builder: Builder::Kaniko(kaniko), ..Builds::default() }
}

fn building(build: Value) -> World {
    let mut world = world().auto_apply();
    world.settings.builds = Some(by_kaniko());
    world.layer.spec.build = serde_json::from_value(build).unwrap();
    world.step();
    world
}

/// The build that a layer wants, as its run is about to begin.
fn build_scene() -> Scene {
    let build = json!({ "name": "registry.example.org/team/code", "credentials": { "secretName": "login" } });
    let mut world = building(build);
    let mut scene = scene(Action::Plan);
    scene.run = world.active().unwrap().clone();
    scene.run.metadata.uid = Some("run-1".to_owned());
    scene.settings = settings();
    scene.settings.builds = Some(by_kaniko());
    scene.world = world;
    scene
}

fn effects(scene: &Scene) -> (Vec<Pod>, Vec<LoginCopy>) {
    let (mut pods, mut copies) = (Vec::new(), Vec::new());
    for effect in scene.decide().effects {
        match effect {
            Effect::CreatePod(pod) => pods.push(*pod),
            Effect::CopyLogin(copy) => copies.push(*copy),
            _ => {}
        }
    }
    (pods, copies)
}

fn the_pod(scene: &Scene) -> Pod {
    let (mut pods, _) = effects(scene);
    assert_eq!(pods.len(), 1);
    pods.remove(0)
}

#[test]
fn kaniko_works_as_root_in_the_namespace_of_builds_with_a_copy_of_one_secret() {
    let scene = build_scene();
    let (pods, copies) = effects(&scene);
    let [copy] = &copies[..] else { panic!("one Secret: {copies:?}") };
    assert_eq!(copy.secret.as_str(), "login");
    let pod = serde_json::to_value(&pods[0]).unwrap();
    let name = pods[0].metadata.name.clone().unwrap();
    assert_eq!(copy.copy.metadata.name.as_ref(), Some(&name), "the Secret has the pod's name");
    assert_eq!(copy.copy.metadata.namespace.as_deref(), Some(BUILDS));
    assert_eq!(copy.copy.data, None, "what it holds is read when it is made");
    assert_eq!(pod["metadata"]["namespace"], BUILDS);
    assert_eq!(pod["metadata"].get("ownerReferences"), None, "no owner is in another namespace");
    let labels = json!({
        "app.kubernetes.io/managed-by": "terrane", "terrane.dev/layer": "db", "terrane.dev/repository": "db",
        "terrane.dev/run": scene.run.metadata.name, "terrane.dev/run-uid": "run-1", "terrane.dev/attempt": "0",
        "terrane.dev/run-namespace": "default", "terrane.dev/action": "build",
    });
    assert_eq!(pod["metadata"]["labels"], labels);
    let spec = &pod["spec"];
    assert_eq!(spec["serviceAccountName"], "terrane-builder");
    assert_eq!(spec["automountServiceAccountToken"], false);
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "example.org/builder:1");
    assert_eq!(
        container["securityContext"],
        json!({
            "runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": false,
            "capabilities": {
                "drop": ["ALL"],
                "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETUID"],
            },
        })
    );
    let login = json!({ "name": "login", "secret": { "secretName": name, "optional": true } });
    assert_eq!(spec["volumes"][2], login);
    // kaniko replaces everything outside of its own directory.
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(mount["mountPath"].as_str().unwrap().starts_with("/kaniko/"), "{mount}");
    }
    assert!(!pod.to_string().contains("\"login\",\"optional\""), "no Secret of a tenant is mounted: {pod}");
}

/// Whatever a layer, a repository or the settings say, a pod that is root is never made where a tenant's pods are.
#[test]
fn no_pod_of_kaniko_lands_in_the_namespace_of_a_tenant() {
    let mut scenes = Vec::new();
    scenes.push(build_scene());
    let mut asking = build_scene();
    // Where runners are processes nothing of this can be asked for.
    asking.settings = on_a_cluster();
    asking.settings.builds = Some(by_kaniko());
    asking.settings.allow(everything());
    let wish = json!({
        "image": "example.org/own:2", "serviceAccountName": "cloud", "securityContext": { "runAsUser": 1000 },
        "volumes": [{ "name": "ca", "configMap": { "name": "ca" } }], "nodeSelector": { "disk": "ssd" },
    });
    asking.world.layer.spec.override_runner_spec = Some(asked(wish));
    scenes.push(asking);
    let mut refused = build_scene();
    refused.step();
    refused.pod = Read::Absent;
    refused.refused = Some("a quota".to_owned());
    refused.step();
    refused.refused = None;
    refused.outcome = Read::Absent;
    scenes.push(refused);
    let mut elsewhere = build_scene();
    elsewhere.settings.builds = Some(Builds {
        builder: Builder::Kaniko(Kaniko {
            namespace: "other".to_owned(),
            image: "b".to_owned(),
            cache: None,
        }),
        ..Builds::default()
    });
    scenes.push(elsewhere);
    for scene in &scenes {
        let pod = serde_json::to_value(the_pod(scene)).unwrap();
        let tenant = scene.run.metadata.namespace.clone().unwrap();
        assert_ne!(pod["metadata"]["namespace"], json!(tenant), "{pod}");
        assert_eq!(pod["spec"]["serviceAccountName"], "terrane-builder");
        let spec = &pod["spec"];
        assert_eq!((spec.get("nodeSelector"), spec["volumes"].as_array().unwrap().len()), (None, 3), "{pod}");
    }
    // Every other pod is where its run is, and is not root.
    for action in [Action::Plan, Action::Apply] {
        let mut scene = scene(action);
        scene.settings.builds = Some(by_kaniko());
        let pod = loop {
            if let (pods, _) = effects(&scene)
                && let [pod] = &pods[..]
            {
                break serde_json::to_value(pod).unwrap();
            }
            scene.step();
        };
        assert_eq!(pod["metadata"]["namespace"], "default");
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    }
    // A layer in the namespace of builds has its code built by nobody.
    let mut within = build_scene();
    within.run.metadata.namespace = Some(BUILDS.to_owned());
    assert_eq!(within.step(), ["set status"]);
    let told = within.status().result.unwrap();
    assert_eq!(told.message, "namespace terrane-builds is for builds alone; a layer has no place there");
}

#[test]
fn the_namespace_is_written_down_before_the_pod_is_made_and_its_end_is_recorded() {
    let mut scene = build_scene();
    assert_eq!(scene.step(), ["put description", "set status", "copy login", "create pod"]);
    let attempt = scene.status().attempts[0].clone();
    assert_eq!(attempt.pod_namespace.as_deref(), Some(BUILDS));
    assert_eq!(pod_namespace(&scene.run), BUILDS);
    let ready = condition::find(&scene.status().conditions, "Ready").unwrap().message.clone();
    assert!(ready.ends_with(&format!("in pod {} of namespace {BUILDS}", attempt.pod_name)), "{ready}");
    let digest: ImageDigest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
    scene.ends(api::attempt::Reason::Succeeded);
    let image = scene.run.spec.build.clone().unwrap().pinned(digest);
    if let Read::Present(outcome) = &mut scene.outcome {
        outcome.image = Some(image.clone());
    }
    assert_eq!(scene.step(), ["set status", "delete pod"]);
    assert_eq!(scene.state(), Some(RunState::Succeeded));
    assert_eq!(scene.status().result.unwrap().image, Some(image));
}

#[test]
fn a_pod_is_a_builds_by_its_place_its_account_and_its_labels_together() {
    let mut scene = build_scene();
    scene.step();
    let Read::Present(pod) = scene.pod.clone() else { panic!("no pod") };
    assert!(is_ours(&pod, &scene.run));
    let changed = |change: &dyn Fn(&mut Pod)| {
        let mut pod = pod.clone();
        change(&mut pod);
        is_ours(&pod, &scene.run)
    };
    let label = |key: &'static str, value: &'static str| {
        move |pod: &mut Pod| {
            pod.metadata.labels.as_mut().unwrap().insert(key.to_owned(), value.to_owned());
        }
    };
    assert!(!changed(&label("terrane.dev/run-uid", "run-2")));
    assert!(!changed(&label("terrane.dev/run-namespace", "other")));
    assert!(!changed(&|pod| pod.metadata.namespace = Some("default".to_owned())));
    assert!(!changed(&|pod| pod.spec.as_mut().unwrap().service_account_name = Some("default".to_owned())));
    let mut plan = self::scene(Action::Plan);
    plan.step();
    plan.run.metadata.uid = Some("run-1".to_owned());
    assert!(!is_ours(&pod, &plan.run), "a run that has its pods at home");
}

#[test]
fn another_builder_than_the_one_that_was_asked_for_ends_the_build() {
    let mut scene = build_scene();
    scene.settings.builds = Some(Builds::default());
    assert_eq!(scene.step(), ["set status"]);
    let result = scene.status().result.unwrap();
    assert_eq!(
        (result.reason.as_str(), result.message.as_str()),
        ("Superseded", "the layer's code is to be built into an image by another builder now")
    );
    // Also where its pod was refused before, and so was never made.
    let mut scene = build_scene();
    scene.step();
    scene.pod = Read::Absent;
    scene.refused = Some("a quota".to_owned());
    scene.step();
    scene.refused = None;
    scene.settings.builds = Some(Builds::default());
    scene.outcome = Read::Absent;
    scene.step();
    assert!(scene.status().attempts[0].finished_at.is_some());
}

#[test]
fn a_build_waits_its_turn_before_anything_is_copied_for_it() {
    let mut scene = build_scene();
    scene.slot = Read::Present(Slot::Full(Limit::Overall { most: 1 }));
    assert_eq!(effects(&scene), (Vec::new(), Vec::new()));
}

#[test]
fn the_builder_and_the_dockerfile_make_another_image() {
    let tag = |build: Value, builds: Builds| {
        let mut world = world().auto_apply();
        world.settings.builds = Some(builds);
        world.layer.spec.build = serde_json::from_value(build).unwrap();
        world.step();
        world.active().unwrap().spec.build.clone().unwrap()
    };
    let plain = json!({ "name": "registry.example.org/team/code" });
    let named = json!({ "name": "registry.example.org/team/code", "dockerfile": "docker/Dockerfile" });
    let own = tag(plain.clone(), Builds::default());
    let kaniko = tag(plain, by_kaniko());
    let other = tag(named.clone(), by_kaniko());
    assert_eq!((own.builder, kaniko.builder), (ImageBuilder::Runner, ImageBuilder::Kaniko));
    assert!(own.tag != kaniko.tag && kaniko.tag != other.tag, "{own} {kaniko} {other}");
    assert_eq!(other.dockerfile.unwrap().as_str(), "docker/Dockerfile");

    // Where none is executed, the layer says so.
    let mut world = world().auto_apply();
    world.settings.builds = Some(Builds::default());
    world.layer.spec.build = serde_json::from_value(named).unwrap();
    world.step();
    let why = world.status().why.clone().unwrap();
    assert!(
        why.contains("spec.build.dockerfile is docker/Dockerfile, and no Dockerfile is executed here"),
        "{why}"
    );
    assert!(condition::is_true(&world.status().conditions, "Stalled"));
}

#[test]
fn what_is_left_in_the_namespace_of_builds_is_what_no_attempt_works_with() {
    let mut scene = build_scene();
    scene.step();
    let Read::Present(pod) = scene.pod.clone() else { panic!("no pod") };
    let left = |object: &ObjectMeta, run: Option<&TerraformRun>| is_leftover(object, run);
    assert!(!left(&pod.metadata, Some(&scene.run)), "it is under way");
    assert!(left(&pod.metadata, None), "its run is gone");
    let mut again = scene.run.clone();
    again.metadata.uid = Some("run-2".to_owned());
    assert!(left(&pod.metadata, Some(&again)), "its run was made again");
    scene.ends(api::attempt::Reason::BuildFailed);
    scene.step();
    assert!(left(&pod.metadata, Some(&scene.run)), "its end is on record");
    let strange = ObjectMeta { labels: Some(BTreeMap::new()), ..ObjectMeta::default() };
    assert!(!left(&strange, None), "somebody else made it");
}

#[test]
fn what_an_object_says_of_other_namespaces_counts_among_builds_only() {
    let object = |namespace: &str| ObjectMeta {
        namespace: Some(namespace.to_owned()),
        labels: Some(BTreeMap::from([("terrane.dev/run-namespace".to_owned(), "team".to_owned())])),
        ..ObjectMeta::default()
    };
    assert_eq!(home(&object(BUILDS), Some(BUILDS)), "team");
    assert_eq!(home(&object("other"), Some(BUILDS)), "other");
    assert_eq!(home(&object("other"), None), "other");
}

#[test]
fn a_build_that_failed_by_kaniko_is_told_in_its_words() {
    let mut world = building(json!({ "name": "registry.example.org/team/code" }));
    world.fail("BuildFailed");
    world.step();
    let why = world.status().why.clone().unwrap();
    assert!(why.contains("the image was not built"), "{why}");
    world.push('b');
    world.step();
    assert_eq!(world.active_action(), Some(Action::Build), "a new commit is tried");
}
