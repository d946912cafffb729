//! What is shown of stacks and templates. Values of sensitive variables are in none of it.

use std::collections::BTreeMap;

use api::inputs::Variable;
use api::template::Declared;
use api::text::Workspace;
use api::{TerraformLayer, annotation, condition, label};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::paging::Ordered;
use crate::views::{RunLine, created};

/// What stands for a value that is not shown.
const MASK: &str = "(sensitive value)";

/// The template that a stack was made from; none of a layer that is no stack.
pub(super) fn template_of(layer: &TerraformLayer) -> Option<&str> {
    layer.labels().get(label::STACK_TEMPLATE).map(String::as_str)
}

/// Whether the request gave it, or the template.
pub(super) fn is_asked_for(layer: &TerraformLayer, variable: &Variable) -> bool {
    let names = layer.annotations().get(annotation::STACK_VARIABLES);
    names.is_some_and(|names| names.split(',').any(|name| name == variable.name.as_str()))
}

/// How a stack is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It was not looked at yet, or waits.
    Pending,
    /// It is planned or applied.
    Running,
    /// The infrastructure is what its variables say.
    Ready,
    /// It cannot go on by itself; `why` says what to do.
    Failed,
    /// It is destroyed.
    Deleting,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Running => "running",
            State::Ready => "ready",
            State::Failed => "failed",
            State::Deleting => "deleting",
        }
    }

    pub(super) fn of(layer: &TerraformLayer) -> Self {
        let Some(status) = &layer.status else { return Self::Pending };
        let is_true = |kind| condition::is_true(&status.conditions, kind);
        // What was said before the last change, or before somebody asked for a plan, is about something else.
        let is_answered = layer.annotations().get(annotation::SYNC) == status.last_sync.as_ref()
            || layer.annotations().get(annotation::SYNC).is_none();
        let is_current = status.observed_generation == layer.metadata.generation && is_answered;
        match layer.metadata.deletion_timestamp {
            Some(_) if is_current && is_true("Stalled") => Self::Failed,
            Some(_) => Self::Deleting,
            None if !is_current => Self::Pending,
            None if is_true("Ready") => Self::Ready,
            // Its Secret comes a moment after it, from whoever made it.
            None if lacks(layer, &first_secret(&layer.name_any())) => Self::Pending,
            None if is_true("Stalled") => Self::Failed,
            None if is_true("Reconciling") => Self::Running,
            None => Self::Pending,
        }
    }
}

/// The Secret of what a stack is made with.
pub(super) fn first_secret(id: &str) -> String {
    format!("{id}-variables")
}

/// Whether this Secret is what a layer waits for.
fn lacks(layer: &TerraformLayer, secret: &str) -> bool {
    let Some(status) = &layer.status else { return false };
    let ready = condition::find(&status.conditions, "Ready");
    ready.is_some_and(|ready| ready.reason == "InputsMissing")
        && status.why.as_ref().is_some_and(|why| why.contains(&format!("Secret {secret} does not exist")))
}

/// A stack in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StackSummary {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) template: String,
    pub(crate) state: State,
    /// The reason for the state, in words.
    pub(crate) why: String,
    /// The labels that it was made with.
    pub(crate) labels: BTreeMap<String, String>,
    /// The workspace of the tool that holds its state; no other stack has it.
    pub(crate) workspace: String,
    /// What the last plan would change, or what was changed by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<String>,
}

impl StackSummary {
    pub(crate) fn of(layer: &TerraformLayer) -> Option<Self> {
        template_of(layer).map(|template| Self::new(layer, template))
    }

    fn new(layer: &TerraformLayer, template: &str) -> Self {
        let status = layer.status.as_ref();
        let own = |(key, _): &(&String, &String)| *key != label::STACK_TEMPLATE;
        Self {
            id: layer.name_any(),
            namespace: layer.namespace().unwrap_or_default(),
            template: template.to_owned(),
            state: State::of(layer),
            why: status.and_then(|status| status.why.clone()).unwrap_or_default(),
            labels: layer.labels().iter().filter(own).map(|(k, v)| (k.clone(), v.clone())).collect(),
            workspace: layer.spec.workspace.as_ref().map_or("default", Workspace::as_str).to_owned(),
            last_result: status.and_then(|status| status.last_result.clone()),
            created_at: created(layer),
        }
    }
}

