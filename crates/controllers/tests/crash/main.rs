//! Crash enumeration: the real controllers on the embedded API and the real datastore service, in one process and with a clock of
//! its own. A run of a workload without faults shows its writes; then, for each write, one world for each fault that it may meet
//! (`enumeration` says which, and which writes are left to another workload). After it the world must come to the same rest, and
//! the promises of `checks` must hold on the recorded history. With `CRASH_WORKLOAD` set to the name of a workload, only its faults
//! are met.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod checks;
mod clock;
mod enumeration;
mod plants;
mod stage;
mod workloads;
mod world;
mod writes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use enumeration::{Step, Turns, faults_at, shared};
use testkit::faults::{Event, Fault, Faults, Seam, Site, Tamper};
use workloads::Workload;
use world::{DRIFT, World};

/// One world to live through.
#[derive(Debug)]
pub struct Trial {
    workload: Workload,
    fault: Option<(Site, Fault)>,
    plant: Option<(&'static str, Arc<dyn Tamper>)>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    complaints: Vec<String>,
    /// What happened until the world came to rest, with the requests at which something may go wrong.
    steps: Vec<Step>,
    /// The answered writes of the controllers to the API until the world came to rest, by verb and target; what they tell aside.
    written: BTreeMap<(String, String), usize>,
    fired: bool,
}

impl Outcome {
    fn sites(&self) -> Vec<&Site> {
        enumeration::sites(&self.steps).map(|(site, _)| site).collect()
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fault {
            Some((site, fault)) => write!(f, "{}: {fault:?} at {site}", self.workload.name),
            None => write!(f, "{}: no fault", self.workload.name),
        }
    }
}

/// Lives through a world on this thread.
pub fn tried(trial: &Trial) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(live(trial))
}

async fn live(trial: &Trial) -> Outcome {
    let faults = Faults::new();
    if let Some((site, fault)) = &trial.fault {
        faults.at(site.clone(), *fault);
    }
    if let Some((actor, plant)) = &trial.plant {
        faults.tamper(actor, Arc::clone(plant));
    }
    let mut world = match World::start(&trial.workload, faults.clone()).await {
        Ok(world) => world,
        Err(error) => return Outcome { complaints: vec![format!("start: {error:#}")], ..Outcome::default() },
    };
    let mut outcome = Outcome::default();
    if let Err(error) = to_rest(trial, &mut world, &mut outcome).await {
        outcome.complaints.push(format!("{error:#}"));
    }
    outcome.complaints.extend(checks::all(&trial.workload, &world));
    outcome.fired = !faults.fired().is_empty();
    world.end().await;
    outcome
}

/// L1: the expected state is reached, and nothing happens by itself any more but looks for drift. A world without faults is then
/// followed through three drift intervals, one in which a process died after a write through one.
async fn to_rest(trial: &Trial, world: &mut World, outcome: &mut Outcome) -> anyhow::Result<()> {
    world.run(trial.workload.acts).await?;
    outcome.steps = steps(world);
    outcome.written = writes::counted(&world.faults, trial.workload.processes);
    expect(trial, world).await?;
    let before = world.faults.recorded();
    let intervals = match trial.fault {
        None => 3,
        Some((_, Fault::CrashAfter)) => 1,
        Some(_) => 0,
    };
    if intervals == 0 {
        return Ok(());
    }
    world.pass(DRIFT * intervals).await?;
    // What began at the end of that time is not judged half done.
    world.run(&[]).await?;
    expect(trial, world).await?;
    let layers = world.rest().await?.layers.len();
    let is_ours = |event: &&Event| {
        event.is_write()
            && !checks::is_tale(event)
            && !checks::is_election(event)
            && trial.workload.processes.contains(&event.site.actor.as_str())
    };
    let is_start = |event: &&Event| event.site.verb == "POST" && event.site.target == "terraformruns";
    let (count, looks) = world.faults.read(|history| {
        let written = || history[before..].iter().filter(is_ours);
        (written().count(), written().filter(is_start).count())
    });
    anyhow::ensure!(looks <= 8 * layers, "L1: {looks} runs started while nothing changed");
    anyhow::ensure!(count <= 25 * looks + 4, "L7: {count} writes for {looks} looks at a world at rest");
    Ok(())
}

async fn expect(trial: &Trial, world: &World) -> anyhow::Result<()> {
    let rest = world.rest().await?;
    (trial.workload.expect)(&rest, &world.stage).map_err(|why| anyhow::anyhow!("L1: {why}"))
}

