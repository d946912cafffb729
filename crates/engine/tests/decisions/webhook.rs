//! What a delivery of a webhook leads to, and when the remote is asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::{settings, world};
use api::TerraformRepository;
use api::repository::{LayerCounts, WebhookStatus};
use api::text::{CommitId, RefName, Span};
use engine::repository::{Effect, Heads, Look, Observed, decide};
use engine::webhook::{Delivery, Noted, SPACING, note};
use engine::{Wake, later};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

const MAIN: &str = "refs/heads/main";

fn commit(number: u64) -> CommitId {
    CommitId::new(format!("{number:040x}")).unwrap()
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A repository that is polled once an hour, its remote, and the two who write to it.
struct Scene {
    now: Timestamp,
    /// How far the controllers' clock is ahead of the service's.
    skew: SignedDuration,
    repository: TerraformRepository,
    /// The commit of the remote's branch.
    head: u64,
    look: Option<Look>,
    /// A look under way: what it will find, and when it is over.
    looking: Option<(Look, Timestamp)>,
    reachable: bool,
    writes: u32,
    looks: u32,
    wake: Wake,
}

impl Scene {
    fn new() -> Self {
        let mut repository = world().repository.unwrap();
        repository.spec.poll_interval = Some(Span::from_secs(3600));
        let mut scene = Self {
            now: world().now,
            skew: SignedDuration::ZERO,
            repository,
            head: 1,
            look: None,
            looking: None,
            reachable: true,
            writes: 0,
            looks: 0,
            wake: Wake::OnChange,
        };
        scene.pass(seconds(60));
        assert_eq!((scene.known(), scene.looks), (Some(commit(1)), 1));
        scene.looks = 0;
        scene
    }

    fn known(&self) -> Option<CommitId> {
        let status = self.repository.status.as_ref()?;
        status.branches.iter().find(|branch| branch.name == "main")?.latest_rev.clone()
    }

    fn webhook(&self) -> Option<&WebhookStatus> {
        self.repository.status.as_ref()?.webhook.as_ref()
    }

    /// One delivery, which says that the branch is at this commit.
    fn deliver(&mut self, number: u64) -> Noted {
        let heads = [(MAIN.to_owned(), (number > 0).then(|| commit(number)))];
        let noted = note(&self.repository, &Delivery { host: "github", heads: &heads }, self.now);
        if let Noted::Record(webhook) = &noted {
            // An API keeps times to the second.
            let kept = serde_json::from_value(serde_json::to_value(webhook).unwrap()).unwrap();
            self.repository.status.as_mut().unwrap().webhook = Some(kept);
            self.writes += 1;
        }
        noted
    }

    /// What the controllers do now, as the desk does it.
    fn work(&mut self) {
        let now = self.now.checked_add(self.skew).unwrap();
        if let Some((mut look, _)) = self.looking.take_if(|(_, end)| *end <= now) {
            if look.found.is_err() {
                look.answers = self.look.as_ref().and_then(|before| before.answers);
            }
            self.look = Some(look);
        }
        let decision = decide(&Observed {
            now,
            repository: &self.repository,
            wanted: &BTreeSet::from([RefName::new("main").unwrap()]),
            layers: LayerCounts::default(),
            look: self.look.as_ref(),
            looking: self.looking.is_some(),
            jitter: 0.5,
            settings: &settings(),
        });
        self.repository.status = Some(decision.status);
        self.wake = decision.wake;
        for Effect::Look { answers, asked } in decision.effects {
            let refs = BTreeMap::from([(MAIN.to_owned(), commit(self.head))]);
            let heads = Heads { default_branch: None, refs };
            let found = if self.reachable { Ok(heads) } else { Err("connection refused".to_owned()) };
            // It sees what is there when it begins, and takes a while.
            self.looking =
                Some((Look { at: now, found, answers, asked }, later(now, Duration::from_millis(1500))));
            self.looks += 1;
        }
    }

    /// Time passes in small steps, in which the controllers work.
    fn pass(&mut self, time: Duration) {
        let end = later(self.now, time);
        while self.now < end {
            self.work();
            self.now = later(self.now, Duration::from_millis(250));
        }
    }
}

#[test]
fn a_delivery_has_the_remote_asked_at_once_and_not_at_the_next_poll() {
    let mut scene = Scene::new();
    scene.head = 2;
    scene.pass(seconds(60));
    assert_eq!(scene.known(), Some(commit(1)), "the poll is an hour away");
    assert!(matches!(scene.deliver(2), Noted::Record(_)));
    scene.pass(seconds(5));
    assert_eq!((scene.known(), scene.looks), (Some(commit(2)), 1));
    assert!(matches!(scene.wake, Wake::At(at) if at > later(scene.now, seconds(3000))), "{:?}", scene.wake);
    assert_eq!(scene.webhook().unwrap().host, "github");
    // Sent again it says nothing new, and so does every poll.
    assert_eq!(scene.deliver(2), Noted::Known);
    let status = scene.repository.status.clone();
    scene.pass(seconds(4000));
    assert_eq!((scene.looks, &scene.repository.status), (2, &status));
}

#[test]
fn a_flood_costs_one_write_and_one_look_in_a_while() {
    let mut scene = Scene::new();
    let begun = scene.now;
    while scene.now < later(begun, seconds(100)) {
        // Somebody repeats an old delivery, and one of a branch that is gone.
        scene.deliver(7);
        scene.deliver(0);
        scene.pass(Duration::from_millis(250));
    }
    scene.pass(seconds(60));
    let most = u32::try_from(100 / SPACING.as_secs()).unwrap() + 2;
    assert!(scene.writes <= most && scene.looks <= scene.writes, "{} {}", scene.writes, scene.looks);
}

#[test]
fn what_is_said_during_a_look_leads_to_another() {
    let mut scene = Scene::new();
    scene.head = 2;
    scene.deliver(2);
    scene.work();
    assert!(scene.looking.is_some());
    // Pushed and told while the look that cannot have seen it is under way.
    scene.head = 3;
    assert!(matches!(scene.deliver(3), Noted::Record(_)));
    scene.pass(seconds(2));
    assert_eq!(scene.known(), Some(commit(2)));
    scene.pass(seconds(15));
    assert_eq!((scene.known(), scene.looks), (Some(commit(3)), 2));
}

#[test]
fn a_remote_that_cannot_be_read_is_asked_again_without_waiting_for_the_poll() {
    let mut scene = Scene::new();
    scene.head = 2;
    scene.reachable = false;
    scene.deliver(2);
    scene.pass(seconds(30));
    assert_eq!((scene.known(), scene.looks), (Some(commit(1)), 1));
    scene.reachable = true;
    scene.pass(seconds(60));
    assert_eq!((scene.known(), scene.looks), (Some(commit(2)), 2));
    scene.pass(seconds(600));
    assert_eq!(scene.looks, 2, "answered once");
}

#[test]
fn a_suspended_repository_keeps_the_wish_until_it_goes_on() {
    let mut scene = Scene::new();
    scene.repository.spec.suspend = true;
    scene.head = 2;
    scene.deliver(2);
    scene.pass(seconds(60));
    assert_eq!(scene.looks, 0);
    scene.repository.spec.suspend = false;
    scene.pass(seconds(5));
    assert_eq!(scene.known(), Some(commit(2)));
}

#[test]
fn a_wish_of_a_wrong_clock_holds_nobody_up() {
    let mut scene = Scene::new();
    scene.head = 2;
    scene.now = later(scene.now, seconds(86_400));
    scene.deliver(9);
    scene.now = scene.now.checked_sub(SignedDuration::from_hours(24)).unwrap();
    assert!(matches!(scene.deliver(2), Noted::Record(_)), "it does not cover what comes now");
    scene.pass(seconds(15));
    assert_eq!(scene.known(), Some(commit(2)));
    // The controllers' clock is the one that is wrong.
    scene.skew = SignedDuration::from_secs(-300);
    scene.head = 3;
    scene.deliver(3);
    scene.pass(seconds(15));
    assert_eq!(scene.known(), Some(commit(3)));
}

#[derive(Debug, Clone)]
enum Happening {
    Push,
    /// One of the deliveries so far, again or for the first time.
    Deliver(prop::sample::Index),
    Pass(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        Just(Happening::Push),
        any::<prop::sample::Index>().prop_map(Happening::Deliver),
        (0..8000_u64).prop_map(Happening::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// However often and in whatever order deliveries arrive, once each has arrived the newest commit is known, long before the next poll.
    #[test]
    fn any_order_and_number_of_deliveries_ends_at_the_head(
        story in prop::collection::vec(happening(), 1..40),
        order in any::<prop::sample::Index>(),
        skew in -2000..2000_i64,
    ) {
        let mut scene = Scene::new();
        scene.skew = SignedDuration::from_millis(skew);
        let mut missing = BTreeSet::new();
        for happening in story {
            match happening {
                Happening::Push => {
                    scene.head += 1;
                    missing.insert(scene.head);
                }
                Happening::Deliver(which) => {
                    let number = 1 + u64::try_from(which.index(usize::try_from(scene.head).unwrap())).unwrap();
                    missing.remove(&number);
                    scene.deliver(number);
                }
                Happening::Pass(millis) => scene.pass(Duration::from_millis(millis)),
            }
        }
        let mut late: Vec<u64> = missing.into_iter().collect();
        if !late.is_empty() {
            let turn = order.index(late.len());
            late.rotate_left(turn);
        }
        for number in late {
            scene.deliver(number);
        }
        scene.pass(seconds(40));
        prop_assert_eq!(scene.known(), Some(commit(scene.head)));
        prop_assert!(scene.looks <= scene.writes, "{} {}", scene.looks, scene.writes);
    }
}
