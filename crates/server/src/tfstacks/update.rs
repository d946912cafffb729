//! Other variables for a stack. What is read, changed and written back is written only where nobody changed it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::inputs::Variable;
use api::{TerraformLayer, annotation, label};
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::create::{check_labels, random_word};
use super::requests::Which;
use super::variables::{Given, Values, forget, keep, secrets_of};
use super::views::{is_asked_for, template_of};
use super::{Accepted, accepted, templates};
use crate::answers::{Seen, Told};
use crate::may::{May, PatchLayer};
use crate::{Refusal, Service};

/// The controllers write the layer too: so often it is read again before the caller is told.
const TRIES: usize = 10;

/// What a stack is to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// Values of the code's variables, by name and of any JSON type.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>)]
    variables: Values,
    /// Variables whose values are to be kept in a Secret and shown nowhere.
    #[serde(default)]
    sensitive: BTreeSet<String>,
    /// Labels; without them they stay as they are. Null takes one away.
    labels: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// What is not named goes.
    Replace,
    /// What is not named stays; null takes it away.
    Merge,
}

/// Replace the variables of a stack, which is then planned and applied
///
/// Variables that are left out go back to the code's defaults; sensitive ones must be sent again. It is planned anew also where nothing is
/// different, so that one that has failed is tried again.
#[utoipa::path(
    put, operation_id = "replaceStack", tag = "stacks",
    path = "/tfstacks/{id}",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        ("If-Match" = Option<String>, Header, description = "Only the version that has this ETag"),
    ),
    request_body = Change,
    responses((
        status = 202, body = Accepted,
        headers(("Location" = String, description = "Where the request tells what became of it")),
    )),
)]
pub(crate) async fn replace(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
    seen: Seen,
    Told(change): Told<Change>,
) -> Result<Response, Refusal> {
    changed(&service, &may, seen, &change, How::Replace).await
}

/// Change some variables of a stack, which is then planned and applied
///
/// As JSON Merge Patch has it (RFC 7396): what is left out stays, sensitive values included, and null takes a variable away.
#[utoipa::path(
    patch, operation_id = "changeStack", tag = "stacks",
    path = "/tfstacks/{id}",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        ("If-Match" = Option<String>, Header, description = "Only the version that has this ETag"),
    ),
    request_body = Change,
    responses((
        status = 202, body = Accepted,
        headers(("Location" = String, description = "Where the request tells what became of it")),
    )),
)]
pub(crate) async fn merge(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
    seen: Seen,
    Told(change): Told<Change>,
) -> Result<Response, Refusal> {
    changed(&service, &may, seen, &change, How::Merge).await
}

async fn changed(
    service: &Service,
    may: &May<PatchLayer>,
    Seen(mut seen): Seen,
    change: &Change,
    how: How,
) -> Result<Response, Refusal> {
    let May { namespace, name: id, .. } = may;
    if let Some(labels) = &change.labels {
        check_labels(labels.keys())?;
    }
    let client = service.acting(&may.person)?;
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), namespace);
    for _ in 0..TRIES {
        let mut layer = service.stack(namespace, id).await?;
        if seen.is_some() && seen != layer.resource_version() {
            return Err(Refusal::Outdated(format!(
                "stack {id} has changed since If-Match was seen; read it again"
            )));
        }
        if layer.metadata.deletion_timestamp.is_some() {
            return Err(Refusal::Conflict(format!("stack {id} is being deleted; make another")));
        }
        let template = service.template_of(&layer).await?;
        let before: Vec<&Variable> =
            layer.spec.variables.iter().filter(|variable| is_asked_for(&layer, variable)).collect();
        let stays = |variable: &&&Variable| {
            how == How::Merge && !change.variables.contains_key(variable.name.as_str())
        };
        let kept: Vec<Variable> = before.iter().filter(stays).map(|variable| (*variable).clone()).collect();
        // What was sensitive once stays so, whoever forgets to say it.
        let was_hidden = before.iter().filter(|variable| variable.value_from.is_some());
        let was_hidden = was_hidden.map(|variable| variable.name.to_string());
        let again =
            was_hidden.filter(|name| change.variables.get(name).is_some_and(|value| !value.is_null()));
        let sensitive: BTreeSet<String> = change.sensitive.iter().cloned().chain(again).collect();
        let given = Given {
            values: &change.variables,
            sensitive: &sensitive,
            kept: kept.iter().map(|variable| variable.name.to_string()).collect(),
        };
        given.check(&template)?;
        check_hidden(&kept, &change.sensitive)?;
        let hidden = given.hidden(&template);
        // Never that of an earlier try: whoever overtook it may be deleting that one.
        let secret = format!("{id}-variables-{}", random_word()?);
        let unneeded = unneeded(&layer);
        if !hidden.is_empty() || !unneeded.is_empty() {
            let names = unneeded.iter().chain((!hidden.is_empty()).then_some(&secret));
            layer = match announce(&layers, &layer, names).await? {
                Some(announced) => announced,
                None => continue,
            };
            // That was us.
            seen = seen.and_then(|_| layer.resource_version());
        }
        forget(&client, &layer, &unneeded).await;
        keep(&client, &layer, &secret, &hidden).await?;
        let asked: Vec<Variable> = kept.into_iter().chain(given.laid(&hidden, &secret)?).collect();
        let patch = build_patch(&layer, &asked, change, how);
        match layers.patch(id, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => {
                let generation = written.metadata.generation.unwrap_or(1);
                return Ok(accepted(&written, Which::Update(generation)));
            }
            Err(kube::Error::Api(answer)) if answer.code == 409 => {}
            Err(error) => return Err(Refusal::answered(&format!("change stack {id}"), error)),
        }
    }
    Err(Refusal::Conflict(format!("stack {id} was changed by others all the time; try again")))
}

