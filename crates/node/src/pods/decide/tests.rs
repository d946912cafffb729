//! Tables for the decisions about a pod.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::process::Process;
use crate::records::State;
use serde_json::{Value, json};

const NOW: i64 = 10_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn exited(how: How, started: i64, finished: i64) -> Attempt {
    Attempt::Exited(Exit {
        how,
        started_at: Some(at(started)),
        finished_at: at(finished),
        message: String::new(),
    })
}

fn process(pid: i32) -> Process {
    Process { pid, start: 1 }
}

fn running() -> Attempt {
    Attempt::Running { shim: process(1), main: process(2), started_at: at(NOW - 5) }
}

fn lost() -> Attempt {
    Attempt::Lost { state: State { boot_id: "b".into(), shim: process(1), main: None } }
}

fn view(number: u32, attempt: Attempt) -> View {
    View { current: Some(Numbered { number, backoff: number, attempt }), ..View::default() }
}

struct Case {
    pod: Value,
    presence: Presence,
    place: Place,
    stop: Option<Stop>,
    containers: BTreeMap<String, View>,
}

/// A pod with these init containers and containers, ready to run.
fn pod(policy: &str, init: &[&str], main: &[&str]) -> Case {
    let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    Case {
        pod: json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"restartPolicy": policy, "initContainers": named(init), "containers": named(main)},
            "status": {"startTime": "1970-01-01T00:00:00Z"}
        }),
        presence: Presence::Present,
        place: Place::Ready,
        stop: None,
        containers: init.iter().chain(main).map(|name| ((*name).to_owned(), View::default())).collect(),
    }
}

impl Case {
    fn with(mut self, container: &str, view: View) -> Case {
        self.containers.insert(container.to_owned(), view);
        self
    }

    fn place(mut self, place: Place) -> Case {
        self.place = place;
        self
    }

    fn set(mut self, pointer: &str, value: Value) -> Case {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        self.pod.pointer_mut(parent).unwrap()[name] = value;
        self
    }

    fn stopping(mut self, cause: Cause, begun: i64, grace: i64, signalled: &[&str]) -> Case {
        let mut stop = Stop::new(cause, at(begun), grace);
        stop.signalled = signalled.iter().map(|name| (*name).to_owned()).collect();
        self.stop = Some(stop);
        self
    }

    fn deleted(self, grace: i64) -> Case {
        self.set("/metadata/deletionTimestamp", json!("1970-01-01T02:46:40Z"))
            .set("/metadata/deletionGracePeriodSeconds", json!(grace))
    }

    fn decide(&self) -> Decision {
        let pod: Pod = serde_json::from_value(self.pod.clone()).unwrap();
        decide(&Observed {
            now: at(NOW),
            pod: &pod,
            presence: self.presence,
            place: self.place.clone(),
            stop: self.stop.as_ref(),
            containers: &self.containers,
        })
    }

    #[track_caller]
    fn check(&self, actions: &[Action], last: &[Action], wake: Option<i64>) {
        let decision = self.decide();
        assert_eq!(decision.actions, actions);
        assert_eq!(decision.last, last);
        assert_eq!(decision.wake.map(|wake| wake.as_second()), wake);
    }
}

fn start(container: &str, number: u32, backoff: u32) -> Action {
    Action::Start { container: container.into(), number, backoff }
}

fn settle(container: &str, number: u32) -> Action {
    Action::Settle { container: container.into(), number }
}

#[test]
fn a_place_comes_before_the_first_container() {
    pod("Never", &[], &["a"]).place(Place::Unprepared).check(&[Action::Prepare], &[], None);
    pod("Never", &[], &["a"]).place(Place::NoRoom { message: "full".into() }).check(&[], &[], None);
    let blocked = |retry| Place::Blocked { message: "no secret".into(), retry_at: at(retry) };
    pod("Never", &[], &["a"]).place(blocked(NOW + 3)).check(&[], &[], Some(NOW + 3));
    pod("Never", &[], &["a"]).place(blocked(NOW)).check(&[Action::Prepare], &[], None);
    pod("Never", &[], &["a"]).place(Place::Refused { reason: "UnsupportedPod", message: "x".into() }).check(
        &[],
        &[Action::Release],
        None,
    );
}

