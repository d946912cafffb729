//! What the controllers are given to do. A workload says what is declared, how executions end, what people do when all is
//! quiet, and what must be true in the end, whatever happened on the way.

use anyhow::Result;
use api::layer::{DeletionPolicy, LayerState};
use api::repo::RepoRunState;
use api::run::Action;
use api::template::Template;
use api::terraform::WorkloadState;
use api::{Repo, Terraform, TerraformLayer, TerraformNotification};
use serde_json::json;
use testkit::objects::{self, Remedied};

use crate::stage::{Exec, Stage, Verdict};
use crate::world::{Rest, commit, image_of};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Somebody approves each layer's newest plan.
    Approve,
    /// A commit arrives, and is seen.
    Push,
    /// A commit arrives, and its Git host says so.
    Deliver,
    /// The infrastructure changes by itself, and that is seen.
    Drift,
    /// A runner that was given up writes once more.
    Haunt,
    /// Somebody cancels every run that has not ended.
    Cancel,
    /// Somebody deletes every layer.
    Delete,
    /// Somebody gives every Terraform another variable.
    Change,
    /// Somebody deletes every Terraform.
    Withdraw,
    /// The HTTP service makes a stack of every template.
    Make,
    /// It gives every stack another variable.
    Vary,
    /// Somebody edits what layers wrote their outputs to, and adds a key of their own to the Secret.
    Tamper,
    /// Every layer writes its outputs to a Secret alone.
    Unname,
    /// Time passes in which a leader renews its Lease.
    Wait,
    /// Time passes in which a plan grows too old to be applied.
    Age,
}

/// What happens while a process is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    Nothing,
    /// Every layer gets another tool.
    Retool,
}

/// Which of several processes act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    Each,
    /// The one that holds the controllers' Lease.
    Elected,
}

#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub layers: fn() -> Result<Vec<TerraformLayer>>,
    pub repos: fn() -> Result<Vec<Repo>>,
    pub terraforms: fn() -> Result<Vec<Terraform>>,
    pub notifications: fn() -> Result<Vec<TerraformNotification>>,
    pub processes: &'static [&'static str],
    pub lead: Lead,
    pub verdict: fn(Action, usize) -> Verdict,
    pub acts: &'static [Act],
    pub expect: fn(&Rest, &Stage) -> Result<(), String>,
    /// How many runners may work at the same time; 0 for any number.
    pub cap: u32,
    pub meanwhile: Meanwhile,
    pub meets: Meets,
}

/// Which requests of a workload meet faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meets {
    All,
    /// Those about what a door is and makes. The runs of its layer are those of any other, and other workloads meet faults there.
    Door(&'static [&'static str]),
}

impl Meets {
    pub fn includes(self, target: &str) -> bool {
        match self {
            Self::All => true,
            Self::Door(kinds) => kinds.contains(&target.split('/').next().unwrap_or(target)),
        }
    }
}

/// What a Terraform is and makes.
const OF_TERRAFORMS: Meets = Meets::Door(&["terraforms", "terraformrepositories", "terraformlayers"]);
/// Which image a layer is pinned to. That a Terraform is written down is met where its code is in Git.
const OF_IMAGES: Meets = Meets::Door(&["terraformlayers"]);
/// What a stack is.
const OF_STACKS: Meets = Meets::Door(&["terraformlayers"]);
/// What becomes of a word on a plan. The runs themselves are those of other workloads.
const OF_WORDS: Meets = Meets::Door(&["terraformlayers", "terraformruns", "terraformapprovals"]);
const OF_NOTIFICATIONS: Meets = Meets::Door(&["terraformnotifications"]);
/// What a webhook changes, and what follows from it before there is a run.
const OF_WEBHOOKS: Meets = Meets::Door(&["terraformrepositories", "terraformlayers"]);

/// The workload whose writes meet each class of refusal; those of others meet one of each group.
pub const SIMPLEST: &str = "plan and apply";

const ONE: &[&str] = &["controllers"];
const TWO: &[&str] = &["controllers", "rival"];

fn asking() -> Result<Vec<TerraformLayer>> {
    Ok(vec![objects::layer("db", "code", "db")?])
}

