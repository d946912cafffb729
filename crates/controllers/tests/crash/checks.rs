//! The promises, checked on what was recorded at the seams and on what the stage knows to be true; the product's own words count
//! only where a promise is about them. Each complaint starts with the promise that was broken.
//!
//! Everything here is O(events · what is known of one object), for the few hundred events of a world.

use std::collections::{BTreeMap, BTreeSet};

use api::attempt::Description;
use api::run::{Action, Mode, TerraformRunSpec};
use api::setup::Setup;
use api::text::Sha256;
use api::{annotation, label};
use engine::leader::LEASE;
use engine::names::{self, Wish};
use serde_json::Value;
use testkit::faults::{Event, Fault, Seam};

use crate::stage::{Exec, place};
use crate::workloads::{Lead, Workload};
use crate::world::{PLAN_EXPIRY, World};

pub fn all(workload: &Workload, world: &World) -> Vec<String> {
    world.faults.read(|history| broken(workload, world, history))
}

fn broken(workload: &Workload, world: &World, history: &[Event]) -> Vec<String> {
    let is_api = |event: &&Event| event.site.seam == Seam::Api && !is_election(event);
    let api: Vec<&Event> = history.iter().filter(is_api).collect();
    let ours: Vec<&Event> = api
        .iter()
        .copied()
        .filter(|event| workload.processes.contains(&event.site.actor.as_str()) && event.is_write())
        .collect();
    let execs = &world.stage.execs;
    let mut found = Vec::new();
    found.extend(led(workload, history));
    found.extend(one_mutator(execs));
    found.extend(fences(history, execs));
    found.extend(approved(workload, world));
    found.extend(fresh(execs));
    found.extend(written_down(history, execs));
    found.extend(destroyed_if_asked(history, execs));
    found.extend(bounded_runners(workload, &api));
    found.extend(cancel_honoured(history, execs));
    found.extend(at_most_once(execs));
    found.extend(built_once(execs));
    found.extend(pinned(execs));
    found.extend(results_kept(&api, execs));
    found.extend(states(&api));
    found.extend(lock_held_until_recorded(&api));
    found.extend(ours.iter().filter_map(|event| compared_and_set(event)));
    found.extend(derived_names(&ours));
    found.extend(bounded_children(&api));
    found.extend(monotone(&api));
    found.extend(ours.iter().filter_map(|event| vain(event)));
    found.extend(announced(&api));
    found.extend(workload.processes.iter().flat_map(|process| one_at_a_time(process, &api)));
    found.extend(shown_not_run(&api));
    found.extend(each_commit_shown(workload, &api));
    found
}

/// What outputs are written to stands in the layer's status before it is written, or nobody would clear it after a crash.
fn announced(api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut places: BTreeSet<(&str, &str)> = BTreeSet::new();
    for event in api.iter().filter(|event| event.is_done() && event.is_write()) {
        let object = &event.answer;
        match event.site.target.as_str() {
            "terraformlayers/status" => {
                for place in object["status"]["outputTargets"].as_array().into_iter().flatten() {
                    let of = |kind, field: &str| place[field].as_str().map(|name| (kind, name));
                    places.extend(of("secrets", "secret").or(of("configmaps", "configMap")));
                }
            }
            kind @ ("secrets" | "configmaps") if event.site.verb == "POST" => {
                let name = text(&object["metadata"]["name"]);
                if object["metadata"]["labels"][label::LAYER].is_string() && !places.contains(&(kind, name)) {
                    found.push(format!("S7: {kind} {name} was made before any status names it"));
                }
            }
            _ => {}
        }
    }
    found
}

/// Two reconciles of a process never have the same Repo or Terraform in their hands: each reads it first and writes its status last, so
/// between two such writes there is a read.
fn one_at_a_time(process: &str, api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut read: BTreeSet<(&str, &str)> = BTreeSet::new();
    for event in api.iter().filter(|event| event.site.actor == process && event.fault != Some(Fault::Repeat))
    {
        let path = event.path.split('?').next().unwrap_or_default();
        let doors = [("Repo", "/repos/"), ("Terraform", "/terraforms/")].into_iter();
        let mut named = doors.filter_map(|(kind, between)| Some((kind, path.split_once(between)?.1)));
        let Some((kind, name)) = named.next() else { continue };
        match event.site.verb.as_str() {
            "GET" => drop(read.insert((kind, name))),
            "PUT" => {
                let name = name.trim_end_matches("/status");
                if !read.remove(&(kind, name)) {
                    found.push(format!("{kind} {name} was written twice after one read by {process}"));
                }
            }
            _ => {}
        }
    }
    found
}

