//! What a status looks like in each situation.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::pods::decide::{Blocked, Presence};
use crate::process::Process;
use crate::records::Stop;

const NOW: i64 = 1_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn exit(how: How) -> Exit {
    Exit { how, started_at: Some(at(NOW - 20)), finished_at: at(NOW - 10), message: String::new() }
}

fn view(number: u32, attempt: Attempt) -> View {
    View { current: Some(Numbered { number, backoff: number, attempt }), ..View::default() }
}

fn running() -> Attempt {
    let process = Process { pid: 1, start: 1 };
    Attempt::Running { shim: process, main: process, started_at: at(NOW - 20) }
}

struct Case {
    pod: Value,
    place: Place,
    stop: Option<Stop>,
    views: BTreeMap<String, View>,
}

fn case(policy: &str, views: &[(&str, View)]) -> Case {
    let of = |init: bool| -> Vec<Value> {
        let names = views.iter().map(|(name, _)| *name).filter(|name| name.starts_with("init") == init);
        names.map(|name| json!({"name": name, "image": "terrane.dev/local"})).collect()
    };
    Case {
        pod: json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
            "restartPolicy": policy, "initContainers": of(true), "containers": of(false)}}),
        place: Place::Ready,
        stop: None,
        views: views.iter().map(|(name, view)| ((*name).to_owned(), view.clone())).collect(),
    }
}

impl Case {
    fn status(&self) -> Value {
        let pod: Pod = serde_json::from_value(self.pod.clone()).unwrap();
        let observed = Observed {
            now: at(NOW),
            pod: &pod,
            presence: Presence::Present,
            place: self.place.clone(),
            stop: self.stop.as_ref(),
            containers: &self.views,
        };
        serde_json::to_value(build(&observed, "127.0.0.1")).unwrap()
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let status = self.status();
        let all = status["conditions"].as_array().unwrap();
        let found = all.iter().find(|condition| condition["type"] == kind).unwrap();
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }
}

#[test]
fn phases_are_a_kubelets() {
    let done = || view(0, Attempt::Exited(exit(How::Code(0))));
    let failed = || view(0, Attempt::Exited(exit(How::Code(1))));
    let crashing = || view(2, Attempt::Exited(exit(How::Code(1))));
    let none = View::default;
    for (policy, views, phase) in [
        ("Never", vec![("a", none())], "Pending"),
        ("Never", vec![("a", view(0, Attempt::Intended))], "Pending"),
        ("Never", vec![("a", view(0, running()))], "Running"),
        ("Never", vec![("a", done())], "Succeeded"),
        ("Never", vec![("a", failed())], "Failed"),
        ("Never", vec![("a", done()), ("b", failed())], "Failed"),
        ("Never", vec![("a", failed()), ("b", view(0, running()))], "Running"),
        ("Never", vec![("a", view(0, running())), ("b", none())], "Pending"),
        ("OnFailure", vec![("a", done())], "Succeeded"),
        ("OnFailure", vec![("a", crashing())], "Running"),
        ("Always", vec![("a", done())], "Running"),
        ("Always", vec![("a", crashing())], "Running"),
        ("Never", vec![("init", view(0, running())), ("a", none())], "Pending"),
        ("Never", vec![("init", failed()), ("a", none())], "Failed"),
        ("Always", vec![("init", crashing()), ("a", none())], "Pending"),
        ("Never", vec![("init", done()), ("a", view(0, running()))], "Running"),
    ] {
        assert_eq!(case(policy, &views).status()["phase"], phase, "{policy} {views:?}");
    }
}