/// Whose plans expire before they are made anew anyway.
fn asking_for_long() -> Result<Vec<TerraformLayer>> {
    let mut layers = asking()?;
    for layer in &mut layers {
        layer.spec.drift = Some(serde_json::from_value(json!({ "interval": "240h" }))?);
    }
    Ok(layers)
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

/// Two layers that have nothing to do with one another.
fn apart() -> Result<Vec<TerraformLayer>> {
    Ok(vec![
        objects::layer("left", "code", "left")?.auto_apply(),
        objects::layer("right", "code", "right")?.auto_apply(),
    ])
}

fn destroyed() -> Result<Vec<TerraformLayer>> {
    let mut layers = automatic()?;
    for layer in &mut layers {
        layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    }
    Ok(layers)
}

/// Code that is built into an image first.
fn building() -> Result<Vec<TerraformLayer>> {
    let mut layers = automatic()?;
    for layer in &mut layers {
        layer.spec.build = Some(serde_json::from_value(json!({ "name": "registry.example.org/team/code" }))?);
    }
    Ok(layers)
}

fn giving() -> Result<Vec<TerraformLayer>> {
    let mut layers = automatic()?;
    for layer in &mut layers {
        layer.spec.write_outputs_to =
            serde_json::from_value(json!([{ "secret": "given" }, { "configMap": "given" }]))?;
    }
    Ok(layers)
}

/// A URL, and a layer that is made for it.
fn by_url() -> Result<Vec<Repo>> {
    Ok(vec![objects::repo("infra")?])
}

/// A workload in one object, and a layer that is made for it.
fn in_one_object() -> Result<Vec<Terraform>> {
    Ok(vec![objects::terraform("infra")?])
}

/// The same with an image, whose registry is asked for newer ones.
fn in_an_image() -> Result<Vec<Terraform>> {
    Ok(vec![objects::terraform_of_image("infra")?])
}

/// What stacks are copies of, and nothing is done about.
fn template() -> Result<Vec<TerraformLayer>> {
    let mut layers = automatic()?;
    for layer in &mut layers {
        layer.spec.template = Some(Template::default());
    }
    Ok(layers)
}

fn telling() -> Result<Vec<TerraformNotification>> {
    Ok(vec![objects::notification("hook")?])
}

fn none<K>() -> Result<Vec<K>> {
    Ok(Vec::new())
}

/// What each other one is told by its differences from.
const PLAIN: Workload = Workload {
    name: SIMPLEST,
    layers: automatic,
    repos: none,
    terraforms: none,
    notifications: none,
    processes: ONE,
    lead: Lead::Each,
    verdict: |_, _| Verdict::Succeed,
    acts: &[],
    expect: |rest, stage| {
        all_in(rest, LayerState::Idle)?;
        in_place(stage, 'a')?;
        equal("applies", stage.applies(), 1)
    },
    cap: 0,
    meanwhile: Meanwhile::Nothing,
    meets: Meets::All,
};

pub const ALL: &[Workload] = &[
    PLAIN,
    Workload {
        name: "another tool after a crash",
        meanwhile: Meanwhile::Retool,
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)?;
            planned_as_asked(rest, stage)
        },
        ..PLAIN
    },
    Workload {
        name: "one runner for two layers",
        layers: apart,
        cap: 1,
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 2)
        },
        ..PLAIN
    },
    Workload {
        name: "cancel at work and in the queue",
        layers: apart,
        cap: 1,
        verdict: |action, nth| match (action, nth) {
            (Action::Plan, 0) => Verdict::LingerIfFirst,
            _ => Verdict::Succeed,
        },
        // One plan is at work and the other in the queue; both layers go on with the next commit.
        acts: &[Act::Cancel, Act::Push],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')
        },
        ..PLAIN
    },
    Workload {
        name: "cancel in mid-apply",
        verdict: |action, nth| match (action, nth) {
            (Action::Apply, 0) => Verdict::Linger,
            _ => Verdict::Succeed,
        },
        acts: &[Act::Cancel],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 2)
        },
        ..PLAIN
    },
    Workload {
        name: "deletion that destroys",
        layers: destroyed,
        acts: &[Act::Delete],
        expect: |rest, stage| {
            equal("layers", rest.layers.len(), 0)?;
            equal("applies", stage.applies(), 2)?;
            nothing_left(stage)
        },
        ..PLAIN
    },
    Workload {
        name: "deletion that leaves all in place",
        acts: &[Act::Delete],
        expect: |rest, stage| {
            equal("layers", rest.layers.len(), 0)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
        ..PLAIN
    },
    Workload {
        name: "plan only",
        layers: asking,
        expect: |rest, stage| {
            all_in(rest, LayerState::ApplyNeeded)?;
            equal("applies", stage.applies(), 0)
        },
        ..PLAIN
    },
    Workload {
        name: "failing plans",
        verdict: |action, nth| match (action, nth) {
            (Action::Plan, 0) => Verdict::Fail,
            (Action::Plan, 1) => Verdict::Die,
            _ => Verdict::Succeed,
        },
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
        ..PLAIN
    },
    Workload {
        name: "failing applies",
        verdict: |action, nth| match (action, nth) {
            (Action::Apply, 0) => Verdict::Fail,
            (Action::Apply, 1) => Verdict::Die,
            _ => Verdict::Succeed,
        },
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 3)
        },
        ..PLAIN
    },
    Workload {
        name: "an image that is built",
        layers: building,
        // The first build pushes, and dies before it says so.
        verdict: |action, nth| match (action, nth) {
            (Action::Build, 0) => Verdict::Die,
            _ => Verdict::Succeed,
        },
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)?;
            equal("names in the registry", stage.pushed.len(), 1)?;
            equal("images in the registry", stage.pushed.values().flatten().count(), 1)
        },
        ..PLAIN
    },
    Workload {
        name: "drift",
        acts: &[Act::Drift],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 2)
        },
        ..PLAIN
    },
    Workload {
        name: "a new commit",
        acts: &[Act::Push],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')?;
            equal("applies", stage.applies(), 2)
        },
        ..PLAIN
    },
    Workload {
        name: "a webhook",
        acts: &[Act::Deliver],
        // Sooner than by a poll, which would come after the world is at rest.
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')?;
            equal("applies", stage.applies(), 2)
        },
        meets: OF_WEBHOOKS,
        ..PLAIN
    },
    Workload {
        name: "a Repo and a new commit",
        layers: none,
        repos: by_url,
        acts: &[Act::Push],
        expect: |rest, stage| {
            equal("layers", rest.layers.len(), 1)?;
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')?;
            equal("applies", stage.applies(), 2)?;
            told_by_repos(rest, 'b')?;
            // They go with their runs, of which looks for drift leave only the newest.
            let is_left_so = rest.jobs.len() <= 2 && rest.jobs.iter().all(|(_, end)| end == "Complete");
            if is_left_so { Ok(()) } else { Err(format!("the Jobs are {:?}", rest.jobs)) }
        },
        ..PLAIN
    },
    Workload {
        name: "a Terraform and another variable",
        layers: none,
        terraforms: in_one_object,
        meets: OF_TERRAFORMS,
        acts: &[Act::Change],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 2)?;
            told_by_terraforms(rest)
        },
        ..PLAIN
    },
    Workload {
        name: "a Terraform that is deleted",
        layers: none,
        terraforms: in_one_object,
        meets: OF_TERRAFORMS,
        acts: &[Act::Withdraw],
        expect: |rest, stage| {
            equal("Terraforms", rest.terraforms.len(), 0)?;
            equal("layers", rest.layers.len(), 0)?;
            equal("applies", stage.applies(), 2)?;
            nothing_left(stage)
        },
        ..PLAIN
    },
    Workload {
        name: "a Terraform of an image and a newer version",
        layers: none,
        terraforms: in_an_image,
        meets: OF_IMAGES,
        acts: &[Act::Push],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            equal("Terraforms", rest.terraforms.len(), 1)?;
            equal("layers", rest.layers.len(), 1)?;
            equal("applies", stage.applies(), 2)?;
            of_image(rest, stage, 'b')
        },
        ..PLAIN
    },
    Workload {
        name: "a stack that is made, changed and deleted",
        layers: template,
        meets: OF_STACKS,
        acts: &[Act::Make, Act::Vary, Act::Delete],
        expect: |rest, stage| {
            equal("layers", rest.layers.len(), 0)?;
            equal("applies", stage.applies(), 3)?;
            nothing_left(stage)
        },
        ..PLAIN
    },
    Workload {
        name: "a notification that is refused at first",
        notifications: telling,
        meets: OF_NOTIFICATIONS,
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            equal("applies", stage.applies(), 1)?;
            told_again(rest)
        },
        ..PLAIN
    },
    Workload {
        name: "outputs that are edited, change and are asked for no more",
        layers: giving,
        acts: &[Act::Tamper, Act::Push, Act::Unname],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'b')?;
            equal("applies", stage.applies(), 2)?;
            let expected = json!({
                "Secret given": { "commit": commit('b'), "hidden": format!("of {}", commit('b')), "theirs": "stays" },
            });
            if json!(rest.outputs) == expected {
                Ok(())
            } else {
                Err(format!("outputs are {:?}", rest.outputs))
            }
        },
        ..PLAIN
    },
    Workload {
        name: "approval",
        layers: asking,
        acts: &[Act::Approve],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
        ..PLAIN
    },
    Workload {
        name: "an approval that comes too late, and one of the next plan",
        layers: asking_for_long,
        meets: OF_WORDS,
        acts: &[Act::Age, Act::Approve, Act::Approve],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)?;
            let plans = stage.execs.iter().filter(|exec| exec.plan.is_some()).count();
            if plans >= 2 { Ok(()) } else { Err("the plan that was too old was applied".to_owned()) }
        },
        ..PLAIN
    },
    Workload {
        name: "two layers on one state",
        layers: sharing,
        // Whichever came second finds its plan stale or without changes; both end in sync.
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')
        },
        ..PLAIN
    },
    Workload {
        name: "two that both act",
        processes: TWO,
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
        ..PLAIN
    },
    Workload {
        name: "two leaders",
        processes: TWO,
        lead: Lead::Elected,
        acts: &[Act::Wait],
        expect: |rest, stage| {
            all_in(rest, LayerState::Idle)?;
            in_place(stage, 'a')?;
            equal("applies", stage.applies(), 1)
        },
        ..PLAIN
    },
    HAUNTED,
];