/// The Secrets of the stack that none of its variables comes from: the update before replaced them, or announced them and did not end.
fn unneeded(layer: &TerraformLayer) -> BTreeSet<String> {
    let names = layer.annotations().get(annotation::STACK_SECRETS).map(String::as_str).unwrap_or_default();
    let used = secrets_of(&layer.spec.variables);
    let names = names.split(',').filter(|name| !name.is_empty() && !used.contains(*name));
    names.map(str::to_owned).collect()
}

/// Names in the layer what is about to be made, and what is about to go: a Secret of which no layer knows would stay until its stack goes. Nothing
/// where somebody else changed the layer first. Whoever named one before, and did not lay it into the layer yet, is refused by this write.
async fn announce(
    layers: &Api<TerraformLayer>,
    layer: &TerraformLayer,
    names: impl Iterator<Item = &String>,
) -> Result<Option<TerraformLayer>, Refusal> {
    let id = layer.name_any();
    let names: Vec<&str> = names.map(String::as_str).collect();
    let patch = json!({
        "metadata": {
            "resourceVersion": layer.resource_version(),
            "annotations": { annotation::STACK_SECRETS: names.join(",") },
        },
    });
    match layers.patch(&id, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(announced) => Ok(Some(announced)),
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(None),
        Err(error) => Err(Refusal::answered(&format!("change stack {id}"), error)),
    }
}

/// A value that stands in the layer cannot become sensitive without being sent again.
fn check_hidden(kept: &[Variable], sensitive: &BTreeSet<String>) -> Result<(), Refusal> {
    let is_open =
        |variable: &&Variable| variable.value_from.is_none() && sensitive.contains(variable.name.as_str());
    match kept.iter().find(is_open) {
        None => Ok(()),
        Some(variable) => Err(Refusal::Invalid(format!(
            "{} becomes sensitive only together with a new value: the present one was shown",
            variable.name
        ))),
    }
}

fn build_patch(layer: &TerraformLayer, asked: &[Variable], change: &Change, how: How) -> Value {
    let fixed = layer.spec.variables.iter().filter(|variable| !is_asked_for(layer, variable));
    let all: Vec<&Variable> = fixed.chain(asked).collect();
    let names: Vec<&str> = asked.iter().map(|variable| variable.name.as_str()).collect();
    let mut labels: BTreeMap<String, Option<String>> = BTreeMap::new();
    if let Some(wanted) = &change.labels {
        if how == How::Replace {
            let old = layer.labels().keys().filter(|key| *key != label::STACK_TEMPLATE);
            labels.extend(old.map(|key| (key.clone(), None)));
        }
        labels.extend(wanted.clone());
    }
    let needed = secrets_of(asked);
    let before = layer.spec.variables.iter().filter(|variable| is_asked_for(layer, variable));
    let before: Vec<Variable> = before.cloned().collect();
    // These stay until the next update: a pod that is about to start may still mount them.
    let replaced: Vec<String> = secrets_of(&before).difference(&needed).cloned().collect();
    json!({
        "metadata": {
            "resourceVersion": layer.resource_version(),
            "labels": labels,
            "annotations": {
                annotation::STACK_VARIABLES: names.join(","),
                annotation::STACK_SECRETS: replaced.join(","),
                // It is planned also where nothing is different: whoever sends it again wants it tried again.
                annotation::SYNC: Timestamp::now().to_string(),
            },
        },
        "spec": { "variables": all },
    })
}

impl Service {
    /// The template of a stack, by which its variables are checked.
    async fn template_of(&self, layer: &TerraformLayer) -> Result<TerraformLayer, Refusal> {
        let namespace = layer.namespace().unwrap_or_default();
        let name = template_of(layer).unwrap_or_default();
        let gone = || {
            Refusal::Conflict(format!(
                "template {namespace}/{name} of stack {} is gone, so its variables cannot be checked; the stack can only be deleted",
                layer.name_any()
            ))
        };
        let template = match self.layer(&namespace, name).await {
            Err(Refusal::NotFound(_)) => return Err(gone()),
            other => other?,
        };
        if template.spec.template.is_none() {
            return Err(gone());
        }
        templates::known(&template)?;
        Ok(template)
    }
}