/// What shows a run is nothing that anybody runs: no Job of ours is one that a job controller would take up.
fn shown_not_run(api: &[&Event]) -> Vec<String> {
    let made = api.iter().filter(|event| event.site.verb == "POST" && event.site.target == "jobs");
    made.filter(|event| {
        event.sent["spec"]["managedBy"] != api::JOB_MANAGER || event.sent["spec"]["suspend"] != true
    })
    .map(|event| format!("Job {} could be run", text(&event.sent["metadata"]["name"])))
    .collect()
}

/// Each commit that a Repo's layer took up has a Job.
fn each_commit_shown(workload: &Workload, api: &[&Event]) -> Vec<String> {
    if (workload.repos)().is_ok_and(|repos| repos.is_empty()) {
        return Vec::new();
    }
    let made = |target: &'static str| {
        api.iter().filter(move |event| event.site.verb == "POST" && event.site.target == target)
    };
    let commits: BTreeSet<&str> = made("terraformruns")
        .filter(|event| event.sent["spec"]["trigger"]["kind"] == "commit")
        .map(|event| text(&event.sent["spec"]["layer"]["revision"]))
        .collect();
    let jobs: BTreeSet<&str> = made("jobs")
        .filter(|event| !event.path.contains("dryRun="))
        .map(|event| text(&event.sent["metadata"]["name"]))
        .collect();
    if jobs.len() < commits.len() {
        return vec![format!("{commits:?} were taken up, and shown by {jobs:?} alone")];
    }
    Vec::new()
}

/// S1: intervals of mutating executions on one state are disjoint.
fn one_mutator(execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, exec) in execs.iter().enumerate().filter(|(_, exec)| exec.description.action.mutates()) {
        let end = exec.end.unwrap_or(usize::MAX);
        for other in &execs[at + 1..] {
            let same =
                other.description.action.mutates() && place(&other.description) == place(&exec.description);
            if same && other.start < end {
                found.push(format!("S1: {} and {} applied at once", exec.pod_uid, other.pod_uid));
            }
        }
    }
    found
}

/// S1b: fences grow with every start, and what comes with a lower one than was seen is refused.
fn fences(history: &[Event], execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<Sha256, u64> = BTreeMap::new();
    for exec in execs.iter().filter(|exec| exec.description.action.mutates()) {
        let fence = exec.description.fence;
        let before = highest.insert(place(&exec.description), fence).unwrap_or(0);
        if fence <= before {
            found.push(format!("S1b: an apply started under fence {fence} after one under {before}"));
        }
    }
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for event in history.iter().filter(|event| event.site.seam == Seam::Datastore && event.is_done()) {
        let Some(fence) = event.headers.get("terrane-fence").and_then(|text| text.parse::<u64>().ok()) else {
            continue;
        };
        let state = event.path.split(['?', '/']).nth(3).unwrap_or_default().to_owned();
        let highest = seen.entry(state).or_default();
        if fence < *highest {
            found.push(format!("S1b: a write under fence {fence} was accepted after fence {highest}"));
        }
        *highest = fence.max(*highest);
    }
    found
}

/// S3: what is applied was planned from the state as it is, and not longer ago than allowed.
fn fresh(execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    for exec in execs {
        let Some(plan) = exec.description.plan.as_ref() else { continue };
        let made = execs.iter().find(|other| other.plan.as_ref() == Some(&plan.sha256));
        if let Some(made) = made.filter(|made| made.base != exec.base) {
            let (from, now) = (&made.base, &exec.base);
            found
                .push(format!("S3: plan {} was made from {from:?}, applied to {now:?}", plan.sha256.short()));
        }
        let made_at = made.and_then(|made| made.planned_at);
        if made_at.is_some_and(|at| exec.began_at >= engine::later(at, PLAN_EXPIRY)) {
            found.push(format!(
                "S3: plan {} of {made_at:?} was applied at {}",
                plan.sha256.short(),
                exec.began_at
            ));
        }
    }
    found
}

