//! What repositories and layers may ask of their runners: whose words win, what of it is refused and how that is told.

use crate::run::{Scene, scene};
use crate::world::{World, adds, settings, world};
use api::condition;
use api::layer::DeletionPolicy;
use api::overrides::{Allowed, Field, RunnerOverride};
use api::run::{Action, RunState};
use engine::run::Effect;
use engine::{Read, Settings};
use serde_json::{Value, json};

pub(crate) fn asked(value: Value) -> RunnerOverride {
    serde_json::from_value(value).unwrap()
}

/// All fields, with whatever values they can have.
pub(crate) fn everything() -> Allowed {
    let fields = Field::ALL.map(|field| match field {
        Field::Volumes => "volumes=**,hostPath".to_owned(),
        Field::Tolerations => "tolerations=**,node-role.kubernetes.io/*".to_owned(),
        other => format!("{other}=**"),
    });
    Allowed::only(fields.iter().map(String::as_str)).unwrap()
}

pub(crate) fn on_a_cluster() -> Settings {
    let mut settings = settings();
    settings.runner.image = "example.org/runner:1".into();
    settings.runner.service_account = "terrane-runner".into();
    settings.allow(Allowed::default());
    settings
}

pub(crate) fn refusal(allowed: &Allowed, value: Value) -> String {
    match allowed.settle(None, Some(&asked(value.clone()))) {
        Ok(_) => panic!("allowed: {value}"),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn a_layer_wins_over_its_repository_and_lists_keep_their_order() {
    let repository = asked(json!({
        "image": "example.org/a", "imagePullPolicy": "Always", "serviceAccountName": "a",
        "imagePullSecrets": [{ "name": "one" }, { "name": "two" }],
        "tolerations": [{ "key": "x" }, { "key": "y", "operator": "Exists" }],
        "nodeSelector": { "disk": "hdd", "zone": "a" },
        "affinity": { "nodeAffinity": {} },
        "resources": { "requests": { "cpu": 1, "memory": "1Gi" } },
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "C", "value": "3" }],
        "envFrom": [{ "secretRef": { "name": "s" } }],
        "volumes": [{ "name": "v", "emptyDir": {} }, { "name": "w", "emptyDir": {} }],
        "volumeMounts": [{ "name": "v", "mountPath": "/a" }, { "name": "w", "mountPath": "/b" }],
        "metadata": { "labels": { "team": "a", "cost": "1" }, "annotations": { "note": "a" } },
        "initContainers": [{ "name": "i", "image": "one" }, { "name": "j", "image": "two" }],
        "extraInitArgs": ["-upgrade"], "extraPlanArgs": ["-parallelism=1", "-concise"], "extraApplyArgs": ["-concise"],
        "securityContext": { "runAsUser": 1, "runAsGroup": 1 }, "podSecurityContext": { "fsGroup": 1 },
    }));
    let layer = asked(json!({
        "image": "example.org/b", "imagePullPolicy": "Never", "serviceAccountName": "b",
        "imagePullSecrets": [{ "name": "two" }, { "name": "three" }],
        "tolerations": [{ "key": "z" }, { "key": "x" }],
        "nodeSelector": { "disk": "ssd" },
        "affinity": { "podAffinity": {} },
        "resources": { "requests": { "cpu": 2 }, "limits": { "memory": "2Gi" } },
        "env": [{ "name": "D", "value": "4" }, { "name": "B", "value": "5" }],
        "envFrom": [{ "secretRef": { "name": "t" } }, { "secretRef": { "name": "s" } }],
        "volumes": [{ "name": "u", "emptyDir": {} }, { "name": "w", "configMap": { "name": "c" } }],
        "volumeMounts": [{ "name": "u", "mountPath": "/c" }, { "name": "u", "mountPath": "/a" }],
        "metadata": { "labels": { "team": "b" } },
        "initContainers": [{ "name": "k", "image": "three" }, { "name": "i", "image": "four" }],
        "extraPlanArgs": ["-parallelism=2"],
        "securityContext": { "runAsUser": 2 }, "podSecurityContext": { "supplementalGroups": [3] },
    }));
    let merged = serde_json::to_value(layer.over(&repository)).unwrap();
    let expected = json!({
        "image": "example.org/b", "imagePullPolicy": "Never", "serviceAccountName": "b",
        "imagePullSecrets": [{ "name": "one" }, { "name": "two" }, { "name": "three" }],
        "tolerations": [{ "key": "x" }, { "key": "y", "operator": "Exists" }, { "key": "z" }],
        "nodeSelector": { "disk": "ssd", "zone": "a" },
        "affinity": { "podAffinity": {} },
        "resources": { "requests": { "cpu": 2, "memory": "1Gi" }, "limits": { "memory": "2Gi" } },
        "env": [
            { "name": "A", "value": "1" }, { "name": "B", "value": "5" }, { "name": "C", "value": "3" },
            { "name": "D", "value": "4" },
        ],
        "envFrom": [{ "secretRef": { "name": "s" } }, { "secretRef": { "name": "t" } }],
        "volumes": [
            { "name": "v", "emptyDir": {} }, { "name": "w", "configMap": { "name": "c" } }, { "name": "u", "emptyDir": {} },
        ],
        "volumeMounts": [
            { "name": "u", "mountPath": "/a" }, { "name": "w", "mountPath": "/b" }, { "name": "u", "mountPath": "/c" },
        ],
        "metadata": { "labels": { "team": "b", "cost": "1" }, "annotations": { "note": "a" } },
        "initContainers": [
            { "name": "i", "image": "four" }, { "name": "j", "image": "two" }, { "name": "k", "image": "three" },
        ],
        "extraInitArgs": ["-upgrade"], "extraPlanArgs": ["-parallelism=2"], "extraApplyArgs": ["-concise"],
        "securityContext": { "runAsUser": 2, "runAsGroup": 1 },
        "podSecurityContext": { "fsGroup": 1, "supplementalGroups": [3] },
    });
    assert_eq!(merged, expected);
    let nothing = RunnerOverride::default();
    assert_eq!(nothing.over(&repository), repository);
    assert_eq!(repository.over(&nothing), repository);
    assert_eq!(repository.over(&repository), repository, "the same words twice say the same");
}