/// Every write of the controllers and their reads of results, on which as much depends, between what others did.
fn steps(world: &World) -> Vec<Step> {
    let mut steps: Vec<(usize, Step)> = Vec::new();
    steps.extend(world.acted.iter().map(|(at, act)| (*at, Step::Acted(*act))));
    for (at, exec) in world.stage.execs.iter().enumerate() {
        steps.extend(exec.end.map(|end| (end, Step::Ended(world.stage.verdict(at)))));
    }
    let is_site = |event: &Event| {
        event.site.actor == "controllers"
            && (event.is_write() || event.site.seam == Seam::Datastore)
            && !checks::is_tale(event)
    };
    world.faults.read(|history| {
        let sites = history.iter().enumerate().filter(|(_, event)| is_site(event));
        steps.extend(sites.map(|(at, event)| (at, Step::Request(event.site.clone()))));
    });
    // What ended before a request was sent stands before it.
    steps.sort_by_key(|(at, step)| (*at, matches!(step, Step::Request(_))));
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Under load two tasks may take turns in another order than before, and a request that was learned is then not sent: such a world
/// is lived through again.
fn tried_until_fired(trial: &Trial) -> Outcome {
    let mut outcome = tried(trial);
    for _ in 0..AGAIN {
        if outcome.fired || trial.fault.is_none() || !outcome.complaints.is_empty() {
            break;
        }
        outcome = tried(trial);
    }
    outcome
}

const AGAIN: usize = 3;

/// Worlds side by side; each has its own thread, and mostly waits.
fn each(trials: &[Trial]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Outcome>> = trials.iter().map(|_| Mutex::default()).collect();
    let workers = 4 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    let Some(trial) = trials.get(at) else { return };
                    let outcome = tried_until_fired(trial);
                    if !outcome.complaints.is_empty() {
                        eprintln!("{trial}\n    {}", outcome.complaints.join("\n    "));
                    }
                    *outcomes[at].lock().unwrap() = outcome;
                    if (at + 1).is_multiple_of(100) {
                        eprintln!("{} of {} worlds", at + 1, trials.len());
                    }
                }
            });
        }
    });
    outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap()).collect()
}

/// Every workload as it goes when nothing goes wrong. Lived through once, whoever asks.
fn without_faults() -> &'static (Vec<Trial>, Vec<Outcome>) {
    static LIVED: OnceLock<(Vec<Trial>, Vec<Outcome>)> = OnceLock::new();
    LIVED.get_or_init(|| {
        let trials: Vec<Trial> = workloads::ALL
            .iter()
            .map(|workload| Trial { workload: *workload, fault: None, plant: None })
            .collect();
        let outcomes = each(&trials);
        (trials, outcomes)
    })
}

#[test]
fn each_workload_comes_to_rest_without_faults() {
    let (trials, outcomes) = without_faults();
    let mut bad = Vec::new();
    for (trial, outcome) in trials.iter().zip(outcomes) {
        let requests = outcome.sites().len();
        println!("{trial}: {requests} requests");
        if !outcome.complaints.is_empty() {
            bad.push(format!("{trial}\n    {}", outcome.complaints.join("\n    ")));
        }
        assert!(requests >= 5, "{trial}: only {requests} requests\n{}", bad.join("\n"));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The fault plans of one workload.
struct Share {
    name: &'static str,
    requests: usize,
    /// Left to an earlier workload that begins in the same way.
    left: usize,
    plans: std::ops::Range<usize>,
}

/// The fault plans of all workloads, one after the other.
fn planned() -> (Vec<Trial>, Vec<Share>) {
    let (plain, learned) = without_faults();
    let (mut trials, mut shares, mut turns) = (Vec::new(), Vec::new(), Turns::default());
    let worlds: Vec<(&Workload, &[Step])> =
        plain.iter().zip(learned).map(|(trial, outcome)| (&trial.workload, &*outcome.steps)).collect();
    #[expect(clippy::disallowed_methods, reason = "a test has no command line of ours to be told on")]
    let only = std::env::var("CRASH_WORKLOAD").ok();
    for (at, outcome) in learned.iter().enumerate() {
        if only.as_ref().is_some_and(|only| only != plain[at].workload.name) {
            continue;
        }
        let left = worlds[..at].iter().map(|other| shared(worlds[at], *other)).max().unwrap_or(0);
        let (workload, from) = (plain[at].workload, trials.len());
        let met = |(site, _): &(&Site, _)| workload.meets.includes(&site.target);
        for (site, before) in enumeration::sites(&outcome.steps).skip(left).filter(met) {
            for fault in faults_at(&workload, site, before, &mut turns) {
                trials.push(Trial { workload, fault: Some((site.clone(), fault)), plant: None });
            }
        }
        let requests = outcome.sites().len();
        shares.push(Share { name: workload.name, requests, left, plans: from..trials.len() });
    }
    (trials, shares)
}

/// A change that makes the enumeration find less to break has broken the enumeration.
const FEWEST: usize = 500;

#[test]
fn the_promises_hold_after_a_fault_at_each_write_of_each_workload() {
    let began = Instant::now();
    let (trials, shares) = planned();
    let outcomes = each(&trials);
    let mut bad = Vec::new();
    for (trial, outcome) in trials.iter().zip(&outcomes) {
        if !outcome.complaints.is_empty() {
            bad.push(format!("{trial}\n    {}", outcome.complaints.join("\n    ")));
        }
    }
    let unfired = |plans: std::ops::Range<usize>| outcomes[plans].iter().filter(|world| !world.fired).count();
    for Share { name, requests, left, plans } in &shares {
        println!(
            "{name}: {} fault plans at {} of {requests} requests, {left} left to a workload that begins like it; \
             {} met another order of requests and never fired",
            plans.len(),
            requests - left,
            unfired(plans.clone()),
        );
    }
    println!("{} fault plans over {} workloads in {:.0?}", trials.len(), shares.len(), began.elapsed());
    assert!(shares.len() == 1 || trials.len() >= FEWEST, "{} fault plans are too few", trials.len());
    assert!(
        bad.is_empty(),
        "{} of {} fault plans broke a promise:\n{}",
        bad.len(),
        trials.len(),
        bad.join("\n")
    );
    let unfired = unfired(0..trials.len());
    assert!(unfired * 100 <= trials.len(), "{unfired} of {} faults never fired", trials.len());
}