#[test]
fn containers_start_together_and_init_containers_one_after_the_other() {
    pod("Never", &[], &["a", "b"]).check(&[start("a", 0, 0), start("b", 0, 0)], &[], None);
    pod("Never", &["i", "j"], &["a"]).check(&[start("i", 0, 0)], &[], None);
    let done = || view(0, exited(How::Code(0), NOW - 9, NOW - 8));
    pod("Never", &["i", "j"], &["a"]).with("i", done()).check(&[start("j", 0, 0)], &[], None);
    pod("Never", &["i", "j"], &["a"]).with("i", done()).with("j", done()).check(
        &[start("a", 0, 0)],
        &[],
        None,
    );
    // Once a container has begun, its init containers are not looked at again.
    pod("Always", &["i"], &["a"]).with("a", view(0, running())).check(&[], &[], None);
}

#[test]
fn a_failed_init_container_ends_the_pod_or_is_tried_again() {
    let failed = |number| view(number, exited(How::Code(1), NOW - 2, NOW - 1));
    pod("Never", &["i"], &["a"]).with("i", failed(0)).check(&[], &[Action::Release], None);
    pod("Always", &["i"], &["a"]).with("i", failed(0)).check(&[start("i", 1, 1)], &[], None);
    pod("OnFailure", &["i"], &["a"]).with("i", failed(1)).check(&[], &[], Some(NOW + 9));
}

#[test]
fn what_was_begun_is_carried_on_and_never_begun_again() {
    let launch = Action::Launch { container: "a".into(), number: 0 };
    pod("Never", &[], &["a"]).with("a", view(0, Attempt::Intended)).check(&[launch], &[], None);
    pod("Never", &[], &["a"]).with("a", view(0, running())).check(&[], &[], None);
    pod("Never", &[], &["a"]).with("a", view(0, lost())).check(&[settle("a", 0)], &[], None);
    let starting = pod("Never", &[], &["a"]).with("a", view(0, Attempt::Starting { shim: None })).decide();
    assert!(starting.actions.is_empty() && starting.wake.is_some());
    for how in [How::Code(0), How::Code(1), How::Signal(9), How::NotStarted, How::Unknown] {
        let ended = view(0, exited(how, NOW - 2, NOW - 1));
        pod("Never", &[], &["a"]).with("a", ended).check(&[], &[Action::Release], None);
    }
}

#[test]
fn restarts_follow_the_policy_and_double_their_wait_up_to_five_minutes() {
    let ended = |number, how| view(number, exited(how, NOW - 2, NOW));
    for (policy, how, restarts) in [
        ("Always", How::Code(0), true),
        ("Always", How::Code(1), true),
        ("OnFailure", How::Code(0), false),
        ("OnFailure", How::Signal(15), true),
        ("OnFailure", How::Unknown, true),
        ("Never", How::Code(1), false),
    ] {
        let case = pod(policy, &[], &["a"]).with("a", ended(0, how));
        match restarts {
            true => case.check(&[start("a", 1, 1)], &[], None),
            false => case.check(&[], &[Action::Release], None),
        }
    }
    for (number, wait) in [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (60, 300)] {
        let case = pod("Always", &[], &["a"]).with("a", ended(number, How::Code(1)));
        case.check(&[], &[], Some(NOW + wait));
    }
    // Ten minutes of work are forgiven.
    let long = view(7, exited(How::Code(1), NOW - 601, NOW - 1));
    pod("Always", &[], &["a"]).with("a", long).check(&[start("a", 8, 1)], &[], None);
}

#[test]
fn a_pod_ends_when_all_its_containers_have() {
    let done = || view(0, exited(How::Code(0), NOW - 2, NOW - 1));
    pod("Never", &[], &["a", "b"]).with("a", done()).with("b", view(0, running())).check(&[], &[], None);
    pod("Never", &[], &["a", "b"]).with("a", done()).with("b", done()).check(&[], &[Action::Release], None);
}

#[test]
fn a_container_that_could_not_be_configured_is_tried_again_at_its_time() {
    let blocked = |retry| View {
        blocked: Some(Blocked { reason: "ErrImagePull", message: "no".into(), retry_at: at(retry) }),
        ..View::default()
    };
    pod("Never", &[], &["a"]).with("a", blocked(NOW + 4)).check(&[], &[], Some(NOW + 4));
    pod("Never", &[], &["a"]).with("a", blocked(NOW)).check(&[start("a", 0, 0)], &[], None);
}