/// S23: what is about to change infrastructure stands in the audit before it starts.
fn written_down(history: &[Event], execs: &[Exec]) -> Vec<String> {
    let is_entry = |event: &&Event, exec: &Exec| {
        event.site.seam == Seam::Datastore
            && event.site.target.starts_with("audit")
            && event.is_done()
            && event.sent["runUid"] == exec.description.run_uid.as_str()
            && event.sent["attempt"] == exec.description.attempt
    };
    execs
        .iter()
        .filter(|exec| exec.description.action.mutates())
        .filter(|exec| !history[..exec.start].iter().any(|event| is_entry(&event, exec)))
        .map(|exec| format!("S23: {} started and is not in the audit", exec.description.run))
        .collect()
}

/// S7: a layer goes after its infrastructure where its policy says so, and nothing is destroyed where it does not.
fn destroyed_if_asked(history: &[Event], execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, event) in history.iter().enumerate() {
        let layer = &event.answer;
        let held = layer["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let let_go = event.site.target == "terraformlayers"
            && event.is_write()
            && event.is_done()
            && !layer["metadata"]["deletionTimestamp"].is_null()
            && !held;
        if !let_go {
            continue;
        }
        let uid = text(&layer["metadata"]["uid"]);
        let mut destroys = execs.iter().filter(|exec| {
            exec.description.layer_uid == uid
                && exec.description.mode == Mode::Destroy
                && exec.description.action.mutates()
        });
        let name = text(&layer["metadata"]["name"]);
        if layer["spec"]["deletionPolicy"] != "Destroy" {
            found.extend(destroys.map(|_| format!("S7: layer {name} was destroyed and nobody asked for it")));
        } else if !destroys.any(|exec| {
            exec.end.is_some_and(|end| end <= at)
                && exec.reported.as_ref().is_some_and(|report| report.exit_code == 0)
        }) {
            found.push(format!("S7: layer {name} went before its infrastructure"));
        }
    }
    found
}

/// S20: no more runners at the same time than allowed, at any moment.
fn bounded_runners(workload: &Workload, api: &[&Event]) -> Vec<String> {
    let most = usize::try_from(workload.cap).unwrap();
    let mut found = Vec::new();
    let mut at_work: BTreeSet<&str> = BTreeSet::new();
    for event in api.iter().filter(|event| event.is_done() && event.is_write()) {
        let pod = &event.answer;
        match (event.site.verb.as_str(), event.site.target.as_str()) {
            ("POST", "pods") => {
                at_work.insert(text(&pod["metadata"]["uid"]));
                if most > 0 && at_work.len() > most {
                    found.push(format!("S20: {} runners work at the same time", at_work.len()));
                }
            }
            (_, "pods/status") if matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed") => {
                at_work.remove(text(&pod["metadata"]["uid"]));
            }
            _ => {}
        }
    }
    found
}

/// S25: a run that was canceled before it started never starts, and one at work is told to stop once.
fn cancel_honoured(history: &[Event], execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for (at, event) in history.iter().enumerate().filter(|(_, event)| event.is_done()) {
        let object = &event.answer;
        let uid = text(&object["metadata"]["uid"]);
        match (event.site.verb.as_str(), event.site.target.as_str()) {
            ("PATCH", "terraformruns")
                if object["metadata"]["annotations"][annotation::CANCEL].is_string() =>
            {
                let late = execs.iter().filter(|exec| exec.description.run_uid == uid && exec.start > at);
                // An attempt that was written down before the wish may still get its pod.
                let late = late.filter(|_| object["status"]["attempts"].is_null());
                found.extend(
                    late.map(|exec| format!("S25: {} was canceled and started", exec.description.run)),
                );
            }
            ("DELETE", "pods") => {
                let works = text(&object["status"]["phase"]) == "Running";
                if works && event.fault != Some(Fault::Repeat) && !told.insert(uid) {
                    found.push(format!(
                        "S25: pod {} was told to stop twice",
                        text(&object["metadata"]["name"])
                    ));
                }
            }
            _ => {}
        }
    }
    found
}

