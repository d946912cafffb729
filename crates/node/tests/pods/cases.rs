//! What a pod on this node does, written once; `main.rs` runs each case on every API.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use node::config::{Jobs, Schedule};
use node::isolation::Isolation;
use node::logs::{Options, Prefix, Until, Which};
use rustix::process::Signal;
use serde_json::json;
use testkit::needs::{Need, found};

use crate::harness::{Harness, until, users_of_its_own, with_tokens_that_end_soon};

async fn plain(client: Client) -> Harness {
    Harness::new(client, |_| {}).await
}

pub(crate) async fn a_pod_runs_once_and_tells_how_it_ended(client: Client) {
    let harness = plain(client).await;
    let mut pod = harness
        .script("once", "echo out; echo err >&2; env | sort; printf bye >/dev/termination-log; exit 3");
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "GREETING", "value": "hello"},
        {"name": "BOTH", "value": "$(GREETING) $(NOBODY)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]);
    harness.create(pod).await;
    let pod = harness.wait("once", "/status/phase", "Failed").await;
    let status = &pod["status"];
    let container = &status["containerStatuses"][0];
    let ended = &container["state"]["terminated"];
    assert_eq!(
        (&ended["exitCode"], &ended["reason"], &ended["message"]),
        (&json!(3), &json!("Error"), &json!("bye"))
    );
    assert_eq!(container["restartCount"], 0);
    assert!(container["containerID"].as_str().unwrap().starts_with("terrane://"));
    assert_eq!(
        (&status["podIP"], &status["hostIP"], &status["qosClass"]),
        (&json!("127.0.0.1"), &json!("127.0.0.1"), &json!("BestEffort"))
    );
    assert!(status["startTime"].is_string());
    let condition = |kind: &str| {
        let all = status["conditions"].as_array().unwrap();
        let found = all.iter().find(|condition| condition["type"] == kind).unwrap();
        (
            found["status"].as_str().unwrap().to_owned(),
            found["reason"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(condition("Ready"), ("False".into(), "PodFailed".into()));
    assert_eq!(condition("Initialized").0, "True");
    assert_eq!(condition("PodScheduled").0, "True");

    let log = harness.log(&pod, Options::default()).await;
    assert!(
        log.contains("out\n") && log.contains("err\n") && log.contains("BOTH=hello $(NOBODY)\n"),
        "{log}"
    );
    let mut names: Vec<&str> =
        log.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    // PWD is the shell's own; nothing of the node's environment is there.
    assert_eq!(names, ["BOTH", "GREETING", "HOME", "NAME", "PATH", "PWD", "TMPDIR"]);
    let tail = Options { tail: Some(1), prefix: Prefix::Timestamp, ..Options::default() };
    assert_eq!(harness.log(&pod, tail).await.lines().count(), 1);

    // The files of an ended pod are gone, its log stays until it is deleted.
    until("its directory is given back", || async {
        harness.config.pods.read_dir().unwrap().next().is_none().then_some(())
    })
    .await;
    harness.delete("once", 0).await;
    until("its records are gone", || async {
        harness.records().pod_list().unwrap().is_empty().then_some(())
    })
    .await;
}

pub(crate) async fn volumes_hold_what_the_api_has(client: Client) {
    let harness = plain(client).await;
    let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let mut pod = harness.script(
        "volumes",
        "cat /secret/password /info/name; echo; wc -c </var/run/token/token; cat /config/ns; echo; echo x >/work/file && cat /work/file; pwd; (echo y >/secret/z) 2>/dev/null || echo refused",
    );
    pod["spec"]["volumes"] = json!([
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "terrane-datastore", "expirationSeconds": 600}}]}},
        {"name": "config", "projected": {"sources": [
            {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}},
        {"name": "work", "emptyDir": {}},
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "secret", "mountPath": "/secret"}, {"name": "info", "mountPath": "/info"},
        {"name": "token", "mountPath": "/var/run/token"}, {"name": "config", "mountPath": "/config"},
        {"name": "work", "mountPath": "/work"},
    ]);
    pod["spec"]["containers"][0]["workingDir"] = json!("/work/deep/down");
    harness.create(pod).await;
    let pod = harness.wait("volumes", "/status/phase", "Succeeded").await;
    let log = harness.log(&pod, Options::default()).await;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], "hunter2volumes", "{log}");
    assert!(lines[1].parse::<usize>().unwrap() > 100, "a token is a long thing: {log}");
    assert_eq!(&lines[2..4], [harness.namespace.as_str(), "x"]);
    assert!(lines[4].ends_with("/volumes/work/deep/down"), "{log}");
    // As root the pod has a user that cannot write here; a confinement by path says the same.
    assert!(log.contains("refused"), "{log}");
}