#[test]
fn by_default_nothing_is_had_that_gives_more_rights() {
    let allowed = Allowed::default();
    for fine in [
        json!({ "resources": { "limits": { "memory": "1Gi", "cpu": 1 }, "requests": { "ephemeral-storage": "1Gi" } } }),
        json!({ "nodeSelector": { "disk": "ssd" }, "tolerations": [{ "key": "example.org/terraform", "operator": "Exists" }] }),
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }] }] } } } }),
        json!({ "env": [{ "name": "A", "value": "b" }], "envFrom": [{ "secretRef": { "name": "s" } }] }),
        json!({ "volumes": [{ "name": "ca", "configMap": { "name": "ca" } }, { "name": "scratch", "emptyDir": {} }],
                "volumeMounts": [{ "name": "ca", "mountPath": "/etc/ssl/company", "readOnly": true }] }),
        json!({ "extraInitArgs": ["-upgrade"], "extraPlanArgs": ["-parallelism=20"], "extraApplyArgs": ["-parallelism=20"] }),
    ] {
        assert!(allowed.settle(None, Some(&asked(fine.clone()))).is_ok(), "{fine}");
    }
    for (field, value) in [
        ("image", json!("example.org/x")),
        ("imagePullPolicy", json!("Always")),
        ("imagePullSecrets", json!([{ "name": "x" }])),
        ("serviceAccountName", json!("default")),
        ("metadata", json!({ "annotations": { "iam.amazonaws.com/role": "admin" } })),
        ("initContainers", json!([{ "name": "x", "image": "y" }])),
        ("securityContext", json!({ "runAsUser": 1000 })),
        ("podSecurityContext", json!({ "fsGroup": 1000 })),
    ] {
        let told = refusal(&allowed, json!({ field: value }));
        let expected = format!(
            "spec.overrideRunnerSpec: {field} is not among the fields that the administrator allows; remove it, or have \
             --allow-runner-override name it"
        );
        assert_eq!(told, expected);
    }
    for (value, words) in [
        (
            json!({ "resources": { "limits": { "nvidia.com/gpu": 1 } } }),
            "the resource nvidia.com/gpu (allowed: cpu, memory",
        ),
        (json!({ "affinity": { "podAntiAffinity": {} } }), "the kind of affinity podAntiAffinity"),
        (
            json!({ "tolerations": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] }),
            "the taint node-role.kubernetes.io/control-plane",
        ),
        (
            json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] }),
            "volumes: the administrator does not allow the kind of volume hostPath (allowed: emptyDir, configMap, secret, downwardAPI); choose \
             another, or have --allow-runner-override name it",
        ),
        (
            json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }),
            "the kind of volume persistentVolumeClaim",
        ),
    ] {
        let told = refusal(&allowed, value);
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn what_no_list_can_allow_is_refused_with_what_to_do() {
    let allowed = everything();
    for (value, words) in [
        (json!({ "tolerations": [{ "key": "terrane.dev/process-node" }] }), "for Terrane to tolerate"),
        (
            json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                { "topologyKey": "zone", "namespaceSelector": {} }] } } }),
            "pods of other namespaces do not count",
        ),
        (json!({ "affinity": { "nodeAfinity": {} } }), "affinity: there is no field nodeAfinity"),
        (json!({ "affinity": { "nodeAffinity": 1 } }), "affinity: invalid type"),
        (json!({ "volumes": [{ "name": "token", "emptyDir": {} }] }), "a name of the runner's own"),
        (json!({ "volumes": [{ "name": "input-0", "emptyDir": {} }] }), "a name of the runner's own"),
        (json!({ "volumes": [{ "name": "v" }] }), "must be of one kind"),
        (
            json!({ "volumes": [{ "name": "v", "emptyDir": {}, "hostPath": { "path": "/" } }] }),
            "must be of one kind",
        ),
        (json!({ "volumes": [{ "name": "v", "emptyDirr": {} }] }), "there is no field emptyDirr"),
        (
            json!({ "volumes": [{ "name": "v", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } }] }),
            "no token or certificate of a ServiceAccount",
        ),
        (
            json!({ "volumeMounts": [{ "name": "token", "mountPath": "/x" }] }),
            "there is no volume token among volumes",
        ),
        (
            json!({ "metadata": { "labels": { "terrane.dev/run-uid": "x" } } }),
            "terrane.dev/run-uid is for Terrane to set",
        ),
        (
            json!({ "metadata": { "annotations": { "node.terrane.dev/directory": "x" } } }),
            "is for Terrane to set",
        ),
        (
            json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": "x" } } }),
            "is for Terrane to set",
        ),
        (json!({ "initContainers": [{ "name": "runner", "image": "x" }] }), "is the runner's own"),
        (json!({ "initContainers": [{ "name": "terrane", "image": "x" }] }), "is the runner's own"),
        (
            json!({ "volumes": [{ "name": "terrane-program", "emptyDir": {} }] }),
            "is a name of the runner's own",
        ),
        (json!({ "initContainers": [{ "name": "i" }] }), "i needs an image"),
        (
            json!({ "initContainers": [{ "name": "i", "image": "x", "restartPolicy": "Always" }] }),
            "restartPolicy cannot be set",
        ),
        (
            json!({ "initContainers": [{ "name": "i", "image": "x", "lifecycle": {} }] }),
            "lifecycle cannot be set",
        ),
        (
            json!({ "initContainers": [{ "name": "i", "image": "x", "volumeMounts": [{ "name": "token", "mountPath": "/t" }] }] }),
            "there is no volume token among volumes",
        ),
        (
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "initContainers": [{ "name": "i", "image": "x",
                "volumeMounts": [{ "name": "v", "mountPath": "/t", "mountPropagation": "Bidirectional" }] }] }),
            "mountPropagation of a mount cannot be set",
        ),
        (
            json!({ "initContainers": [{ "name": "i", "image": "x", "securityContext": { "privileged": true } }] }),
            "privileged can be false only",
        ),
        (
            json!({ "extraPlanArgs": ["-out=x"] }),
            "extraPlanArgs: plan -out=x is not one of those that can be given",
        ),
        (json!({ "extraApplyArgs": ["-auto-approve"] }), "an apply applies the plan that was approved"),
        (json!({ "extraInitArgs": ["-backend-config=x"] }), "spec.backend"),
    ] {
        let told = refusal(&allowed, value);
        assert!(told.starts_with("spec.overrideRunnerSpec: ") && told.contains(words), "{told}");
    }
    for path in [
        "/var",
        "/var/run",
        "/var/run/terrane",
        "/var/run/terrane/x",
        "/run",
        "/run/terrane",
        "/var/lib/terrane/work",
        "/etc",
        "/etc/terrane/credentials",
        "/usr",
        "/usr/local/bin",
        "/usr/local/bin/terrane",
        "/bin",
        "/lib64",
        "/proc",
        "/dev/shm",
        "/etc/ld.so.preload",
    ] {
        let told = refusal(
            &allowed,
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "volumeMounts": [{ "name": "v", "mountPath": path }] }),
        );
        assert!(told.contains(&format!("{path} would hide ")), "{told}");
    }
    for (of, key, value) in [
        ("securityContext", "privileged", json!(true)),
        ("securityContext", "allowPrivilegeEscalation", json!(true)),
        ("securityContext", "readOnlyRootFilesystem", json!(false)),
        ("securityContext", "runAsNonRoot", json!(false)),
        ("securityContext", "runAsUser", json!(0)),
        ("securityContext", "capabilities", json!({ "add": ["SYS_ADMIN"] })),
        ("securityContext", "procMount", json!("Unmasked")),
        ("securityContext", "seccompProfile", json!({ "type": "Unconfined" })),
        ("securityContext", "appArmorProfile", json!({ "type": "Unconfined" })),
        ("securityContext", "seLinuxOptions", json!({ "type": "spc_t" })),
        ("securityContext", "windowsOptions", json!({ "hostProcess": true })),
        ("podSecurityContext", "runAsNonRoot", json!(false)),
        ("podSecurityContext", "runAsUser", json!(0)),
        ("podSecurityContext", "fsGroup", json!(0)),
        ("podSecurityContext", "supplementalGroups", json!([0])),
        ("podSecurityContext", "sysctls", json!([{ "name": "a", "value": "b" }])),
        ("podSecurityContext", "seccompProfile", json!({ "type": "Unconfined" })),
        ("podSecurityContext", "windowsOptions", json!({})),
        ("podSecurityContext", "privileged", json!(false)),
    ] {
        let told = refusal(&allowed, json!({ of: { key: value } }));
        assert!(
            told.starts_with(&format!("spec.overrideRunnerSpec: {of}: ")) && told.contains(key),
            "{told}"
        );
    }
    let host = json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] });
    assert!(
        refusal(&Allowed::only(["volumes=**"]).unwrap(), host).contains("hostPath"),
        "it has to be named"
    );
}

