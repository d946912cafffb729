//! When a repository is looked at, and what its status says.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::world::{commit, settings, world};
use api::condition;
use api::repository::{LayerCounts, RepositoryState};
use api::text::{RefName, Span};
use api::{TerraformRepository, TerraformRepositoryStatus, annotation};
use engine::repository::{Decision, Effect, Heads, Look, Observed, count, decide};
use engine::webhook::{Delivery, Noted, note};
use engine::{Settings, Wake, later};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

struct Scene {
    now: Timestamp,
    repository: TerraformRepository,
    wanted: BTreeSet<RefName>,
    layers: LayerCounts,
    look: Option<Look>,
    settings: Settings,
}

fn scene() -> Scene {
    let world = world();
    Scene {
        now: world.now,
        repository: world.repository.unwrap(),
        wanted: [RefName::new("main").unwrap()].into(),
        layers: LayerCounts::default(),
        look: None,
        settings: settings(),
    }
}

impl Scene {
    fn step(&mut self) -> Decision {
        let decision = decide(&Observed {
            now: self.now,
            repository: &self.repository,
            wanted: &self.wanted,
            layers: self.layers,
            look: self.look.as_ref(),
            looking: false,
            jitter: 0.5,
            settings: &self.settings,
        });
        self.repository.status = Some(decision.status.clone());
        decision
    }

    fn found(&mut self, refs: Result<&[&str], &str>) {
        let found = refs
            .map(|names| Heads {
                default_branch: RefName::new("main").ok(),
                refs: names.iter().map(|name| ((*name).to_owned(), commit('a'))).collect(),
            })
            .map_err(str::to_owned);
        self.look = Some(Look { at: self.now, found, answers: None, asked: None });
    }

    fn status(&self) -> &TerraformRepositoryStatus {
        self.repository.status.as_ref().unwrap()
    }

    fn holds(&self, kind: &str) -> bool {
        condition::is_true(&self.status().conditions, kind)
    }

    fn ready(&self) -> (&str, &str) {
        let ready = condition::find(&self.status().conditions, "Ready").unwrap();
        (&ready.status, &ready.reason)
    }
}

#[test]
fn it_is_unknown_and_reconciling_until_it_was_looked_at() {
    let mut scene = scene();
    assert_eq!(scene.step().effects, [Effect::Look { answers: None, asked: None }]);
    assert_eq!(scene.ready(), ("Unknown", "NotLooked"));
    assert!(scene.holds("Reconciling") && !scene.holds("Stalled"));
    scene.found(Ok(&["refs/heads/main"]));
    let settled = scene.step();
    assert_eq!(scene.ready(), ("True", "Synced"));
    assert_eq!(scene.status().state, Some(RepositoryState::Synced));
    assert!(!scene.holds("Reconciling") && !scene.holds("Stalled"));
    assert_eq!(settled.wake, Wake::At(later(scene.now, Duration::from_secs(63))), "a minute and its jitter");
}

#[test]
fn the_default_branch_is_known_until_another_repository_is_named() {
    let mut scene = scene();
    scene.step();
    assert_eq!(scene.status().default_branch, None);
    scene.found(Ok(&["refs/heads/main"]));
    scene.step();
    let main = RefName::new("main").ok();
    assert_eq!(scene.status().default_branch, main);
    scene.found(Err("connection refused"));
    scene.step();
    assert_eq!(scene.status().default_branch, main, "what was seen stays");
    // As after a start of the controllers, and then with another URL.
    scene.look = None;
    scene.step();
    assert_eq!(scene.status().default_branch, main);
    scene.repository.metadata.generation = Some(2);
    scene.step();
    assert_eq!(scene.status().default_branch, None);
}

#[test]
fn a_look_that_finds_nothing_new_writes_nothing() {
    let mut scene = scene();
    scene.found(Ok(&["refs/heads/main"]));
    scene.step();
    let first = scene.status().clone();
    scene.now = later(scene.now, Duration::from_secs(100));
    scene.found(Ok(&["refs/heads/main"]));
    scene.step();
    assert_eq!(scene.status(), &first);
}

#[test]
fn what_cannot_be_read_stalls_and_is_too_old_after_a_while() {
    let mut scene = scene();
    scene.found(Ok(&["refs/heads/main"]));
    scene.step();
    let mut too_old = Vec::new();
    for _ in 0..4 {
        scene.now = later(scene.now, Duration::from_secs(63));
        scene.found(Err("connection refused"));
        scene.step();
        assert_eq!(scene.ready(), ("False", "Unreadable"));
        assert!(scene.holds("Stalled") && scene.holds("HasLastSyncFailed"));
        too_old.push(scene.holds("IsLastSyncTooOld"));
    }
    assert_eq!(too_old, [false, false, true, true]);
    assert_eq!(scene.status().branches[0].latest_rev, Some(commit('a')), "what was seen stays");
    scene.found(Ok(&["refs/heads/main"]));
    scene.step();
    assert!(!scene.holds("IsLastSyncTooOld") && !scene.holds("Stalled"));
}