pub(crate) async fn the_environment_comes_from_where_the_pod_says(client: Client) {
    let harness = plain(client).await;
    let post = PostParams::default();
    let maps: Api<ConfigMap> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let map = json!({"metadata": {"name": "c"}, "data": {"COLOUR": "red", "SHAPE": "round"}});
    maps.create(&post, &serde_json::from_value(map).unwrap()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"word": "sword fish"}});
    secrets.create(&post, &serde_json::from_value(secret).unwrap()).await.unwrap();
    let mut pod = harness.script(
        "environment",
        "echo $C_COLOUR $C_SHAPE $COLOUR; echo $WORD; echo $NODE; echo $BOTH; cat /config/colour /one",
    );
    pod["spec"]["volumes"] = json!([{"name": "config", "configMap": {"name": "c",
        "items": [{"key": "COLOUR", "path": "colour"}, {"key": "SHAPE", "path": "deep/shape"}]}}]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "config", "mountPath": "/config"},
        {"name": "config", "mountPath": "/one", "subPath": "deep/shape"}]);
    container["envFrom"] = json!([{"prefix": "C_", "configMapRef": {"name": "c"}},
        {"configMapRef": {"name": "nobody", "optional": true}}]);
    container["env"] = json!([
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "COLOUR"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "BOTH", "value": "$(COLOUR), $(C_SHAPE)"},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no", "optional": true}}},
    ]);
    harness.create(pod).await;
    let pod = harness.wait("environment", "/status/phase", "Succeeded").await;
    let log = harness.log(&pod, Options::default()).await;
    let node = &harness.config.name;
    assert_eq!(log, format!("red round red\nsword fish\n{node}\nred, round\nredround"));
}