#[test]
fn what_only_containers_have_is_refused_where_runners_are_processes() {
    let allowed = everything().on_processes();
    for value in [
        json!({ "imagePullPolicy": "Always" }),
        json!({ "imagePullSecrets": [{ "name": "x" }] }),
        json!({ "affinity": { "nodeAffinity": {} } }),
        json!({ "resources": { "limits": { "cpu": 1 } } }),
        json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
        json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }),
        json!({ "initContainers": [{ "name": "i", "image": "x" }] }),
        json!({ "securityContext": { "runAsUser": 1 } }),
        json!({ "podSecurityContext": { "fsGroup": 1 } }),
    ] {
        let told = refusal(&allowed, value);
        assert!(told.contains("has no effect where runners are processes; remove it"), "{told}");
    }
    let rest = json!({
        "image": "x", "serviceAccountName": "x", "tolerations": [{ "key": "x" }], "nodeSelector": { "a": "b" },
        "env": [{ "name": "A", "value": "b" }], "envFrom": [{ "secretRef": { "name": "s" } }], "metadata": { "labels": { "a": "b" } },
        "extraInitArgs": ["-upgrade"], "extraPlanArgs": ["-concise"], "extraApplyArgs": ["-concise"],
    });
    assert!(allowed.settle(None, Some(&asked(rest))).is_ok());
}