#[test]
fn container_states_say_what_happened() {
    let state =
        |policy: &str, view: View| case(policy, &[("a", view)]).status()["containerStatuses"][0].clone();
    let ended = |how| state("Never", view(0, Attempt::Exited(exit(how))))["state"]["terminated"].clone();
    assert_eq!(ended(How::Code(0))["reason"], "Completed");
    assert_eq!(
        (&ended(How::Code(3))["reason"], &ended(How::Code(3))["exitCode"]),
        (&json!("Error"), &json!(3))
    );
    let killed = ended(How::Signal(9));
    assert_eq!((&killed["exitCode"], &killed["signal"]), (&json!(137), &json!(9)));
    assert_eq!(killed["startedAt"], "1970-01-01T00:16:20Z");
    assert_eq!(killed["finishedAt"], "1970-01-01T00:16:30Z");
    assert_eq!(killed["containerID"], "terrane://u.a.0");
    assert_eq!(ended(How::NotStarted)["reason"], "StartError");
    assert_eq!(ended(How::Unknown)["exitCode"], 255);

    let up = state("Always", view(0, running()));
    assert_eq!((&up["ready"], &up["started"]), (&json!(true), &json!(true)));
    assert_eq!(up["state"]["running"]["startedAt"], "1970-01-01T00:16:20Z");

    let waiting = state("Never", View::default());
    assert_eq!(waiting["state"]["waiting"]["reason"], "ContainerCreating");
    let blocked = View {
        blocked: Some(Blocked {
            reason: "CreateContainerConfigError",
            message: "secret \"s\" not found".into(),
            retry_at: at(NOW),
        }),
        ..View::default()
    };
    let blocked = state("Never", blocked);
    assert_eq!(blocked["state"]["waiting"]["message"], "secret \"s\" not found");

    let looping = state("Always", view(3, Attempt::Exited(exit(How::Code(1)))));
    assert_eq!(looping["restartCount"], 3);
    assert_eq!(looping["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(
        looping["state"]["waiting"]["message"],
        "back-off 40s restarting failed container=a pod=p_ns(u)"
    );
    assert_eq!(looping["lastState"]["terminated"]["exitCode"], 1);
    let again = View { previous: Some(exit(How::Code(1))), ..view(1, running()) };
    assert_eq!(state("Always", again)["lastState"]["terminated"]["containerID"], "terrane://u.a.0");
}

#[test]
fn conditions_follow_the_containers() {
    let up = case("Always", &[("a", view(0, running()))]);
    for kind in ["PodScheduled", "Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"] {
        assert_eq!(up.condition(kind).0, "True", "{kind}");
    }
    let done = case("Never", &[("a", view(0, Attempt::Exited(exit(How::Code(0)))))]);
    assert_eq!(done.condition("Ready"), ("False".into(), "PodCompleted".into()));
    assert_eq!(done.condition("Initialized"), ("True".into(), "PodCompleted".into()));
    let failed = case("Never", &[("a", view(0, Attempt::Exited(exit(How::Code(1)))))]);
    assert_eq!(failed.condition("ContainersReady"), ("False".into(), "PodFailed".into()));
    let initializing = case("Never", &[("init", view(0, running())), ("a", View::default())]);
    assert_eq!(initializing.condition("Initialized"), ("False".into(), "ContainersNotInitialized".into()));
    assert_eq!(
        initializing.status()["containerStatuses"][0]["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    let mut gated = case("Always", &[("a", view(0, running()))]);
    gated.pod["spec"]["readinessGates"] = json!([{"conditionType": "example.org/open"}]);
    assert_eq!(gated.condition("Ready"), ("False".into(), "ReadinessGatesNotReady".into()));
    assert_eq!(gated.condition("ContainersReady").0, "True");
}

#[test]
fn a_stopped_pod_ends_with_the_reason_it_was_stopped_for() {
    let mut late = case("Never", &[("a", view(0, Attempt::Exited(exit(How::Signal(15)))))]);
    late.stop = Some(Stop::new(Cause::DeadlineExceeded, at(NOW - 30), 30));
    let status = late.status();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("DeadlineExceeded")));

    let mut deleted = case("Always", &[("a", view(0, Attempt::Exited(exit(How::Code(0)))))]);
    deleted.stop = Some(Stop::new(Cause::Deleted, at(NOW - 30), 30));
    assert_eq!(deleted.status()["phase"], "Succeeded");

    let mut never = case("Always", &[("a", View::default())]);
    never.stop = Some(Stop::new(Cause::Deleted, at(NOW - 30), 30));
    let status = never.status();
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn pods_that_wait_or_are_refused_say_why() {
    let mut waiting = case("Never", &[("a", View::default())]);
    waiting.place = Place::NoRoom { message: "the node is full".into() };
    let status = waiting.status();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("OutOfpods")));
    let mut refused = case("Never", &[("a", View::default())]);
    refused.place = Place::Refused { reason: "UnsupportedPod", message: "no".into() };
    let status = refused.status();
    assert_eq!((&status["phase"], &status["message"]), (&json!("Failed"), &json!("Pod was rejected: no")));
}

#[test]
fn a_status_is_written_once_and_an_ended_pod_never_changes() {
    let mut first = case("Always", &[("a", view(0, running()))]);
    let pod: Pod = serde_json::from_value(first.pod.clone()).unwrap();
    let status = first.status();
    let typed: PodStatus = serde_json::from_value(status.clone()).unwrap();
    let change = patch(&pod, &typed).unwrap();
    assert_eq!(change["metadata"]["uid"], "u");
    assert_eq!(change["status"]["phase"], "Running");
    // The same again, later, with a condition of somebody else's in between: nothing to say.
    let mut stored = status.clone();
    stored["conditions"].as_array_mut().unwrap().push(json!({"type": "example.org/other", "status": "True"}));
    first.pod["status"] = stored;
    let stored: Pod = serde_json::from_value(first.pod.clone()).unwrap();
    let again: PodStatus = serde_json::from_value(first.status()).unwrap();
    assert_eq!(patch(&stored, &again), None);
    // A reason that no longer holds is taken away.
    first.pod["status"]["reason"] = json!("OutOfpods");
    let stale: Pod = serde_json::from_value(first.pod.clone()).unwrap();
    assert_eq!(patch(&stale, &again).unwrap()["status"], json!({"reason": null}));

    first.pod["status"]["phase"] = json!("Succeeded");
    let ended: Pod = serde_json::from_value(first.pod.clone()).unwrap();
    let kept: PodStatus = serde_json::from_value(first.status()).unwrap();
    assert_eq!(patch(&ended, &kept), None);
}

#[test]
fn quality_of_service_follows_requests_and_limits() {
    let class = |resources: Value| {
        let spec = json!({"containers": [{"name": "a", "resources": resources}]});
        qos_class(&serde_json::from_value(spec).unwrap())
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    assert_eq!(class(json!({"limits": {"cpu": "1"}})), "Burstable");
    assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
    assert_eq!(
        class(
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}})
        ),
        "Guaranteed"
    );
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}})),
        "Burstable"
    );
}