pub(crate) async fn a_token_is_renewed_in_place(client: Client) {
    // The node itself renews it: nothing but its worker writes below the pod's directory.
    let harness = plain(with_tokens_that_end_soon(client)).await;
    let mut pod = harness.script(
        "renew",
        "token=/token/token; while :; do exec 3<$token; first=$(cat $token); [ $token -ef /dev/fd/3 ] && break; done; \
         while [ \"$(cat $token)\" = \"$first\" ]; do sleep 0.1; done; \
         [ \"$(cat <&3)\" = \"$first\" ] && echo a reader of the old one reads it to its end",
    );
    pod["spec"]["volumes"] = json!([{"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    harness.create(pod).await;
    let pod = harness.wait("renew", "/status/phase", "Succeeded").await;
    let log = harness.log(&pod, Options::default()).await;
    assert_eq!(log, "a reader of the old one reads it to its end\n");
}

pub(crate) async fn init_containers_come_first_and_in_order(client: Client) {
    let harness = plain(client).await;
    let mut pod = harness.script("init", "cat /work/order; test \"$(cat /work/order)\" = \"one two\"");
    let step = |name: &str, script: &str| {
        json!({"name": name, "image": "terrane.dev/local", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "work", "mountPath": "/work"}]})
    };
    pod["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    pod["spec"]["initContainers"] =
        json!([step("first", "printf one >/work/order"), step("second", "printf ' two' >>/work/order")]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
    harness.create(pod.clone()).await;
    let done = harness.wait("init", "/status/phase", "Succeeded").await;
    assert_eq!(done["status"]["initContainerStatuses"][1]["state"]["terminated"]["reason"], "Completed");

    pod["metadata"]["name"] = json!("init-fails");
    pod["spec"]["initContainers"][0]["command"][2] = json!("exit 9");
    harness.create(pod).await;
    let failed = harness.wait("init-fails", "/status/phase", "Failed").await;
    let status = &failed["status"];
    assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 9);
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
}

pub(crate) async fn a_failing_container_is_restarted_and_backs_off(client: Client) {
    let harness = plain(client).await;
    let mut pod = harness.script("again", "echo run; echo x >>/work/count; test $(wc -l </work/count) -ge 2");
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
    harness.create(pod).await;
    let done = harness.wait("again", "/status/phase", "Succeeded").await;
    let container = &done["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 1);
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
    let previous = Options { which: Which::Previous, ..Options::default() };
    assert_eq!(harness.log(&done, previous).await, "run\n");

    let mut pod = harness.script("loop", "exit 1");
    pod["spec"]["restartPolicy"] = json!("Always");
    harness.create(pod).await;
    let waiting = "/status/containerStatuses/0/state/waiting/reason";
    let looping = harness.wait("loop", waiting, "CrashLoopBackOff").await;
    let uid = looping["metadata"]["uid"].as_str().unwrap();
    let message =
        format!("Back-off restarting failed container main in pod loop_{}({uid})", harness.namespace);
    let told = harness.told("loop", "BackOff", &message).await;
    assert_eq!(told.regarding.unwrap().field_path.as_deref(), Some("spec.containers{main}"));
    for (reason, message) in [
        ("Pulled", "Container image \"terrane.dev/local\" already present on machine"),
        ("Created", "Container created"),
        ("Started", "Container started"),
    ] {
        let told = harness.told("loop", reason, message).await;
        assert_eq!(
            (told.type_.as_deref(), told.reporting_controller.as_deref()),
            (Some("Normal"), Some("terrane-node"))
        );
    }
    assert_eq!(looping["status"]["phase"], "Running");
    assert_eq!(looping["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
}

pub(crate) async fn what_is_missing_is_waited_for(client: Client) {
    let harness = plain(client).await;
    let mut pod = harness.script("missing", "test \"$TOKEN\" = abc");
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "later", "key": "token"}}}]);
    harness.create(pod).await;
    let reason = "/status/containerStatuses/0/state/waiting/reason";
    let waiting = harness.wait("missing", reason, "CreateContainerConfigError").await;
    assert_eq!(
        waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"],
        "secret \"later\" not found"
    );
    assert_eq!(waiting["status"]["phase"], "Pending");
    let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let secret = json!({"metadata": {"name": "later"}, "stringData": {"token": "abc"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    harness.wait("missing", "/status/phase", "Succeeded").await;

    let mut pod = harness.script("unknown", "true");
    pod["spec"]["containers"][0]["image"] = json!("busybox:1");
    harness.create(pod).await;
    let waiting = harness.wait("unknown", reason, "ErrImagePull").await;
    let message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("\"busybox:1\""), "{message}");
    // Two messages of one reason are two events.
    harness.told("unknown", "Failed", &format!("Failed to pull image \"busybox:1\": {message}")).await;
    harness.told("unknown", "Failed", "Error: ErrImagePull").await;

    let mut pod = harness.script("nothing", "true");
    pod["spec"]["containers"][0]["command"] = json!(["no-such-program"]);
    harness.create(pod).await;
    let ended = harness.wait("nothing", "/status/phase", "Failed").await;
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["reason"], &state["exitCode"]), (&json!("StartError"), &json!(128)));

    let mut pod = harness.script("refused", "true");
    pod["spec"]["volumes"] = json!([{"name": "root", "hostPath": {"path": "/"}}]);
    harness.create(pod).await;
    let refused = harness.wait("refused", "/status/phase", "Failed").await;
    assert_eq!(refused["status"]["reason"], "UnsupportedPod");
}

