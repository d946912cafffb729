//! The pod of a runner with what is asked of it: where each field has its place, and what the pod is whatever is asked for.

use std::collections::BTreeMap;

use crate::run::scene;
use crate::runner_override::{asked, everything, on_a_cluster, refusal};
use api::inputs::{Keys, Kind, Object};
use api::overrides::{Allowed, Field, RunnerOverride};
use api::run::Action;
use api::text::EnvironmentName;
use engine::manifests::runner_pod;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

pub(crate) fn pod_of(wish: &RunnerOverride) -> Pod {
    let scene = scene(Action::Apply);
    runner_pod(&scene.run, "db", 0, &Default::default(), wish, None, &on_a_cluster().runner).unwrap()
}

/// What a runner's pod looks like when all is asked of it that can be.
#[test]
fn every_field_has_its_place_in_the_pod() {
    let wish = json!({
        "image": "example.org/own:2", "imagePullPolicy": "Always", "imagePullSecrets": [{ "name": "registry" }],
        "serviceAccountName": "cloud",
        "tolerations": [{ "key": "terraform", "operator": "Exists", "effect": "NoSchedule" }],
        "nodeSelector": { "disk": "ssd" },
        "affinity": { "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "podAffinityTerm": { "topologyKey": "zone" } }] } },
        "resources": { "requests": { "cpu": 1 }, "limits": { "memory": "1Gi" } },
        "volumes": [{ "name": "ca", "configMap": { "name": "ca" } }],
        "volumeMounts": [{ "name": "ca", "mountPath": "/etc/ssl/company", "subPath": "x", "readOnly": true }],
        "metadata": { "labels": { "team": "a" }, "annotations": { "note": "b" } },
        "initContainers": [{ "name": "fetch", "image": "example.org/fetch", "command": ["fetch"], "securityContext": { "runAsUser": 7 } }],
        "securityContext": { "runAsUser": 1000 }, "podSecurityContext": { "fsGroup": 2000 },
    });
    let wish = everything().settle(None, Some(&asked(wish))).unwrap();
    let pod = serde_json::to_value(pod_of(&wish)).unwrap();
    let plain = serde_json::to_value(pod_of(&RunnerOverride::default())).unwrap();
    let mut expected = plain.clone();
    expected["metadata"]["labels"]["team"] = json!("a");
    expected["metadata"]["annotations"]["note"] = json!("b");
    let spec = &mut expected["spec"];
    spec["serviceAccountName"] = json!("cloud");
    spec["imagePullSecrets"] = json!([{ "name": "registry" }]);
    spec["nodeSelector"] = json!({ "disk": "ssd" });
    spec["affinity"] = json!({ "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        { "weight": 1, "podAffinityTerm": { "topologyKey": "zone" } }] } });
    spec["tolerations"] = json!([{ "key": "terraform", "operator": "Exists", "effect": "NoSchedule" }]);
    spec["securityContext"]["fsGroup"] = json!(2000);
    spec["volumes"].as_array_mut().unwrap().push(json!({ "name": "ca", "configMap": { "name": "ca" } }));
    spec["initContainers"] = json!([{
        "name": "fetch", "image": "example.org/fetch", "command": ["fetch"],
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] }, "runAsUser": 7,
        },
    }]);
    let runner = &mut spec["containers"][0];
    runner["image"] = json!("example.org/own:2");
    runner["imagePullPolicy"] = json!("Always");
    runner["resources"] = json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } });
    runner["securityContext"]["runAsUser"] = json!(1000);
    let mount = json!({ "name": "ca", "mountPath": "/etc/ssl/company", "subPath": "x", "readOnly": true });
    runner["volumeMounts"].as_array_mut().unwrap().push(mount);
    assert_eq!(pod, expected);
}

#[test]
fn what_a_runner_has_of_its_own_can_be_asked_for_by_nobody() {
    let mut settings = on_a_cluster().runner;
    settings.secrets.files = Some("login".into());
    settings.environment = vec![("TERRANE_TOOLS_DIR".into(), "/t".into())];
    let object = Object { kind: Kind::Secret, name: "s".parse().unwrap() };
    let objects = BTreeMap::from([(object, Keys::All)]);
    let run = scene(Action::Apply).run;
    let pod = runner_pod(&run, "db", 0, &objects, &RunnerOverride::default(), None, &settings).unwrap();
    let pod = serde_json::to_value(pod).unwrap();
    let allowed = everything();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let runner = &pod["spec"]["containers"][0];
    let mounts = runner["volumeMounts"].as_array().unwrap();
    assert_eq!((volumes.len(), mounts.len()), (4, 4));
    for volume in volumes {
        let told = refusal(&allowed, json!({ "volumes": [{ "name": volume["name"], "emptyDir": {} }] }));
        assert!(told.contains("a name of the runner's own"), "{told}");
    }
    for mount in mounts {
        let told = refusal(
            &allowed,
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }],
                    "volumeMounts": [{ "name": "v", "mountPath": mount["mountPath"] }] }),
        );
        assert!(told.contains(" would hide "), "{told}");
    }
    for place in ["labels", "annotations"] {
        for key in pod["metadata"][place].as_object().unwrap().keys() {
            let told = refusal(&allowed, json!({ "metadata": { place: { key: "x" } } }));
            assert!(told.contains("is for Terrane to set"), "{told}");
        }
    }
    let told = refusal(&allowed, json!({ "initContainers": [{ "name": runner["name"], "image": "x" }] }));
    assert!(told.contains("is the runner's own"), "{told}");
    for variable in runner["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        // Where the tools of a cloud look for files is the tool's business, and a layer may say it.
        assert!(name == "AWS_SHARED_CREDENTIALS_FILE" || EnvironmentName::new(name).is_err(), "{name}");
    }
}

