//! A Terraform that metacontroller keeps. The decisions are those of `terraform`; they are said as the objects that are to be there, and
//! metacontroller makes, changes and deletes them. It deletes what is not named, so all that is to stay is named each time.

use std::time::Duration;

use api::terraform::TerraformStatus;
use api::{Terraform, WORKLOAD_FINALIZER};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::child::{is_ours, labels};
use super::terraform::{Effect, Observed, Report, decide, report};
use super::workload::LAYER_FIELDS;
use crate::Wake;

#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: TerraformStatus,
    /// All that is to be there, each with the fields that the Terraform sets and no others.
    pub children: Vec<Value>,
    /// When to ask again if nothing changes until then.
    pub resync: Option<Duration>,
    /// Nothing is left that it stands for.
    pub finalized: bool,
}

/// What metacontroller's finalizer begins with; the name of the CompositeController follows.
const FINALIZER: &str = "metacontroller.io/compositecontroller-";

pub(super) fn is_of_metacontroller(finalizer: &str) -> bool {
    finalizer.starts_with(FINALIZER)
}

pub fn answer(seen: &Observed<'_>) -> Answer {
    let held = held(seen.terraform);
    let seen = Observed { terraform: &held, ..*seen };
    let effects = decide(&seen);
    let Report { status, wake, let_go } = report(&seen, &[]);
    let children = repository(&seen, &effects).into_iter().chain(layer(&seen, &effects)).collect();
    Answer { status, children, resync: resync(wake, seen.now), finalized: let_go }
}

/// As the decisions want to see it: held back until its layer is gone, and nobody else's. It is metacontroller that holds it.
fn held(terraform: &Terraform) -> Terraform {
    let mut held = terraform.clone();
    let finalizers = held.metadata.finalizers.get_or_insert_default();
    finalizers.retain(|finalizer| !is_of_metacontroller(finalizer) && finalizer != WORKLOAD_FINALIZER);
    finalizers.push(WORKLOAD_FINALIZER.to_owned());
    held
}

fn resync(wake: Wake, now: Timestamp) -> Option<Duration> {
    match wake {
        Wake::OnChange => None,
        // Never at once: it would be asked for ever.
        Wake::At(at) => {
            Some(Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_secs(1)))
        }
    }
}

fn repository(seen: &Observed<'_>, effects: &[Effect]) -> Option<Value> {
    let door = &seen.terraform.metadata;
    let mut patch = None;
    for effect in effects {
        match effect {
            Effect::CreateRepository(made) => {
                return named(door, "TerraformRepository", fields(serde_json::to_value(&made.spec)));
            }
            Effect::PatchRepository(change) => patch = change.get("spec"),
            Effect::AddFinalizer
            | Effect::CreateLayer(_)
            | Effect::PatchLayer(_)
            | Effect::DeleteLayer(_) => {}
        }
    }
    let found = seen.repository.filter(|found| is_ours(door, &found.metadata))?;
    let place = fields(serde_json::to_value(&found.spec))?.remove("repository")?;
    let mut spec = Map::from_iter([("repository".to_owned(), only(&place, &["url", "credentials"]))]);
    merge(&mut spec, patch);
    named(door, "TerraformRepository", Some(spec))
}

fn layer(seen: &Observed<'_>, effects: &[Effect]) -> Option<Value> {
    let door = &seen.terraform.metadata;
    let mut patch = None;
    for effect in effects {
        match effect {
            Effect::CreateLayer(made) => {
                return named(door, "TerraformLayer", fields(serde_json::to_value(&made.spec)));
            }
            Effect::PatchLayer(change) => patch = change.get("spec"),
            Effect::DeleteLayer(_) => return None,
            Effect::AddFinalizer | Effect::CreateRepository(_) | Effect::PatchRepository(_) => {}
        }
    }
    let found = seen.layer.filter(|found| is_ours(door, &found.metadata))?;
    let is_ending = door.deletion_timestamp.is_some() && found.metadata.deletion_timestamp.is_some();
    let mut spec = fields(serde_json::to_value(&found.spec)).filter(|_| !is_ending)?;
    spec.retain(|name, _| LAYER_FIELDS.contains(&name.as_str()));
    spec.insert("remediationStrategy".to_owned(), json!({ "autoApply": true }));
    merge(&mut spec, patch);
    named(door, "TerraformLayer", Some(spec))
}

/// As metacontroller wants an object: with what is wished for alone. It adds itself as the owner.
fn named(door: &ObjectMeta, kind: &str, spec: Option<Map<String, Value>>) -> Option<Value> {
    Some(json!({
        "apiVersion": format!("{}/{}", api::GROUP, api::VERSION),
        "kind": kind,
        "metadata": { "name": door.name, "namespace": door.namespace, "labels": labels(door) },
        "spec": spec?,
    }))
}

fn fields(spec: serde_json::Result<Value>) -> Option<Map<String, Value>> {
    match spec {
        Ok(Value::Object(fields)) => Some(fields),
        Ok(_) | Err(_) => None,
    }
}

fn only(found: &Value, names: &[&str]) -> Value {
    let kept = found.as_object().into_iter().flatten();
    let kept = kept.filter(|(name, _)| names.contains(&name.as_str()));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// A merge patch, as the API would carry it out. O(patch).
fn merge(into: &mut Map<String, Value>, patch: Option<&Value>) {
    for (name, value) in patch.and_then(Value::as_object).into_iter().flatten() {
        match (value, into.get_mut(name)) {
            (Value::Null, _) => drop(into.remove(name)),
            (Value::Object(_), Some(Value::Object(below))) => merge(below, Some(value)),
            (value, _) => drop(into.insert(name.clone(), value.clone())),
        }
    }
}