pub(crate) async fn deletion_asks_then_waits_then_kills(client: Client) {
    let harness = plain(client).await;
    let polite = "trap 'echo stopping; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let created = harness.create(harness.script("polite", polite)).await;
    let pod = harness.wait("polite", "/status/phase", "Running").await;
    let follow = Options { until: Until::ContainerEnds, ..Options::default() };
    let uid = created.metadata.uid.clone().unwrap();
    let mut log = Box::pin(node::logs::open(&harness.config.state, &uid, "main", follow).await.unwrap());
    let mut seen = String::new();
    while !seen.contains("up\n") {
        let piece = futures::TryStreamExt::try_next(&mut log).await.unwrap().unwrap();
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
    harness.delete("polite", 30).await;
    while let Some(piece) = futures::TryStreamExt::try_next(&mut log).await.unwrap() {
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
    assert_eq!(seen, "up\nstopping\n", "a follower sees the last words and then the end");
    harness.gone("polite").await;
    assert_eq!(pod["metadata"]["uid"], json!(uid));

    // Deaf, with a daemon in a session of its own.
    let deaf = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & while :; do sleep 0.05; done";
    harness.create(harness.script("deaf", deaf)).await;
    let pod = harness.wait("deaf", "/status/phase", "Running").await;
    let (shim, main) = harness.running(&pod);
    harness.delete("deaf", 1).await;
    harness.gone("deaf").await;
    until("nothing is left", || async {
        (!shim.is_alive().unwrap() && !main.is_alive().unwrap()).then_some(())
    })
    .await;
    let table = node::process::table().unwrap();
    assert!(node::process::descendants(&table, shim.pid).is_empty());
}

pub(crate) async fn the_deadline_ends_a_pod(client: Client) {
    let harness = plain(client).await;
    let mut pod = harness.script("late", "while :; do sleep 0.05; done");
    pod["spec"]["activeDeadlineSeconds"] = json!(1);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    harness.create(pod).await;
    let late = harness.wait("late", "/status/phase", "Failed").await;
    assert_eq!(late["status"]["reason"], "DeadlineExceeded");
    assert_eq!(late["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 143);
}

pub(crate) async fn a_crash_of_the_node_loses_nothing_and_repeats_nothing(client: Client) {
    let mut harness = plain(client).await;
    let script = "echo started; while ! test -e /work/go; do sleep 0.05; done; echo done; exit 4";
    for name in ["during", "after"] {
        let mut pod = harness.script(name, script);
        pod["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
        harness.create(pod).await;
    }
    let during = harness.wait("during", "/status/phase", "Running").await;
    let after = harness.wait("after", "/status/phase", "Running").await;
    let (_, main) = harness.running(&after);
    harness.crash().await;
    // One ends while nobody looks, and one pod is deleted by force.
    std::fs::write(harness.volume(&during, "work").join("go"), "").unwrap();
    let uid = during["metadata"]["uid"].as_str().unwrap();
    until("its exit is recorded", || async { harness.records().attempt(uid, "main", 0).exit().unwrap() })
        .await;
    harness.start().await;
    let ended = harness.wait("during", "/status/phase", "Failed").await;
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 4);
    assert_eq!(harness.log(&ended, Options::default()).await, "started\ndone\n");
    assert_eq!(harness.running(&after).1, main, "the other is the same process as before");

    harness.crash().await;
    harness.delete("after", 0).await;
    harness.gone("after").await;
    assert!(main.is_alive().unwrap());
    harness.start().await;
    until("the pod that was forgotten meanwhile has ended", || async {
        (!main.is_alive().unwrap()).then_some(())
    })
    .await;
}

pub(crate) async fn the_death_of_a_shim_ends_its_container_and_is_told(client: Client) {
    let harness = plain(client).await;
    harness
        .create(
            harness.script("orphan", "sh -c 'while :; do sleep 0.05; done' & while :; do sleep 0.05; done"),
        )
        .await;
    let pod = harness.wait("orphan", "/status/phase", "Running").await;
    let (shim, main) = harness.running(&pod);
    let attempt = harness.records().attempt(pod["metadata"]["uid"].as_str().unwrap(), "main", 0);
    assert_eq!(shims_of(attempt.path()), [shim.pid], "a container has one shim");
    shim.signal(Signal::KILL).unwrap();
    let ended = harness.wait("orphan", "/status/phase", "Failed").await;
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(255), &json!("Unknown")));
    assert!(!main.is_alive().unwrap());
    let table = node::process::table().unwrap();
    let left = |entry: &node::process::Entry| {
        entry.session == shim.pid && entry.state == node::process::State::Alive
    };
    assert!(!table.iter().any(left), "nothing of it is left");
}

/// The processes that were started to look after this attempt. O(processes of the machine).
fn shims_of(attempt: &std::path::Path) -> Vec<i32> {
    let is_shim = |entry: &&node::process::Entry| {
        let line = std::fs::read(format!("/proc/{}/cmdline", entry.process.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == attempt.as_os_str().as_encoded_bytes())
    };
    node::process::table().unwrap().iter().filter(is_shim).map(|entry| entry.process.pid).collect()
}

/// Tries what a hostile pod would try; the script's output says what worked.
async fn a_pod_is_kept_from_everything_that_is_not_its_own(client: Client, isolation: Isolation) {
    let harness = Harness::new(client, |config| config.isolation = isolation).await;
    let data = harness.path("data");
    std::fs::write(data.join("kubeconfig"), "key").unwrap();
    std::fs::write(data.join("database"), "rows").unwrap();
    let mut victim = harness.script("victim", "umask 0; echo mine >/work/file; echo mine >$HOME/file; echo mine >$TMPDIR/file; echo ok >/work/done; while :; do sleep 0.05; done");
    victim["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
    victim["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
    victim["spec"]["containers"][0]["env"] = json!([{"name": "SECRET", "value": "swordfish"}]);
    harness.create(victim).await;
    let victim = harness.wait("victim", "/status/phase", "Running").await;
    let work = harness.volume(&victim, "work");
    harness.file(&work.join("done")).await;
    let pod_directory = work.parent().unwrap().parent().unwrap().to_owned();
    let (shim, main) = harness.running(&victim);
    let uid = victim["metadata"]["uid"].as_str().unwrap();
    let log = harness.records().attempt(uid, "main", 0).path().join("log.000001");
    let script = format!(
        "for f in {work}/file {pod}/home/file {pod}/tmp/file {pod}/volumes/token/token {data}/kubeconfig {data}/database {log} \
         /proc/{main}/environ /proc/{main}/cwd/. /proc/{shim}/environ; do head -c1 $f >/dev/null 2>&1 && echo \"READ $f\"; done; \
         ls {pods} >/dev/null 2>&1 && echo LISTED; ls {data} >/dev/null 2>&1 && echo LISTED; \
         (echo x >{work}/new) 2>/dev/null && echo WROTE; kill -0 {main} 2>/dev/null && echo SIGNALLED; \
         kill -0 {shim} 2>/dev/null && echo SIGNALLED; echo finished",
        work = work.display(),
        pod = pod_directory.display(),
        pods = harness.config.pods.display(),
        data = data.display(),
        log = log.display(),
        main = main.pid,
        shim = shim.pid,
    );
    harness.create(harness.script("thief", &script)).await;
    let thief = harness.wait("thief", "/status/phase", "Succeeded").await;
    assert_eq!(harness.log(&thief, Options::default()).await, "finished\n");
    assert!(main.is_alive().unwrap());
}

pub(crate) async fn a_pod_with_its_own_user_cannot_reach_others(client: Client) {
    let isolation = Isolation::detect(std::path::Path::new("/isolation"));
    let users = matches!(isolation, Isolation::Users(_)).then_some(isolation);
    let Some(isolation) = found(Need::Root, users).unwrap() else { return };
    a_pod_is_kept_from_everything_that_is_not_its_own(client, users_of_its_own(isolation)).await;
}

pub(crate) async fn a_confined_pod_cannot_reach_others(client: Client) {
    let landlock = Some(Isolation::detect_without_root()).filter(|found| *found == Isolation::Landlock);
    let Some(isolation) = found(Need::Landlock, landlock).unwrap() else { return };
    a_pod_is_kept_from_everything_that_is_not_its_own(client, isolation).await;
}

pub(crate) async fn a_full_node_makes_pods_wait(client: Client) {
    let harness = Harness::new(client, |config| {
        config.max_pods = 1;
        config.schedule = Schedule::BindUnscheduled;
    })
    .await;
    let unscheduled = |name: &str, script: &str| {
        let mut pod = harness.script(name, script);
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": harness.config.name});
        pod
    };
    harness.create(unscheduled("first", "while :; do sleep 0.05; done")).await;
    let first = harness.wait("first", "/status/phase", "Running").await;
    assert_eq!(first["spec"]["nodeName"], json!(harness.config.name));
    harness.create(unscheduled("second", "true")).await;
    let message = "/status/conditions/0/message";
    let second = harness.wait("second", message, "0/1 nodes are available: 1 Too many pods.").await;
    assert_eq!(second["status"]["conditions"][0]["reason"], "Unschedulable");
    // One that somebody else has bound here waits as well, and says why.
    harness.create(harness.script("third", "true")).await;
    let third = harness.wait("third", "/status/reason", "OutOfpods").await;
    assert_eq!(third["status"]["phase"], "Pending");
    harness.delete("first", 1).await;
    harness.wait("second", "/status/phase", "Succeeded").await;
    harness.wait("third", "/status/phase", "Succeeded").await;

    // As `kubectl cordon` and `kubectl uncordon` do it.
    let nodes: Api<Node> = Api::all(harness.client.clone());
    let cordon = async |wanted: bool| {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": wanted}}));
        nodes.patch(&harness.config.name, &PatchParams::default(), &patch).await.unwrap();
    };
    cordon(true).await;
    harness.create(unscheduled("fourth", "true")).await;
    let refused = "0/1 nodes are available: 1 node(s) were unschedulable.";
    let fourth = harness.wait("fourth", message, refused).await;
    let condition = &fourth["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("PodScheduled"), &json!("False"), &json!("Unschedulable"))
    );
    assert_eq!(fourth["status"]["phase"], "Pending");
    let told = harness.told("fourth", "FailedScheduling", refused).await;
    assert_eq!(
        (told.type_.as_deref(), told.reporting_controller.as_deref()),
        (Some("Warning"), Some("default-scheduler"))
    );
    cordon(false).await;
    harness.wait("fourth", "/status/phase", "Succeeded").await;
    let assigned = format!("Successfully assigned {}/fourth to {}", harness.namespace, harness.config.name);
    harness.told("fourth", "Scheduled", &assigned).await;
}

pub(crate) async fn pods_of_one_directory_see_the_same_paths(client: Client) {
    let harness = plain(client).await;
    let mut seen = Vec::new();
    for name in ["plan", "apply"] {
        let mut pod = harness.script(name, "pwd; test ! -e left && echo x >left");
        pod["metadata"]["annotations"] = json!({node::pods::DIRECTORY_ANNOTATION: "layer-1"});
        pod["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
        pod["spec"]["containers"][0]["workingDir"] = json!("/work");
        // Both at once: the second waits for the first.
        harness.create(pod).await;
    }
    for name in ["plan", "apply"] {
        let pod = harness.wait(name, "/status/phase", "Succeeded").await;
        seen.push(harness.log(&pod, Options::default()).await);
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].contains(&format!("{}_layer-1", harness.namespace)), "{}", seen[0]);
}

pub(crate) async fn the_node_is_registered_and_alive(client: Client) {
    let harness = plain(client).await;
    let nodes: Api<Node> = Api::all(harness.client.clone());
    let leases: Api<Lease> = Api::namespaced(harness.client.clone(), "kube-node-lease");
    let name = &harness.config.name;
    let lease = until("the lease is there", || async { leases.get_opt(name).await.unwrap() }).await;
    let spec = lease.spec.unwrap();
    assert_eq!((spec.holder_identity.as_ref(), spec.lease_duration_seconds), (Some(name), Some(40)));
    assert!(spec.renew_time.is_some());
    let node = serde_json::to_value(nodes.get(name).await.unwrap()).unwrap();
    assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, node["metadata"]["uid"].as_str().unwrap());
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], json!(name));
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["status"]["capacity"]["pods"], "10");
    assert_eq!(node["status"]["addresses"][0]["address"], "127.0.0.1");
    assert!(
        node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap().starts_with("terrane://")
    );
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"));
}

pub(crate) async fn a_status_is_written_only_when_it_changes(client: Client) {
    let harness = plain(client).await;
    harness.create(harness.script("quiet", "while :; do sleep 0.05; done")).await;
    let pod = harness.wait("quiet", "/status/containerStatuses/0/ready", true).await;
    // A change by somebody else wakes the node; it has nothing to add.
    let patch = json!({"metadata": {"labels": {"touched": "yes"}}});
    let touched = harness.pods().patch("quiet", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    harness.create(harness.script("later", "true")).await;
    harness.wait("later", "/status/phase", "Succeeded").await;
    let now = harness.pod("quiet").await;
    assert_eq!(now["metadata"]["resourceVersion"], json!(touched.metadata.resource_version));
    assert_eq!(now["status"], pod["status"]);

    // What somebody else makes of the status is put right, although the node has said the same before.
    for wrong in ["Pending", "Unknown"] {
        let patch = json!({"status": {"phase": wrong}});
        harness.pods().patch_status("quiet", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        let right = harness.wait("quiet", "/status/phase", "Running").await;
        assert_eq!(right["status"], pod["status"]);
    }
}

pub(crate) async fn jobs_are_carried_out(client: Client) {
    let harness = Harness::new(client, |config| {
        config.schedule = Schedule::BindUnscheduled;
        config.jobs = Jobs::Control;
    })
    .await;
    let jobs: Api<Job> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let job = |name: &str, script: &str, backoff_limit: i32| {
        json!({"metadata": {"name": name}, "spec": {"completions": 2, "parallelism": 2, "backoffLimit": backoff_limit,
            "template": {"spec": {"restartPolicy": "Never", "automountServiceAccountToken": false, "containers": [
                {"name": "main", "image": "terrane.dev/local", "command": ["sh", "-c", script]}]}}}})
    };
    let create = async |value| {
        jobs.create(&PostParams::default(), &serde_json::from_value(value).unwrap()).await.unwrap();
    };
    let condition = async |name: &'static str, kind: &'static str| {
        until(&format!("job {name} is {kind}"), || async {
            let job = serde_json::to_value(jobs.get(name).await.unwrap()).unwrap();
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == kind && c["status"] == "True").then_some(job)
        })
        .await
    };
    create(job("good", "true", 6)).await;
    let good = condition("good", "Complete").await;
    assert_eq!((&good["status"]["succeeded"], &good["status"]["ready"]), (&json!(2), &json!(0)));
    create(job("bad", "exit 1", 0)).await;
    let bad = condition("bad", "Failed").await;
    let reason =
        bad["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Failed").unwrap();
    assert_eq!(reason["reason"], "BackoffLimitExceeded");

    let mut expiring = job("expiring", "true", 6);
    expiring["spec"]["ttlSecondsAfterFinished"] = json!(0);
    create(expiring).await;
    until("the job is gone", || async { jobs.get_opt("expiring").await.unwrap().is_none().then_some(()) })
        .await;
    let mut foreign = job("foreign", "true", 6);
    foreign["spec"]["managedBy"] = json!("example.org/other");
    create(foreign).await;
    create(job("last", "true", 6)).await;
    condition("last", "Complete").await;
    assert!(jobs.get("foreign").await.unwrap().status.unwrap_or_default().start_time.is_none());
}