/// A layer that asks for what is not allowed, or its repository.
fn refused(of_repository: bool) -> World {
    let mut world = world().auto_apply();
    world.settings = on_a_cluster();
    let wish = Some(asked(json!({ "serviceAccountName": "admin" })));
    match of_repository {
        true => world.repository.as_mut().unwrap().spec.override_runner_spec = wish,
        false => world.layer.spec.override_runner_spec = wish,
    }
    world
}

#[test]
fn a_refused_override_is_told_on_the_layer_and_heals_with_the_list() {
    for (of_repository, whose) in
        [(false, "spec.overrideRunnerSpec"), (true, "spec.overrideRunnerSpec of repository db")]
    {
        let mut world = refused(of_repository);
        let decision = world.step();
        assert!(world.runs.is_empty(), "nothing is started with half of it");
        let ready = condition::find(&decision.status.conditions, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "OverrideRefused"));
        assert_eq!(
            ready.message,
            format!(
                "{whose}: serviceAccountName is not among the fields that the administrator allows; remove it, or have \
                 --allow-runner-override name it"
            )
        );
        assert!(condition::is_true(&decision.status.conditions, "Stalled"));
        world.settings.allow(Allowed::only(["serviceAccountName=admin"]).unwrap());
        let decision = world.step();
        assert_eq!(world.active_action(), Some(Action::Plan));
        assert!(!condition::is_true(&decision.status.conditions, "Stalled"));
    }
}