impl Ordered for StackSummary {
    const FIELDS: &'static [&'static str] = &["id", "namespace", "template", "state", "createdAt"];

    fn field(&self, field: &str) -> String {
        match field {
            "namespace" => self.namespace.clone(),
            "template" => self.template.clone(),
            "state" => self.state.as_str().to_owned(),
            "createdAt" => self.created_at.clone().unwrap_or_default(),
            _ => self.id.clone(),
        }
    }
}

/// A variable of a stack.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct StackVariable {
    /// `(sensitive value)` where it is sensitive.
    #[schema(value_type = Value)]
    value: Value,
    sensitive: bool,
}

/// A stack with all that is shown of it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stack {
    #[serde(flatten)]
    summary: StackSummary,
    /// What `If-Match` takes, as the header `ETag` says too.
    version: String,
    /// The variables that were asked for, by name; those of the template are not shown.
    variables: BTreeMap<String, StackVariable>,
    /// The commit of the template's code that is in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// Its plans and applies, newest first; `?run=` of logs takes a name.
    runs: Vec<RunLine>,
}

impl From<&TerraformLayer> for Stack {
    fn from(layer: &TerraformLayer) -> Self {
        let asked = layer.spec.variables.iter().filter(|variable| is_asked_for(layer, variable));
        let variables = asked.map(|variable| {
            let sensitive = variable.sensitive || variable.value_from.is_some();
            let value = match (&variable.value, sensitive) {
                (Some(value), false) => value.clone(),
                (_, _) => Value::from(MASK),
            };
            (variable.name.to_string(), StackVariable { value, sensitive })
        });
        let status = layer.status.as_ref();
        Self {
            summary: StackSummary::new(layer, template_of(layer).unwrap_or_default()),
            version: layer.resource_version().unwrap_or_default(),
            variables: variables.collect(),
            commit: status.and_then(|status| status.revision.applied.as_ref()).map(ToString::to_string),
            runs: status
                .map(|status| status.latest_runs.iter().map(RunLine::from).collect())
                .unwrap_or_default(),
        }
    }
}

/// A variable that a template's stacks can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TemplateVariable {
    name: String,
    /// As the code spells it; absent where it says none.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// A stack without a value for it is refused.
    required: bool,
    /// Its value is kept in a Secret and shown nowhere.
    sensitive: bool,
}

/// What stacks can be made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// Used for stacks that name no template.
    pub(crate) default: bool,
    repository: String,
    branch: String,
    path: String,
    /// Stacks can be made from it; else `why` says what keeps them.
    pub(crate) ready: bool,
    why: String,
    /// By name.
    variables: Vec<TemplateVariable>,
}

impl Template {
    pub(crate) fn of(layer: &TerraformLayer) -> Option<Self> {
        let template = layer.spec.template.as_ref()?;
        let status = layer.status.clone().unwrap_or_default();
        let spec = &layer.spec;
        let fixed = fixed(layer);
        let shown = status.declared.iter().filter(|declared| !fixed.contains(&declared.name));
        let is_open = !spec.variables_from.is_empty();
        Some(Self {
            name: layer.name_any(),
            namespace: layer.namespace().unwrap_or_default(),
            description: template.description.clone(),
            default: template.default,
            repository: spec.repository_name().map(ToString::to_string).unwrap_or_default(),
            branch: spec.branch.as_ref().map(ToString::to_string).unwrap_or_default(),
            path: spec.path.to_string(),
            ready: condition::is_true(&status.conditions, "Ready"),
            why: status.why.unwrap_or_default(),
            variables: shown
                .map(|declared: &Declared| TemplateVariable {
                    name: declared.name.clone(),
                    kind: declared.kind.clone(),
                    description: declared.description.clone(),
                    required: declared.required && !is_open,
                    sensitive: declared.sensitive,
                })
                .collect(),
        })
    }
}

/// The variables that a template or its environment gives, and Terrane itself: no request sets them.
pub(super) fn fixed(template: &TerraformLayer) -> Vec<String> {
    let spec = &template.spec;
    let given = spec.variables.iter().map(|variable| variable.name.to_string());
    let environment = spec.environment.iter().filter_map(|one| one.name.as_str().strip_prefix("TF_VAR_"));
    given.chain(environment.map(str::to_owned)).chain(["terrane_workspace".to_owned()]).collect()
}

impl Ordered for Template {
    const FIELDS: &'static [&'static str] = &["namespace"];

    fn field(&self, field: &str) -> String {
        match field {
            "namespace" => self.namespace.clone(),
            _ => self.name.clone(),
        }
    }
}
