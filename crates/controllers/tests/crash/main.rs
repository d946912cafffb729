//! Crash enumeration: the real controllers on the embedded API and the real datastore service, in one process and with a clock of
//! its own. A run without faults shows every write; then, for each write, the process dies before it and after it, the answer is
//! lost, the request is repeated, and each class of error is met once. After every one of them the world must come to the same
//! rest, and every promise must hold on the recorded history.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod checks;
mod clock;
mod plants;
mod stage;
mod workloads;
mod world;
mod writes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use testkit::faults::{Fault, Faults, Refusal, Seam, Site, Tamper};
use workloads::{Meanwhile, Workload};
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
    /// The requests at which something may go wrong.
    sites: Vec<Site>,
    /// The answered writes of the controllers to the API until the world came to rest, by verb and target; what they tell aside.
    written: BTreeMap<(String, String), usize>,
    fired: bool,
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

/// L1: the expected state is reached, and kept while only drift is looked for: over three drift intervals, of which a world with a
/// fault lives through one.
async fn to_rest(trial: &Trial, world: &mut World, outcome: &mut Outcome) -> anyhow::Result<()> {
    world.run(trial.workload.acts).await?;
    outcome.sites = sites(&world.faults);
    outcome.written = writes::counted(&world.faults, trial.workload.processes);
    expect(trial, world).await?;
    let before = world.faults.recorded();
    let intervals = if trial.fault.is_none() { 3 } else { 1 };
    world.pass(DRIFT * intervals).await?;
    expect(trial, world).await?;
    let mut written = world.faults.history().split_off(before);
    written.retain(|event| {
        event.is_write()
            && !checks::is_tale(event)
            && trial.workload.processes.contains(&event.site.actor.as_str())
    });
    let is_start =
        |event: &&testkit::faults::Event| event.site.verb == "POST" && event.site.target == "terraformruns";
    let (looks, layers) = (written.iter().filter(is_start).count(), world.rest().await?.layers.len());
    anyhow::ensure!(looks <= 8 * layers, "L1: {looks} runs started while nothing changed");
    let count = written.len();
    anyhow::ensure!(count <= 25 * looks + 4, "L7: {count} writes for {looks} looks at a world at rest");
    Ok(())
}

async fn expect(trial: &Trial, world: &World) -> anyhow::Result<()> {
    let rest = world.rest().await?;
    (trial.workload.expect)(&rest, &world.stage).map_err(|why| anyhow::anyhow!("L1: {why}"))
}

/// Every write of the controllers, and their reads of results, on which as much depends.
fn sites(faults: &Faults) -> Vec<Site> {
    faults
        .history()
        .into_iter()
        .filter(|event| event.site.actor == "controllers")
        .filter(|event| event.is_write() || event.site.seam == Seam::Datastore)
        .filter(|event| !checks::is_tale(event))
        .map(|event| event.site)
        .collect()
}

/// How many requests this one begins with that another began with too: up to there both are the same world.
fn shared(one: &(&Trial, &Outcome), other: &(&Trial, &Outcome)) -> usize {
    let alike = |trial: &Trial| {
        let workload = trial.workload;
        let mut layers = (workload.layers)().unwrap();
        // Nothing depends on it before the deletion.
        layers.iter_mut().for_each(|layer| layer.spec.deletion_policy = None);
        (layers, workload.processes, workload.cap, workload.meanwhile)
    };
    if alike(one.0) != alike(other.0) {
        return 0;
    }
    one.1.sites.iter().zip(&other.1.sites).take_while(|(a, b)| a == b).count()
}

/// Every request of the simplest workload meets every fault. Elsewhere the process dies after every other of the chosen requests,
/// and all other faults take turns at those between.
fn faults_at(trial: &Trial, nth: usize, site: &Site) -> Vec<Fault> {
    let mut others = vec![Fault::LoseReply, Fault::CrashBefore, Fault::Drop];
    others.extend(Refusal::ALL.map(Fault::Refuse));
    if site.verb != "GET" {
        others.push(Fault::Repeat);
    }
    if trial.workload.name == workloads::SIMPLEST {
        others.push(Fault::CrashAfter);
        return others;
    }
    if trial.workload.meanwhile != Meanwhile::Nothing {
        return vec![Fault::CrashAfter];
    }
    let turn = nth / 2;
    vec![if nth.is_multiple_of(2) { Fault::CrashAfter } else { others[turn % others.len()] }]
}

/// Worlds side by side; each has its own thread, and mostly waits.
fn each(trials: &[Trial]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Outcome>> = trials.iter().map(|_| Mutex::default()).collect();
    let workers = 4 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let at = trials.iter().position(|other| std::ptr::eq(other, trial)).unwrap();
                    let outcome = tried(trial);
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
fn every_workload_comes_to_rest_without_faults() {
    let (trials, outcomes) = without_faults();
    let mut bad = Vec::new();
    for (trial, outcome) in trials.iter().zip(outcomes) {
        println!("{trial}: {} requests", outcome.sites.len());
        if !outcome.complaints.is_empty() {
            bad.push(format!("{trial}\n    {}", outcome.complaints.join("\n    ")));
        }
        assert!(
            outcome.sites.len() >= 5,
            "{trial}: only {} requests\n{}",
            outcome.sites.len(),
            bad.join("\n")
        );
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn every_promise_holds_after_a_fault_at_every_write() {
    let began = Instant::now();
    let (plain, learned) = without_faults();
    let mut trials = Vec::new();
    let worlds: Vec<(&Trial, &Outcome)> = plain.iter().zip(learned).collect();
    for (at, (trial, outcome)) in worlds.iter().enumerate() {
        let known = worlds[..at].iter().map(|other| shared(&worlds[at], other)).max().unwrap_or(0);
        let chosen = outcome.sites.iter().skip(known).step_by(trial.workload.every);
        for (nth, site) in chosen.enumerate() {
            for fault in faults_at(trial, nth, site) {
                trials.push(Trial {
                    workload: trial.workload,
                    fault: Some((site.clone(), fault)),
                    plant: None,
                });
            }
        }
    }
    let outcomes = each(&trials);
    let mut bad = Vec::new();
    let mut unfired = 0;
    for (trial, outcome) in trials.iter().zip(&outcomes) {
        unfired += usize::from(!outcome.fired);
        if !outcome.complaints.is_empty() {
            bad.push(format!("{trial}\n    {}", outcome.complaints.join("\n    ")));
        }
    }
    println!(
        "{} fault plans over {} workloads in {:.0?}; {unfired} met another order of requests and never fired",
        trials.len(),
        plain.len(),
        began.elapsed()
    );
    assert!(
        bad.is_empty(),
        "{} of {} fault plans broke a promise:\n{}",
        bad.len(),
        trials.len(),
        bad.join("\n")
    );
    assert!(trials.len() >= 500, "only {} fault plans", trials.len());
    assert!(unfired * 50 <= trials.len(), "{unfired} of {} faults never fired", trials.len());
}
