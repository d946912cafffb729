//! Clocks that jump. Who leads is decided by steady clocks alone; the wall clock of a leader only makes it doubt, and a doubt lasts until
//! the next renewal. Both clocks are held by the test, so that a stall of the machine ends no term.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use controllers::Election;
use controllers::leader::{Clock, Moment};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::{CALM, Ground, exists, within, write};

/// Further than any trust reaches.
const JUMP: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug)]
struct Held {
    at: Mutex<Moment>,
    pauses: watch::Sender<u64>,
}

impl Held {
    fn new() -> Arc<Self> {
        let at = Moment { steady: Duration::from_secs(1000), wall: "2026-11-18T12:00:00Z".parse().unwrap() };
        Arc::new(Self { at: Mutex::new(at), pauses: watch::Sender::new(0) })
    }

    fn jump(&self, by: SignedDuration) {
        let mut at = self.at.lock().unwrap();
        at.wall += by;
    }

    /// Time passes as it does.
    fn pass(&self, time: Duration) {
        let mut at = self.at.lock().unwrap();
        at.steady += time;
        at.wall += time;
    }

    /// Time passes while the machine sleeps.
    fn sleep(&self, time: Duration) {
        self.at.lock().unwrap().wall += time;
    }

    fn wall(&self) -> Timestamp {
        self.at.lock().unwrap().wall
    }

    /// Whoever has this clock has looked at the Lease a few times since.
    async fn looks(&self) {
        let mut pauses = self.pauses.subscribe();
        let seen = *pauses.borrow_and_update();
        pauses.wait_for(|count| *count >= seen + 4).await.unwrap();
    }
}

impl Clock for Held {
    fn moment(&self) -> Moment {
        *self.at.lock().unwrap()
    }

    fn pause(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.pauses.send_modify(|count| *count += 1);
        Box::pin(tokio::time::sleep(time))
    }
}

impl Ground {
    fn candidate_with(&self, identity: &str, clock: &Arc<Held>) -> Election {
        self.candidate(identity, CALM).with_clock(Arc::clone(clock) as _)
    }
}

#[tokio::test]
async fn a_leader_whose_wall_clock_jumps_writes_nothing_until_it_renewed_and_leads_on_in_its_term() {
    let ground = Ground::new().await;
    let (clock, others) = (Held::new(), Held::new());
    let mut leader = ground.candidate_with("leader", &clock);
    let mut second = ground.candidate_with("second", &others);
    let leadership = leader.leadership();
    let client = leadership.guard(ground.client());
    assert_eq!(within("the first leads", leader.won()).await, 1);
    for (name, jump) in [("ahead", JUMP), ("back", -JUMP), ("further-back", -JUMP)] {
        write(&client, &format!("before-{name}")).await.unwrap();
        clock.jump(jump);
        assert_eq!(leadership.term(), None, "{name}: it cannot tell how long it slept");
        let doubtful = format!("in-doubt-{name}");
        let refused = write(&client, &doubtful).await.unwrap_err();
        assert!(format!("{refused:?}").contains("NotLeader"), "{refused:?}");
        assert!(!exists(&client, &doubtful).await);
        tokio::select! {
            _ = second.won() => panic!("{name}: two lead"),
            () = leader.lost() => panic!("{name}: a term ended because of a clock"),
            () = within("the leader renews its Lease", clock.looks()) => {}
        }
        assert_eq!(leadership.term(), Some(1), "{name}");
        write(&client, &format!("after-{name}")).await.unwrap();
        let told = ground.renewed().await.unwrap().0;
        assert_eq!(told, clock.wall(), "{name}: the Lease tells the time as its holder sees it");
    }
    ground.server.stop().await;
}

#[tokio::test]
async fn a_follower_whose_wall_clock_jumps_neither_leads_too_early_nor_never() {
    for jump in [JUMP, -JUMP] {
        let ground = Ground::new().await;
        let (clock, others) = (Held::new(), Held::new());
        let mut leader = ground.candidate_with("leader", &clock);
        let mut follower = ground.candidate_with("follower", &others);
        let (first, second) =
            (leader.leadership().guard(ground.client()), follower.leadership().guard(ground.client()));
        assert_eq!(within("the first leads", leader.won()).await, 1);
        let patient = async {
            others.looks().await;
            others.jump(jump);
            others.looks().await;
            others.pass(CALM.duration - Duration::from_secs(1));
            others.looks().await;
        };
        tokio::select! {
            _ = follower.won() => panic!("it leads before the Lease stood still for its whole duration"),
            () = within("the follower looks", patient) => {}
        }
        write(&first, "by-the-first").await.unwrap();
        assert!(write(&second, "by-the-second").await.is_err());

        // The leader stood still for as long, and its own clock tells it so before the other may begin.
        clock.pass(CALM.duration);
        others.pass(Duration::from_secs(1));
        assert!(write(&first, "too-late").await.is_err());
        assert_eq!(within("the follower takes over", follower.won()).await, 2);
        write(&second, "by-the-second").await.unwrap();
        within("the first learns that its term is over", leader.lost()).await;
        assert!(!exists(&first, "too-late").await);
        ground.server.stop().await;
    }
}

#[tokio::test]
async fn a_leader_whose_machine_slept_writes_nothing_when_it_wakes_though_its_steady_clock_stood_still() {
    let ground = Ground::new().await;
    let (clock, others) = (Held::new(), Held::new());
    let mut leader = ground.candidate_with("leader", &clock);
    let mut follower = ground.candidate_with("follower", &others);
    let first = leader.leadership().guard(ground.client());
    assert_eq!(within("the first leads", leader.won()).await, 1);
    tokio::select! {
        _ = follower.won() => panic!("two lead"),
        () = within("the follower has seen the Lease", others.looks()) => {}
    }
    clock.sleep(CALM.duration);
    others.pass(CALM.duration);
    assert_eq!(within("the follower takes over", follower.won()).await, 2);
    assert!(write(&first, "stale").await.is_err());
    within("the first learns that its term is over", leader.lost()).await;
    assert!(!exists(&first, "stale").await);
    ground.server.stop().await;
}

#[tokio::test]
async fn a_leader_that_renewed_too_late_leads_on_if_nobody_took_its_lease_and_whatever_its_wall_clock_says() {
    let ground = Ground::new().await;
    let clock = Held::new();
    let mut leader = ground.candidate_with("leader", &clock);
    assert_eq!(within("it leads", leader.won()).await, 1);
    // So far that no renewal made it in time.
    clock.pass(CALM.duration);
    clock.jump(-JUMP * 2);
    let leadership = leader.leadership();
    let led = async {
        tokio::select! {
            () = leader.lost() => leader.won().await,
            () = clock.looks() => leadership.term().unwrap_or_default(),
        }
    };
    assert_eq!(within("it leads again", led).await, 1, "nobody else held the Lease meanwhile");
    ground.server.stop().await;
}