/// Pieces of overrides, good and bad, that are put together at random.
fn any_override() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        12 => Just("a"),
        12 => Just("b"),
        1 => prop_oneof![
            Just("token"), Just("work"), Just("input-0"), Just("credentials"), Just("runner"), Just("terrane.dev/run-uid"),
            Just("terrane.dev/process-node"), Just("node-role.kubernetes.io/control-plane"), Just("x.terrane.dev/y"),
        ],
    ];
    let path = prop_oneof![
        12 => Just("/a"),
        8 => Just("/etc/ssl"),
        1 => prop_oneof![
            Just("/var/run/terrane"), Just("/var/run/terrane/token"), Just("/usr/local/bin"), Just("/var"), Just("/run/terrane-inputs/0"),
            Just("/proc/1"),
        ],
    ];
    let kind = prop_oneof![
        12 => Just(json!({ "emptyDir": {} })),
        2 => Just(json!({ "hostPath": { "path": "/" } })),
        1 => Just(json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "t", "audience": "api" } }] } })),
        4 => Just(json!({ "projected": { "sources": [{ "secret": { "name": "s" } }] } })),
        4 => Just(json!({ "secret": { "secretName": "s" } })),
        1 => Just(json!({})),
    ];
    let context = prop_oneof![
        20 => Just(json!({})),
        8 => Just(json!({ "runAsUser": 5, "runAsNonRoot": true })),
        8 => Just(json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": "x" } })),
        1 => prop_oneof![
            Just(json!({ "privileged": true })),
            Just(json!({ "allowPrivilegeEscalation": true })),
            Just(json!({ "runAsUser": 0 })),
            Just(json!({ "capabilities": { "add": ["ALL"] } })),
            Just(json!({ "seccompProfile": { "type": "Unconfined" } })),
            Just(json!({ "readOnlyRootFilesystem": false })),
            Just(json!({ "sysctls": [{ "name": "a", "value": "b" }] })),
            Just(json!({ "procMount": "Unmasked" })),
        ],
    ];
    let volume = (word.clone(), kind).prop_map(|(name, kind)| {
        let mut volume = kind;
        volume["name"] = json!(name);
        volume
    });
    let mount =
        (word.clone(), path.clone()).prop_map(|(name, path)| json!({ "name": name, "mountPath": path }));
    let container = (word.clone(), context.clone(), proptest::collection::vec(mount.clone(), 0..2)).prop_map(
        |(name, context, mounts)| {
            json!({ "name": name, "image": "example.org/i", "securityContext": context, "volumeMounts": mounts })
        },
    );
    let labels = proptest::collection::btree_map(word.clone(), "[a-z]{1,3}", 0..2);
    let tolerations =
        proptest::collection::vec(word.prop_map(|key| json!({ "key": key, "operator": "Exists" })), 0..2);
    (
        proptest::collection::vec(volume, 0..3),
        proptest::collection::vec(mount, 0..3),
        proptest::collection::vec(container, 0..2),
        (context.clone(), context),
        (labels.clone(), labels),
        tolerations,
    )
        .prop_map(|(volumes, mounts, containers, (own, of_pod), (labels, annotations), tolerations)| {
            json!({
                "volumes": volumes, "volumeMounts": mounts, "initContainers": containers, "securityContext": own,
                "podSecurityContext": of_pod, "metadata": { "labels": labels, "annotations": annotations },
                "tolerations": tolerations, "serviceAccountName": "other", "image": "example.org/other",
            })
        })
}

/// Whether what was asked for could be had.
#[derive(PartialEq)]
enum Had {
    Yes,
    No,
}

