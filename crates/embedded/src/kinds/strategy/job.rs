//! Jobs: the selector that the server makes, and what is refused.

use serde_json::{Value, json};

use super::super::{Cause, meta};
use super::{items, part, pod, text};

const LABELS: [&str; 4] =
    ["batch.kubernetes.io/controller-uid", "controller-uid", "batch.kubernetes.io/job-name", "job-name"];

/// Gives the template the labels that name this job, and selects by its uid.
pub(super) fn select(job: &mut Value) {
    if job.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let (name, uid) = (meta::name(job).to_owned(), meta::uid(job).to_owned());
    let Some(spec) = job.get_mut("spec") else { return };
    let template = spec.as_object_mut().map(|s| s.entry("template").or_insert_with(|| json!({})));
    if let Some(template) = template {
        let metadata = part(template, "metadata");
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            for label in LABELS {
                let value = if label.ends_with("uid") { &uid } else { &name };
                labels.entry(label).or_insert_with(|| value.as_str().into());
            }
        }
    }
    let selector = part(spec, "selector");
    let matched = selector.entry("matchLabels").or_insert_with(|| json!({}));
    if let Some(matched) = matched.as_object_mut() {
        matched.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| uid.into());
    }
}

pub(super) fn validate(job: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let none = json!({});
    let spec = job.get("spec").unwrap_or(&none);
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        if let Some(number) = spec.get(field).filter(|n| n.as_i64().is_some_and(|n| n < 0)) {
            causes.push(Cause::invalid(
                format!("spec.{field}"),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
    let mode = text(spec, "/completionMode");
    if !mode.is_empty() && !["NonIndexed", "Indexed"].contains(&mode) {
        causes.push(Cause::not_supported("spec.completionMode", &mode.into(), &["NonIndexed", "Indexed"]));
    }
    if mode == "Indexed" && spec.get("completions").is_none() {
        causes.push(Cause::required("spec.completions", "when completion mode is Indexed"));
    }
    let template = spec.get("template").unwrap_or(&none);
    pod::validate_spec(template.get("spec").unwrap_or(&none), "spec.template.spec", &mut causes);
    let policy = text(template, "/spec/restartPolicy");
    if policy.is_empty() || policy == "Always" {
        causes.push(Cause::required(
            "spec.template.spec.restartPolicy",
            "valid values: \"OnFailure\", \"Never\"",
        ));
    } else if !["OnFailure", "Never"].contains(&policy) {
        causes.push(Cause::not_supported(
            "spec.template.spec.restartPolicy",
            &policy.into(),
            &["OnFailure", "Never"],
        ));
    }
    validate_selector(spec, template, &mut causes);
    if let Some(old) = old {
        validate_change(spec, old.get("spec").unwrap_or(&none), &mut causes);
    }
    causes
}

fn validate_selector(spec: &Value, template: &Value, causes: &mut Vec<Cause>) {
    let Some(selector) = spec.get("selector") else {
        causes.push(Cause::required("spec.selector", ""));
        return;
    };
    let labels = template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    let matched = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let all = matched.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    // Expressions need a manual selector, whose author answers for them.
    if !all && items(selector, "/matchExpressions").is_empty() {
        causes.push(Cause::invalid(
            "spec.template.metadata.labels",
            &labels,
            "`selector` does not match template `labels`",
        ));
    }
}

fn validate_change(spec: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let suspended = old.get("suspend") == Some(&Value::Bool(true));
    for field in [
        "completions",
        "selector",
        "template",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        let (new, old) = (spec.get(field).unwrap_or(&Value::Null), old.get(field).unwrap_or(&Value::Null));
        // A suspended job that has not started may still be placed elsewhere.
        if new != old && !(field == "template" && suspended) {
            causes.push(Cause::invalid(format!("spec.{field}"), new, "field is immutable"));
        }
    }
}