#[test]
fn a_missing_branch_is_named_and_a_suspended_repository_is_left_alone() {
    let mut scene = scene();
    scene.found(Ok(&["refs/heads/other"]));
    scene.step();
    assert_eq!(scene.ready(), ("False", "BranchMissing"));
    assert!(scene.holds("Stalled"));
    scene.repository.spec.suspend = true;
    scene.now = later(scene.now, Duration::from_secs(1000));
    let decision = scene.step();
    assert!(decision.effects.is_empty());
    assert_eq!(decision.wake, Wake::OnChange);
    assert_eq!(scene.ready(), ("False", "Suspended"));
    assert!(!scene.holds("Stalled"));
}

#[test]
fn a_person_who_asks_for_a_look_gets_one_now_and_is_told() {
    let mut scene = scene();
    scene.found(Ok(&["refs/heads/main"]));
    assert!(scene.step().effects.is_empty(), "it was looked at a moment ago");
    let ask = |scene: &mut Scene, text: &str| {
        let annotations = scene.repository.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::SYNC.to_owned(), text.to_owned());
    };
    ask(&mut scene, "1");
    let looks = [Effect::Look { answers: None, asked: Some("1".to_owned()) }];
    assert_eq!(scene.step().effects, looks);
    // One that was under way before may have missed what this is about.
    scene.found(Ok(&["refs/heads/main"]));
    assert_eq!(scene.step().effects, looks);
    assert_eq!(scene.status().last_sync, None);
    // It is answered by one that fails too, and then the poll goes on.
    scene.found(Err("connection refused"));
    scene.look.as_mut().unwrap().asked = Some("1".to_owned());
    let answered = scene.step();
    assert_eq!((answered.effects, scene.status().last_sync.as_deref()), (Vec::new(), Some("1")));
    // A later look, and another process, know it from the status.
    scene.found(Ok(&["refs/heads/main"]));
    assert!(scene.step().effects.is_empty());
    ask(&mut scene, "2");
    scene.repository.spec.suspend = true;
    assert!(scene.step().effects.is_empty(), "nobody looks at a suspended one");
    scene.repository.spec.suspend = false;
    assert_eq!(scene.step().effects, [Effect::Look { answers: None, asked: Some("2".to_owned()) }]);
}

#[test]
fn layers_are_counted_when_the_repository_is_looked_at_and_not_between() {
    let mut scene = scene();
    scene.layers = LayerCounts { total: 2, ready: 1, drifted: 0, failed: 1 };
    assert_eq!(scene.step().effects, [Effect::Look { answers: None, asked: None }]);
    scene.found(Ok(&["refs/heads/main"]));
    let settled = scene.step();
    assert_eq!(settled.status.layers, Some(scene.layers));

    scene.layers = LayerCounts { total: 2, ready: 2, drifted: 1, failed: 0 };
    assert_eq!(scene.step().status, settled.status, "a layer's change writes nothing");
    let Wake::At(due) = settled.wake else { panic!("{:?}", settled.wake) };
    scene.now = due;
    let next = scene.step();
    assert_eq!(
        (next.effects, next.status.layers),
        (vec![Effect::Look { answers: None, asked: None }], Some(scene.layers))
    );
}