/// Whatever is asked for and allowed by the widest of lists: the runner stays itself, as confined as it was, and keeps its token.
fn keeps_its_promises(of_repository: Value, of_layer: Value, widest: bool) -> Result<Had, TestCaseError> {
    let allowed = if widest {
        everything()
    } else {
        Allowed::only(Field::ALL.iter().map(|field| match field {
            Field::Image => "image=**",
            Field::ServiceAccountName => "serviceAccountName=**",
            Field::Volumes => "volumes=**",
            Field::Metadata => "metadata=**",
            Field::InitContainers => "initContainers=**",
            other => other.as_str(),
        }))
        .unwrap()
    };
    let (of_repository, of_layer) = (asked(of_repository), asked(of_layer));
    let Ok(settled) = allowed.settle(Some(("db", &of_repository)), Some(&of_layer)) else {
        return Ok(Had::No);
    };
    let pod = serde_json::to_value(pod_of(&settled)).unwrap();
    let plain = serde_json::to_value(pod_of(&RunnerOverride::default())).unwrap();
    let spec = &pod["spec"];
    let runner = &spec["containers"][0];
    prop_assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    for same in [
        "restartPolicy",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "terminationGracePeriodSeconds",
    ] {
        prop_assert_eq!(&spec[same], &plain["spec"][same]);
    }
    prop_assert_eq!(&spec["automountServiceAccountToken"], &json!(false));
    for never in [
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "hostUsers",
        "nodeName",
        "shareProcessNamespace",
        "runtimeClassName",
    ] {
        prop_assert!(spec.get(never).is_none(), "{}", never);
    }
    for same in ["command", "args", "env", "envFrom"] {
        prop_assert_eq!(&runner[same], &plain["spec"]["containers"][0][same]);
    }
    let contexts = spec["initContainers"].as_array().into_iter().flatten().chain([runner]);
    for context in contexts.map(|container| &container["securityContext"]) {
        prop_assert_eq!(&context["allowPrivilegeEscalation"], &json!(false));
        prop_assert_eq!(&context["readOnlyRootFilesystem"], &json!(true));
        prop_assert_eq!(&context["capabilities"], &json!({ "drop": ["ALL"] }));
        prop_assert!(context["privileged"] != json!(true) && context["runAsUser"] != json!(0));
        prop_assert!(context["seccompProfile"]["type"] != json!("Unconfined"));
    }
    prop_assert_eq!(&spec["securityContext"]["runAsNonRoot"], &json!(true));
    prop_assert!(spec["securityContext"]["seccompProfile"]["type"] != json!("Unconfined"));
    prop_assert!(spec["securityContext"].get("sysctls").is_none());
    // What is the runner's comes first, as it was, and nobody else sees it or lies over it.
    let own = plain["spec"]["volumes"].as_array().unwrap();
    let volumes = spec["volumes"].as_array().unwrap();
    prop_assert_eq!(&volumes[..own.len()], &own[..]);
    let others = &volumes[own.len()..];
    let names: Vec<&Value> = volumes.iter().map(|volume| &volume["name"]).collect();
    prop_assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)), "{:?}", names);
    for volume in others {
        prop_assert!(!volume.to_string().contains("serviceAccountToken"));
        prop_assert!(widest || volume.get("hostPath").is_none());
    }
    let is_others = |name: &Value| others.iter().any(|volume| &volume["name"] == name);
    let own = plain["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let mounts = runner["volumeMounts"].as_array().unwrap();
    prop_assert_eq!(&mounts[..own.len()], &own[..]);
    for mount in &mounts[own.len()..] {
        prop_assert!(is_others(&mount["name"]));
        let path = mount["mountPath"].as_str().unwrap();
        prop_assert!(["/a", "/etc/ssl"].contains(&path), "{}", path);
    }
    for container in spec["initContainers"].as_array().into_iter().flatten() {
        prop_assert!(container["name"] != json!("runner"));
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            prop_assert!(is_others(&mount["name"]));
        }
    }
    for place in ["labels", "annotations"] {
        for (key, value) in plain["metadata"][place].as_object().unwrap() {
            prop_assert_eq!(&pod["metadata"][place][key], value);
        }
        let mut more = pod["metadata"][place].as_object().unwrap().keys();
        let known = plain["metadata"][place].as_object().unwrap();
        prop_assert!(more.all(|key| known.contains_key(key) || !key.contains("terrane.dev")));
    }
    for toleration in spec["tolerations"].as_array().into_iter().flatten() {
        let key = toleration["key"].as_str().unwrap();
        prop_assert!(key != "terrane.dev/process-node" && (widest || !key.starts_with("node-role.")));
    }
    prop_assert_eq!(&pod["metadata"]["ownerReferences"], &plain["metadata"]["ownerReferences"]);
    prop_assert_eq!(&pod["metadata"]["finalizers"], &plain["metadata"]["finalizers"]);
    Ok(Had::Yes)
}

#[test]
fn a_runners_pod_keeps_its_promises_whatever_is_asked_for() {
    let mut tries = TestRunner::new(ProptestConfig::with_cases(3_000));
    let had = std::cell::Cell::new(0_u32);
    let world = (any_override(), any_override(), any::<bool>());
    let tried = tries.run(&world, |(of_repository, of_layer, widest)| {
        let found = keeps_its_promises(of_repository, of_layer, widest)?;
        had.set(had.get() + u32::from(found == Had::Yes));
        Ok(())
    });
    tried.unwrap();
    assert!((100..2_900).contains(&had.get()), "{} of 3000 could be had: that tries too little", had.get());
}