/// The first apply is believed dead and writes after the second one has ended.
pub const HAUNTED: Workload = Workload {
    name: "a runner that was given up",
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
    ..PLAIN
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

/// What was planned last of each layer was planned with the tool that it asks for.
fn planned_as_asked(rest: &Rest, stage: &Stage) -> Result<(), String> {
    for layer in &rest.layers {
        let asked = layer.setup(None);
        let of_layer = |exec: &&Exec| Some(&exec.description.layer_uid) == layer.metadata.uid.as_ref();
        let planned = stage.execs.iter().rev().filter(of_layer).find(|exec| exec.plan.is_some());
        let tool = planned.map(|exec| (exec.description.tool, exec.description.tool_version.clone()));
        if tool != Some((asked.tool, asked.tool_version.clone())) {
            return Err(format!("it was last planned with {tool:?}, and asks for {asked:?}"));
        }
    }
    Ok(())
}

fn told_by_repos(rest: &Rest, letter: char) -> Result<(), String> {
    for repo in &rest.repos {
        let status = repo.status.clone().unwrap_or_default();
        let run = status.run.as_ref();
        let is_done = run.is_some_and(|run| {
            run.state == RepoRunState::Succeeded && run.revision == commit(letter) && run.job.is_some()
        });
        let is_ready = api::condition::is_true(&status.conditions, "Ready");
        if !is_done
            || !is_ready
            || status.revision.applied != Some(commit(letter))
            || status.skipped.is_some()
        {
            return Err(format!("the Repo says {status:?}"));
        }
    }
    equal("Repos", rest.repos.len(), 1)
}

/// It is deployed, and says what the code gave out, and what followed the deploy with what it is given now.
fn told_by_terraforms(rest: &Rest) -> Result<(), String> {
    for terraform in &rest.terraforms {
        let status = terraform.status.clone().unwrap_or_default();
        let given = json!({
            "commit": commit('a'), "hidden": "*** (sensitive; key hidden of Secret infra-outputs)",
        });
        let is_told = status.state == Some(WorkloadState::Completed)
            && status.observed_generation == terraform.metadata.generation
            && json!(status.output) == given
            && status.post_deploy_output
                == Some(json!({ "outputs": { "commit": commit('a'), "word": "second" } }));
        if !is_told {
            return Err(format!("the Terraform says {status:?}"));
        }
    }
    equal("Terraforms", rest.terraforms.len(), 1)?;
    equal("layers", rest.layers.len(), 1)
}

/// What was planned and applied is the image that its registry has now, and the Terraform names it.
fn of_image(rest: &Rest, stage: &Stage, letter: char) -> Result<(), String> {
    let digest = image_of(&commit(letter));
    if let Some(wrong) = stage.truths.values().find(|truth| truth.applied != digest.revision()) {
        return Err(format!("the infrastructure is {wrong:?}, not that of image {digest}"));
    }
    let told = |terraform: &Terraform| {
        let status = terraform.status.clone().unwrap_or_default();
        status.state == Some(WorkloadState::Completed)
            && status.message.is_some_and(|message| message.contains(digest.as_str()))
    };
    match rest.terraforms.iter().find(|terraform| !told(terraform)) {
        None => Ok(()),
        Some(other) => Err(format!("the Terraform says {:?}", other.status)),
    }
}

/// The receiver refused once and was told again, each time of the same by the same name, and the status says what it took.
fn told_again(rest: &Rest) -> Result<(), String> {
    let names: std::collections::BTreeSet<&(String, String)> = rest.deliveries.iter().collect();
    let is_one = names.iter().all(|(_, event)| event == "Applied") && names.len() == 1;
    let last = rest.notifications.iter().map(|one| one.status.clone().unwrap_or_default().last_sent);
    let is_told = last.flatten().any(|last| last.event == api::notification::Event::Applied);
    if is_one && is_told && rest.deliveries.len() >= 2 {
        Ok(())
    } else {
        Err(format!("the receiver was told {:?}, and {:?} is said", rest.deliveries, rest.notifications))
    }
}

fn nothing_left(stage: &Stage) -> Result<(), String> {
    match stage.truths.values().find(|truth| truth.applied.is_some()) {
        None => Ok(()),
        Some(left) => Err(format!("the infrastructure is still there: {left:?}")),
    }
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