#[test]
fn a_deletion_that_needs_a_runner_says_what_keeps_it_and_the_way_out() {
    let mut world = world().auto_apply();
    world.settings = on_a_cluster();
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(adds(0));
    world.step();
    let runs = world.runs.len();
    world.layer.spec.override_runner_spec = Some(asked(json!({ "image": "example.org/x" })));
    world.delete();
    let decision = world.step();
    assert_eq!(world.runs.len(), runs);
    let ready = condition::find(&decision.status.conditions, "Ready").unwrap();
    assert_eq!(ready.reason, "OverrideRefused");
    assert!(
        ready.message.ends_with("set deletionPolicy to Orphan to let the layer go and keep what it made")
    );
    // Its repository may be gone, and with it what that asked for.
    world.layer.spec.override_runner_spec = None;
    world.repository = None;
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
}

fn asking(action: Action, value: Value, allowed: Allowed) -> Scene {
    let mut scene = scene(action);
    scene.settings = on_a_cluster();
    scene.settings.allow(allowed);
    scene.world.layer.spec.override_runner_spec = Some(asked(value));
    scene
}

#[test]
fn a_run_that_waited_while_its_override_was_refused_never_starts() {
    let mut scene = asking(Action::Plan, json!({ "image": "example.org/x" }), Allowed::default());
    assert_eq!(scene.step(), ["set status"]);
    assert_eq!(scene.state(), Some(RunState::Failed));
    assert_eq!(scene.status().result.unwrap().reason, "Superseded", "the layer tells the rest");
}

#[test]
fn a_pod_that_is_still_to_be_made_waits_until_it_may_be_whole() {
    for action in [Action::Plan, Action::Apply] {
        let image = || Allowed::only(["image=example.org/*"]).unwrap();
        let mut scene = asking(action, json!({ "image": "example.org/x" }), image());
        while scene.status().attempts.is_empty() {
            scene.step();
        }
        // The API refused it, and before it is tried again the administrator has thought better of it.
        scene.pod = Read::Absent;
        scene.outcome = Read::Absent;
        scene.refused = Some("quota".into());
        scene.step();
        scene.refused = None;
        scene.settings.allow(Allowed::default());
        assert_eq!(scene.step(), ["set status"]);
        let ready = condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
        assert_eq!(ready.reason, "PodRefused");
        assert!(ready.message.contains("image is not among the fields"), "{}", ready.message);
        scene.settings.allow(image());
        assert_eq!(scene.step(), ["set status", "create pod"]);
    }
}