/// Where the tool runs, and which it is.
fn setup(description: &Description) -> Setup {
    let Description { path, workspace, tool, tool_version, terragrunt, .. } = description.clone();
    Setup { path, workspace, tool, tool_version, terragrunt }
}

/// S2 and S3: what is applied is a plan made of this state and commit, by the same tool, and somebody allowed these bytes.
fn approved(workload: &Workload, world: &World) -> Vec<String> {
    let automatic = (workload.layers)().is_ok_and(|layers| {
        layers
            .iter()
            .all(|layer| layer.spec.remediation_strategy.as_ref().is_some_and(|s| s.auto_apply == Some(true)))
    });
    let mut found = Vec::new();
    for exec in world.stage.execs.iter().filter(|exec| exec.description.action == Action::Apply) {
        let Some(plan) = exec.description.plan.as_ref().map(|plan| &plan.sha256) else {
            found.push("S2: an apply without a plan".to_owned());
            continue;
        };
        let made = world.stage.execs.iter().any(|other| {
            other.plan.as_ref() == Some(plan)
                && place(&other.description) == place(&exec.description)
                && other.description.revision == exec.description.revision
                && setup(&other.description) == setup(&exec.description)
        });
        if !made {
            found.push(format!("S3: plan {} was not made for this state, commit and tool", plan.short()));
        }
        if !automatic && !world.approved.contains(plan) {
            found.push(format!("S2: plan {} was applied and nobody approved it", plan.short()));
        }
    }
    found
}

/// S4: an apply is started at most once a plan.
fn at_most_once(execs: &[Exec]) -> Vec<String> {
    let mut started = BTreeSet::new();
    execs
        .iter()
        .filter_map(|exec| exec.description.plan.as_ref())
        .filter(|plan| !started.insert(plan.sha256.clone()))
        .map(|plan| format!("S4: plan {} was applied twice", plan.sha256.short()))
        .collect()
}

/// S27: once somebody was told what a build came to, the same is not built again.
fn built_once(execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, exec) in execs.iter().enumerate() {
        let (Some(order), Some(_), Some(end)) = (&exec.description.build, &exec.image, exec.end) else {
            continue;
        };
        let same = execs[at + 1..].iter().filter(|later| {
            later.start >= end
                && later.description.build.as_ref().is_some_and(|later| later.image == order.image)
        });
        found.extend(same.map(|later| {
            format!(
                "S27: {} was built by {} and again by {}",
                order.image, exec.description.run, later.description.run
            )
        }));
    }
    found
}

/// S28: where code is built, it is planned and applied as the very image that came of its commit.
fn pinned(execs: &[Exec]) -> Vec<String> {
    let mut found = Vec::new();
    for exec in execs.iter().filter(|exec| exec.description.build.is_none()) {
        let before = execs.iter().filter(|other| other.end.is_some_and(|end| end <= exec.start));
        let of_layer = |other: &&Exec| {
            other.description.build.is_some() && other.description.layer_uid == exec.description.layer_uid
        };
        let mut builds = execs.iter().filter(of_layer).peekable();
        if builds.peek().is_none() {
            continue;
        }
        let made =
            before.filter(of_layer).filter(|other| other.description.revision == exec.description.revision);
        let made = made.filter_map(|other| other.image.as_ref()).next_back();
        if made.is_none() || exec.description.image.as_ref() != made {
            let (run, has) = (&exec.description.run, &exec.description.image);
            found.push(format!("S28: {run} works on {has:?}, and what was built is {made:?}"));
        }
    }
    found
}

/// The answers to writes of one kind's status, in order.
fn statuses<'a>(api: &'a [&Event], target: &'a str) -> impl Iterator<Item = &'a Value> {
    let written = api.iter().filter(move |event| event.site.target == target && event.is_done());
    in_order(written.copied()).into_iter().map(|event| &event.answer)
}

