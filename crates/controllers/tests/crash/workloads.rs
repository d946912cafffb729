//! What the controllers are given to do. A workload says what is declared, how executions end, what people do when all is
//! quiet, and what must be true in the end, whatever happened on the way.

use anyhow::Result;
use api::TerraformLayer;
use api::layer::LayerState;
use api::run::Action;
use testkit::objects::{self, Remedied};

use crate::stage::{Stage, Verdict};
use crate::world::{Rest, commit};

#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Somebody approves each layer's newest plan.
    Approve,
    /// A commit arrives, and is seen.
    Push,
    /// The infrastructure changes by itself, and that is seen.
    Drift,
    /// A runner that was given up writes once more.
    Haunt,
}

#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub layers: fn() -> Result<Vec<TerraformLayer>>,
    pub processes: &'static [&'static str],
    pub verdict: fn(Action, usize) -> Verdict,
    pub acts: &'static [Act],
    pub expect: fn(&Rest, &Stage) -> Result<(), String>,
}

/// The workload whose every request meets every fault.
pub const SIMPLEST: &str = "plan and apply";

const ONE: &[&str] = &["controllers"];

fn asking() -> Result<Vec<TerraformLayer>> {
    Ok(vec![objects::layer("db", "code", "db")?])
}

fn automatic() -> Result<Vec<TerraformLayer>> {
    Ok(vec![objects::layer("db", "code", "db")?.auto_apply().max_retries(2)])
}

/// Two root modules whose code names the same backend: that they have one state is known only once they are planned.
fn sharing() -> Result<Vec<TerraformLayer>> {
    Ok(vec![
        objects::layer("left", "code", "elsewhere/left")?.auto_apply(),
        objects::layer("right", "code", "elsewhere/right")?.auto_apply(),
    ])
}

pub const ALL: &[Workload] = &[
    Workload {
        name: SIMPLEST,
        layers: automatic,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
    },
    Workload {
        name: "plan only",
        layers: asking,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[],
        expect: |rest, stage| {
            all_in(rest, LayerState::ApplyNeeded)?;
            equal("applies", stage.applies(), 0)
        },
    },
    Workload {
        name: "failing plans",
        layers: automatic,
        processes: ONE,
        verdict: |action, nth| match (action, nth) {
            (Action::Plan, 0) => Verdict::Fail,
            (Action::Plan, 1) => Verdict::Die,
            _ => Verdict::Succeed,
        },
        acts: &[],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
    },
    Workload {
        name: "failing applies",
        layers: automatic,
        processes: ONE,
        verdict: |action, nth| match (action, nth) {
            (Action::Apply, 0) => Verdict::Fail,
            (Action::Apply, 1) => Verdict::Die,
            _ => Verdict::Succeed,
        },
        acts: &[],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 3)
        },
    },
    Workload {
        name: "drift",
        layers: automatic,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[Act::Drift],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 2)
        },
    },
    Workload {
        name: "a new commit",
        layers: automatic,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[Act::Push],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')?;
            equal("applies", stage.applies(), 2)
        },
    },
    Workload {
        name: "approval",
        layers: asking,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[Act::Approve],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
    },
    Workload {
        name: "two layers on one state",
        layers: sharing,
        processes: ONE,
        verdict: |_, _| Verdict::Succeed,
        acts: &[],
        // Whichever came second finds its plan stale or without changes; both end in sync.
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')
        },
    },
    Workload {
        name: "two leaders",
        layers: automatic,
        processes: &["controllers", "rival"],
        verdict: |_, _| Verdict::Succeed,
        acts: &[],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
    },
    HAUNTED,
];

/// The first apply is believed dead and writes after the second one has ended.
pub const HAUNTED: Workload = Workload {
    name: "a runner that was given up",
    layers: automatic,
    processes: ONE,
    verdict: |action, nth| match (action, nth) {
        (Action::Apply, 0) => Verdict::Haunt,
        _ => Verdict::Succeed,
    },
    acts: &[Act::Haunt],
    expect: |rest, stage| {
        all_in(rest, LayerState::Idle)?;
        in_place(stage, 'a')?;
        equal("applies", stage.applies(), 2)
    },
};

pub fn named(name: &str) -> Workload {
    *ALL.iter().find(|workload| workload.name == name).expect("a workload of that name")
}

fn all_in(rest: &Rest, state: LayerState) -> Result<(), String> {
    for layer in &rest.layers {
        let status = layer.status.clone().unwrap_or_default();
        if status.state != Some(state) {
            let name = layer.metadata.name.as_deref().unwrap_or_default();
            return Err(format!(
                "layer {name} is {:?}, not {state:?}: {}",
                status.state,
                status.why.unwrap_or_default()
            ));
        }
    }
    Ok(())
}

fn in_place(stage: &Stage, letter: char) -> Result<(), String> {
    for truth in stage.truths.values() {
        if truth.applied != Some(commit(letter)) || truth.drifted {
            return Err(format!("the infrastructure is {truth:?}, not that of commit {letter}"));
        }
    }
    Ok(())
}

fn equal(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found} {what}, not {expected}")) }
}