#[test]
fn a_pod_with_an_image_of_its_own_is_replaced_only_when_another_is_named() {
    let allowed = || Allowed::only(["image=**", "initContainers=**"]).unwrap();
    let wish =
        json!({ "image": "example.org/x", "initContainers": [{ "name": "i", "image": "example.org/y" }] });
    let mut scene = asking(Action::Plan, wish, allowed());
    scene.step();
    let Read::Present(pod) = &mut scene.pod else { panic!("no pod") };
    pod.spec.as_mut().unwrap().node_name = Some("node".into());
    let state = json!({ "waiting": { "reason": "ImagePullBackOff" } });
    let container =
        json!({ "name": "i", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    pod.status =
        serde_json::from_value(json!({ "phase": "Pending", "initContainerStatuses": [container] })).unwrap();
    assert_eq!(scene.step(), ["set status"]);
    let ready = condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
    assert!(ready.message.starts_with("image example.org/y cannot be pulled"), "{}", ready.message);
    assert_eq!(scene.step(), ["keep status"], "it is the image that is asked for");
    let wish =
        json!({ "image": "example.org/x", "initContainers": [{ "name": "i", "image": "example.org/z" }] });
    scene.world.layer.spec.override_runner_spec = Some(asked(wish));
    assert_eq!(scene.step(), ["keep status", "stop pod"]);
}

#[test]
fn arguments_and_environment_are_described_and_are_part_of_what_is_planned() {
    let wish = json!({
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
        "envFrom": [{ "configMapRef": { "name": "settings" } }],
        "extraPlanArgs": ["-parallelism=2"],
    });
    let mut scene = asking(Action::Plan, wish, Allowed::default());
    scene.world.layer.spec.environment =
        serde_json::from_value(json!([{ "name": "B", "value": "own" }])).unwrap();
    let digest = api::text::Sha256::of(b"inputs");
    scene.run.spec.inputs = Some(digest.clone());
    scene.world.layer.status.get_or_insert_default().inputs = Some(digest);
    let decision = scene.decide();
    let description = decision.effects.iter().find_map(|effect| match effect {
        Effect::PutDescription(description) => Some(description.clone()),
        _ => None,
    });
    let given = serde_json::to_value(description.unwrap().inputs.unwrap().inputs).unwrap();
    let expected = json!({
        "environment": [{ "name": "A", "value": "1" }, { "name": "B", "value": "own" }],
        "environmentFrom": [{ "configMapRef": { "name": "settings" } }],
        "arguments": { "plan": ["-parallelism=2"] },
    });
    assert_eq!(given, expected);
    // Another argument is another digest.
    let key = scene.digest_key.clone();
    let digest_of = |scene: &Scene| {
        let settings = &scene.settings;
        let mut inputs = scene.world.layer.inputs(None, &settings.backends, &settings.overrides).unwrap();
        inputs.environment_from.clear();
        inputs.digest(&key, &Default::default()).unwrap()
    };
    let before = digest_of(&scene);
    let own = scene.world.layer.spec.override_runner_spec.as_mut().unwrap();
    own.extra_plan_args = vec!["-parallelism=3".parse().unwrap()];
    assert_ne!(before, digest_of(&scene));
    let own = scene.world.layer.spec.override_runner_spec.as_mut().unwrap();
    own.extra_plan_args = vec!["-parallelism=2".parse().unwrap()];
    own.node_selector = [("disk".to_owned(), "ssd".to_owned())].into();
    assert_eq!(before, digest_of(&scene), "where the pod works is no part of a plan");
}