#[test]
fn layers_are_counted_by_their_conditions() {
    let layer = |conditions: &[(&str, &str)], failures: u32| {
        let mut layer = world().layer;
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status)| {
                serde_json::json!({ "type": kind, "status": status, "reason": "R", "message": "",
                                    "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        let status = serde_json::json!({ "conditions": conditions, "consecutiveFailures": failures });
        layer.status = Some(serde_json::from_value(status).unwrap());
        layer
    };
    let unseen = world().layer;
    let layers = [
        unseen,
        layer(&[("Ready", "True")], 0),
        layer(&[("Ready", "True"), ("Drifted", "False")], 0),
        layer(&[("Ready", "False"), ("Drifted", "True")], 0),
        layer(&[("Ready", "False"), ("Drifted", "True"), ("Stalled", "True")], 3),
        layer(&[("Ready", "False")], 1),
    ];
    assert_eq!(count(&layers), LayerCounts { total: 6, ready: 2, drifted: 2, failed: 2 });
}

#[test]
fn a_look_by_a_clock_that_was_wrong_holds_up_no_poll() {
    let mut scene = scene();
    scene.now = later(scene.now, Duration::from_secs(3600));
    scene.found(Ok(&["refs/heads/main"]));
    assert!(scene.step().effects.is_empty());
    // It was an hour ahead, and is set right.
    scene.now = world().now;
    assert_eq!(scene.step().effects, [Effect::Look { answers: None, asked: None }]);
    scene.found(Ok(&["refs/heads/main"]));
    let settled = scene.step();
    assert!(settled.effects.is_empty());
    assert_eq!(settled.wake, Wake::At(later(scene.now, Duration::from_secs(63))));
}

#[derive(Debug, Clone)]
enum Happening {
    /// Seconds, by which the clock may also be set back.
    Pass(i64),
    /// The remote has another commit.
    Push(char),
    /// The remote answers, or does not.
    Answers(bool),
    /// It has branch `main`, or none at all.
    Branches(bool),
    /// Layers follow one more branch, or only `main`.
    Follow(bool),
    Suspend(bool),
    Interval(u64),
    /// A webhook tells of the remote.
    Deliver,
    /// A person asks for a look, by one of a few texts.
    Sync(u8),
    /// The controllers start anew.
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (-100_000_i64..100_000).prop_map(Happening::Pass),
        (0_i64..100).prop_map(Happening::Pass),
        prop::char::range('a', 'c').prop_map(Happening::Push),
        any::<bool>().prop_map(Happening::Answers),
        any::<bool>().prop_map(Happening::Branches),
        any::<bool>().prop_map(Happening::Follow),
        any::<bool>().prop_map(Happening::Suspend),
        (1_u64..100_000).prop_map(Happening::Interval),
        Just(Happening::Deliver),
        (0_u8..3).prop_map(Happening::Sync),
        Just(Happening::Restart),
    ]
}

/// The remote of a scene, and whether it answers.
struct Remote {
    head: char,
    answers: bool,
    has_main: bool,
}

impl Scene {
    fn happen(&mut self, what: &Happening, remote: &mut Remote) {
        match what {
            Happening::Pass(seconds) => self.now += SignedDuration::from_secs(*seconds),
            Happening::Push(letter) => remote.head = *letter,
            Happening::Answers(answers) => remote.answers = *answers,
            Happening::Branches(has_main) => remote.has_main = *has_main,
            Happening::Follow(more) => {
                let names = if *more { &["main", "next"][..] } else { &["main"] };
                self.wanted = names.iter().map(|name| RefName::new(*name).unwrap()).collect();
            }
            Happening::Suspend(suspend) => self.repository.spec.suspend = *suspend,
            Happening::Interval(seconds) => {
                self.repository.spec.poll_interval = Some(Span::from_secs(*seconds));
            }
            Happening::Deliver => {
                let heads = [("refs/heads/main".to_owned(), Some(commit(remote.head)))];
                let delivery = Delivery { host: "gitea", heads: &heads };
                if let Noted::Record(webhook) = note(&self.repository, &delivery, self.now) {
                    self.repository.status.get_or_insert_default().webhook = Some(webhook);
                }
            }
            Happening::Sync(text) => {
                let annotations = self.repository.metadata.annotations.get_or_insert_default();
                annotations.insert(annotation::SYNC.to_owned(), text.to_string());
            }
            Happening::Restart => self.look = None,
        }
    }

    /// What the desk does: a look that succeeded answers the wish that it was begun for.
    fn look(&mut self, answers: Option<Timestamp>, asked: Option<String>, remote: &Remote) {
        let before = self.look.as_ref().and_then(|look| look.answers);
        self.found(if remote.answers { Ok(&[]) } else { Err("connection refused") });
        let look = self.look.as_mut().unwrap();
        look.answers = if remote.answers { answers.or(before) } else { before };
        look.asked = asked;
        if let (Ok(heads), true) = (&mut look.found, remote.has_main) {
            heads.refs.insert("refs/heads/main".to_owned(), commit(remote.head));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens and whatever the clock says: one look at most, after which nothing is wanted, nothing is written, and the next look is
    /// due within an interval.
    #[test]
    fn after_its_look_a_repository_wants_nothing_and_writes_nothing(happenings in prop::collection::vec(happening(), 0..40)) {
        let (mut scene, mut remote) = (scene(), Remote { head: 'a', answers: true, has_main: true });
        for what in happenings {
            scene.happen(&what, &mut remote);
            let decision = scene.step();
            prop_assert!(decision.effects.len() <= 1);
            for Effect::Look { answers, asked } in decision.effects {
                prop_assert!(!scene.repository.spec.suspend, "nothing is asked while it is suspended");
                scene.look(answers, asked, &remote);
            }
            let settled = scene.step();
            prop_assert_eq!(&settled.effects, &[], "wants more after its own effects");
            match settled.wake {
                Wake::OnChange => prop_assert!(scene.repository.spec.suspend, "nobody would look again"),
                Wake::At(at) => {
                    let interval = scene.repository.spec.poll_interval.map_or(scene.settings.poll_interval, |span| span.get());
                    let last = later(later(scene.now, interval.mul_f64(1.2)), interval.mul_f64(1.2));
                    prop_assert!(scene.now < at && at <= last, "due at {at}, and it is {}", scene.now);
                }
            }
            let again = scene.step();
            prop_assert_eq!(again, settled, "a second look at it says something else");
        }
    }
}