/// As the API did them: of two processes the second may have its answer first. What answers without a version stays where it is.
fn in_order<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<&'a Event> {
    let mut last = 0;
    let mut events: Vec<(u64, &Event)> = events
        .map(|event| {
            last = text(&event.answer["metadata"]["resourceVersion"]).parse().unwrap_or(last);
            (last, event)
        })
        .collect();
    events.sort_by_key(|(version, _)| *version);
    events.into_iter().map(|(_, event)| event).collect()
}

/// S5: what a runner reported stands in the run's status in the end.
fn results_kept(api: &[&Event], execs: &[Exec]) -> Vec<String> {
    let mut last: BTreeMap<&str, &Value> = BTreeMap::new();
    for run in statuses(api, "terraformruns/status") {
        last.insert(text(&run["metadata"]["uid"]), run);
    }
    let mut found = Vec::new();
    for exec in execs {
        let Some(report) = &exec.reported else { continue };
        let (uid, number) = (exec.description.run_uid.as_str(), exec.description.attempt);
        let attempts = last.get(uid).and_then(|run| run["status"]["attempts"].as_array());
        let attempt = attempts.into_iter().flatten().find(|attempt| attempt["number"] == number);
        let kept = attempt.is_some_and(|attempt| {
            attempt["exitCode"] == report.exit_code
                && reads_as(&attempt["reason"], report.reason)
                && attempt["logDigest"] == report.log.as_str()
        });
        if !kept {
            found.push(format!(
                "S5: {} of {} ended with {}, and its status says {}",
                exec.description.action.as_str(),
                exec.description.run,
                report.reason,
                attempt.map_or(&Value::Null, |attempt| &attempt["reason"]),
            ));
        }
    }
    found
}

/// What was interrupted because somebody canceled it is told as that.
fn reads_as(told: &Value, reported: &str) -> bool {
    told == reported || (told == "Canceled" && reported == "Interrupted")
}

/// S5: states move along the graph, and a terminal one never changes.
fn states(api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    for run in statuses(api, "terraformruns/status") {
        let next = text(&run["status"]["state"]);
        let previous = before.insert(text(&run["metadata"]["uid"]), next).unwrap_or_default();
        let allowed = match previous {
            "" | "Initial" => next != "Retrying",
            "Running" => !matches!(next, "Initial" | "Retrying"),
            "FailureGracePeriod" => matches!(next, "FailureGracePeriod" | "Retrying" | "Running" | "Failed"),
            "Retrying" => next != "Initial",
            terminal => next == terminal,
        };
        if !allowed {
            found.push(format!("S5: run {} went from {previous} to {next}", text(&run["metadata"]["name"])));
        }
    }
    found
}

/// S1 and S26: a lock goes to another run only after what its holder took it for has its end on record, and each time under a higher
/// fence. A holder that never recorded anything keeps it, unless its run was deleted.
fn lock_held_until_recorded(api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut holders: BTreeMap<&str, (&str, i64)> = BTreeMap::new();
    let mut records: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut deleted: BTreeSet<&str> = BTreeSet::new();
    for event in in_order(api.iter().copied().filter(|event| event.is_done() && event.is_write())) {
        let object = &event.answer;
        match event.site.target.as_str() {
            "terraformruns/status" => {
                records.insert(text(&object["metadata"]["uid"]), &object["status"]);
            }
            "terraformruns" if event.site.verb == "DELETE" => {
                deleted.extend(object["details"]["uid"].as_str().or(object["metadata"]["uid"].as_str()));
            }
            "leases" => {
                let name = text(&object["metadata"]["name"]);
                let holder = text(&object["spec"]["holderIdentity"]);
                let fence = object["spec"]["leaseTransitions"].as_i64().unwrap_or_default();
                let Some((before, under)) = holders.insert(name, (holder, fence)) else { continue };
                let record = records.get(before).copied().unwrap_or(&Value::Null);
                let ended = record["finishedAt"].is_string()
                    || record["attempts"].as_array().into_iter().flatten().any(|attempt| {
                        attempt["fence"].as_i64() == Some(under) && attempt["finishedAt"].is_string()
                    });
                if !ended && !deleted.contains(before) {
                    found.push(format!(
                        "S1: {name} was taken from {before}, whose result under fence {under} is not recorded"
                    ));
                }
                if fence <= under {
                    found.push(format!("S26: {name} went to {holder} under fence {fence}, after {under}"));
                }
            }
            _ => {}
        }
    }
    found
}