#[test]
fn deletion_orders_signals_once_waits_and_then_kills() {
    let order = |grace| Action::Order(Stop::new(Cause::Deleted, at(NOW), grace));
    let case = || pod("Always", &[], &["a"]).with("a", view(0, running()));
    case().deleted(30).check(&[order(30)], &[], None);
    case().deleted(0).check(&[order(1)], &[], None);
    let term = Action::Terminate { container: "a".into(), number: 0 };
    case().deleted(30).stopping(Cause::Deleted, NOW, 30, &[]).check(&[term], &[], Some(NOW + 30));
    case().deleted(30).stopping(Cause::Deleted, NOW, 30, &["a"]).check(&[], &[], Some(NOW + 30));
    // A second deletion only shortens, and from the first order on.
    let mut shorter = Stop::new(Cause::Deleted, at(NOW - 9), 10);
    shorter.signalled.insert("a".into());
    case().deleted(10).stopping(Cause::Deleted, NOW - 9, 30, &["a"]).check(
        &[Action::Order(shorter)],
        &[],
        None,
    );
    let killed = case().deleted(30).stopping(Cause::Deleted, NOW - 30, 30, &["a"]).decide();
    assert_eq!(killed.actions, [Action::Kill { container: "a".into(), number: 0 }]);
    let ended = view(0, exited(How::Signal(9), NOW - 40, NOW));
    case().with("a", ended).deleted(30).stopping(Cause::Deleted, NOW - 30, 30, &["a"]).check(
        &[],
        &[Action::Release, Action::Delete],
        None,
    );
}

#[test]
fn what_has_not_begun_when_a_pod_is_stopped_never_begins() {
    let stopped = |attempt| {
        pod("Never", &[], &["a"]).with("a", view(0, attempt)).deleted(30).stopping(
            Cause::Deleted,
            NOW,
            30,
            &[],
        )
    };
    stopped(Attempt::Intended).check(&[settle("a", 0)], &[], None);
    stopped(lost()).check(&[settle("a", 0)], &[], None);
    pod("Never", &["i"], &["a"])
        .place(Place::Unprepared)
        .deleted(30)
        .stopping(Cause::Deleted, NOW, 30, &[])
        .check(&[], &[Action::Release, Action::Delete], None);
}

#[test]
fn the_deadline_stops_a_pod_and_is_remembered_when_it_is_deleted_later() {
    let case = |deadline: i64| {
        pod("Never", &[], &["a"])
            .with("a", view(0, running()))
            .set("/spec/activeDeadlineSeconds", json!(deadline))
            .set("/spec/terminationGracePeriodSeconds", json!(5))
    };
    case(NOW + 60).check(&[], &[], Some(NOW + 60));
    let order = Action::Order(Stop::new(Cause::DeadlineExceeded, at(NOW), 5));
    case(NOW).check(&[order], &[], None);
    case(NOW).deleted(30).stopping(Cause::DeadlineExceeded, NOW - 1, 5, &["a"]).check(
        &[],
        &[],
        Some(NOW + 4),
    );
}

#[test]
fn a_pod_that_is_gone_is_ended_and_forgotten() {
    let mut case = pod("Always", &[], &["a"]).with("a", view(0, running()));
    case.presence = Presence::Gone;
    case.check(&[Action::Order(Stop::new(Cause::Deleted, at(NOW), 30))], &[], None);
    let mut ended = pod("Always", &[], &["a"])
        .with("a", view(0, exited(How::Code(0), NOW - 2, NOW)))
        .stopping(Cause::Deleted, NOW - 1, 30, &["a"]);
    ended.presence = Presence::Gone;
    ended.check(&[], &[Action::Release, Action::Forget], None);
}

#[test]
fn an_ended_pod_is_left_alone_whatever_is_written_down() {
    let case = || pod("Always", &[], &["a"]).set("/status/phase", json!("Succeeded"));
    case().place(Place::Released).check(&[], &[], None);
    case().place(Place::Unprepared).check(&[], &[Action::Release], None);
    case().place(Place::Released).deleted(30).check(&[], &[Action::Delete], None);
}