/// Events are tales of what happened: each has a name of its own, is only counted up, and nothing is decided by it.
pub fn is_tale(event: &Event) -> bool {
    event.site.target == "events"
}

/// The controllers' own Lease: who leads, not what is done.
pub fn is_election(event: &Event) -> bool {
    let path = event.path.split('?').next().unwrap_or_default();
    let named = path.ends_with(LEASE) || event.sent["metadata"]["name"] == LEASE;
    event.site.seam == Seam::Api && event.site.target == "leases" && named
}

/// L8: whoever writes to the API leads at that moment, by the Lease in the API. What a process had sent when it was stopped arrives
/// late, and is the one exception; that it does no harm is for the other checks.
fn led(workload: &Workload, history: &[Event]) -> Vec<String> {
    let mut found = Vec::new();
    if workload.lead == Lead::Each {
        return found;
    }
    let mut leader = "";
    for event in history.iter().filter(|event| event.is_write() && event.is_done()) {
        let actor = event.site.actor.as_str();
        if is_election(event) {
            leader = text(&event.answer["spec"]["holderIdentity"]);
        } else if event.site.seam == Seam::Api
            && workload.processes.contains(&actor)
            && actor != leader
            && !event.held
        {
            found.push(format!("L8: {} was accepted while {leader:?} leads", event.site));
        }
    }
    found
}

/// S16: every change says which version it is a change of.
fn compared_and_set(event: &Event) -> Option<String> {
    if is_tale(event) {
        return None;
    }
    let version = &event.sent["metadata"]["resourceVersion"];
    let is_apply = event.path.contains("fieldManager=") && event.site.verb == "PATCH";
    let careful = match event.site.verb.as_str() {
        "PUT" => !text(version).is_empty(),
        "PATCH" => !text(version).is_empty() || is_apply,
        "DELETE" => event.sent["preconditions"].is_object(),
        _ => true,
    };
    (!careful).then(|| format!("S16: {} without a precondition", event.site))
}

/// S17: names follow from intent.
fn derived_names(ours: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut tokens = BTreeSet::from([String::new()]);
    for event in ours.iter().filter(|event| event.site.verb == "POST") {
        let metadata = &event.sent["metadata"];
        let name = text(&metadata["name"]);
        let derived = match event.site.target.as_str() {
            "pods" => {
                let label = |key: &str| text(&metadata["labels"][key]);
                let attempt = label(label::ATTEMPT).parse().unwrap_or_default();
                name == names::pod(label(label::RUN), attempt)
            }
            "terraformruns" => {
                let derived = serde_json::from_value::<TerraformRunSpec>(event.sent["spec"].clone())
                    .is_ok_and(|spec| tokens.iter().any(|token| name == run_name(&spec, token)));
                tokens.insert(format!("after:{name}"));
                derived
            }
            _ => !name.is_empty() && metadata["generateName"].is_null(),
        };
        if !derived && !is_event(event) {
            found.push(format!("S17: {} is not a name that follows from what it is for", name));
        }
    }
    found
}

/// Events tell, they decide nothing; two of the same are one too many at worst.
fn is_event(event: &Event) -> bool {
    event.site.target == "events"
}

fn run_name(spec: &TerraformRunSpec, token: &str) -> String {
    // The same commit in another image is another wish.
    let token = spec.build.as_ref().map_or_else(|| token.to_owned(), |image| format!("{image} {token}"));
    names::run(Wish {
        layer: spec.layer.name.as_str(),
        layer_uid: &spec.layer.uid,
        action: spec.action,
        mode: spec.mode,
        revision: &spec.layer.revision,
        plan: spec.artifact.as_ref().map(|artifact| &artifact.sha256),
        inputs: spec.inputs.as_ref(),
        setup: spec.setup.as_ref(),
        token: &token,
    })
}

/// S18: one pod an attempt, one run at a time for each layer and action.
fn bounded_children(api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut pods: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut open: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for event in api.iter().filter(|event| event.is_done() && event.is_write()) {
        let object = &event.answer;
        let uid = text(&object["metadata"]["uid"]);
        match (event.site.verb.as_str(), event.site.target.as_str()) {
            ("POST", "pods") => {
                let label = |key: &str| text(&object["metadata"]["labels"][key]);
                if pods.insert((label(label::RUN_UID), label(label::ATTEMPT)), uid).is_some() {
                    found.push(format!("S18: a second pod for {}", text(&object["metadata"]["name"])));
                }
            }
            ("POST", "terraformruns") => {
                let runs = open.entry(purpose(object)).or_default();
                if !runs.is_empty() {
                    found.push(format!("S18: {} beside another", text(&object["metadata"]["name"])));
                }
                runs.insert(uid);
            }
            (_, "terraformruns/status") => {
                if matches!(text(&object["status"]["state"]), "Succeeded" | "Failed") {
                    open.entry(purpose(object)).or_default().remove(uid);
                }
            }
            _ => {}
        }
    }
    found
}

fn purpose(run: &Value) -> (&str, &str) {
    (text(&run["spec"]["layer"]["uid"]), text(&run["spec"]["action"]))
}

/// S19: what a status says of itself only moves forward.
fn monotone(api: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut before: BTreeMap<&str, &Value> = BTreeMap::new();
    let written = api.iter().filter(|event| event.site.target.ends_with("/status") && event.is_done());
    for event in in_order(written.copied()) {
        let object = &event.answer;
        let Some(old) = before.insert(text(&object["metadata"]["uid"]), object) else { continue };
        let name = text(&object["metadata"]["name"]);
        let generation = |object: &Value| object["status"]["observedGeneration"].as_i64().unwrap_or_default();
        if generation(object) < generation(old) {
            found.push(format!("S19: observedGeneration of {name} fell"));
        }
        for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
            let known = old["status"]["conditions"].as_array().into_iter().flatten();
            let Some(known) = known.into_iter().find(|c| c["type"] == condition["type"]) else { continue };
            let same = known["status"] == condition["status"];
            if same && known["lastTransitionTime"] != condition["lastTransitionTime"] {
                found.push(format!("S19: {} of {name} has a new time and the old value", condition["type"]));
            }
        }
    }
    found
}

/// L7: nothing is written that changes nothing.
fn vain(event: &Event) -> Option<String> {
    let version = |object: &Value| text(&object["metadata"]["resourceVersion"]).to_owned();
    let same = version(&event.sent) == version(&event.answer) && !version(&event.sent).is_empty();
    // A layer that is let go by a patch has no newer version to answer with.
    let is_kept = match event.site.verb.as_str() {
        "PUT" => true,
        "PATCH" => ["secrets", "configmaps"].contains(&event.site.target.as_str()),
        _ => false,
    };
    (is_kept && event.is_done() && same).then(|| format!("L7: {} changed nothing", event.site))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn two_hands_on_one_repo_are_noticed() {
    let event = |verb: &str, path: &str| {
        let site = testkit::faults::Site {
            actor: "controllers".to_owned(),
            seam: Seam::Api,
            verb: verb.to_owned(),
            target: "repos".to_owned(),
            occurrence: 0,
        };
        Event {
            site,
            path: format!("/apis/terrane.dev/v1alpha1/namespaces/default/repos/{path}"),
            headers: BTreeMap::new(),
            sent: Value::Null,
            status: Some(200),
            answer: Value::Null,
            fault: None,
            held: false,
        }
    };
    let (read, write) = (event("GET", "a"), event("PUT", "a/status?x"));
    let other = event("GET", "b");
    let alone: Vec<&Event> = vec![&read, &write, &read, &read, &other, &write];
    assert_eq!(one_at_a_time("controllers", &alone), Vec::<String>::new());
    let two = one_at_a_time("controllers", &[&read, &read, &write, &write]);
    assert_eq!(two, ["Repo a was written twice after one read by controllers"]);
}
