//! The annotation in which client-side `kubectl apply` keeps what it applied last. It lets the same user move to server-side
//! apply without conflicts with himself, and is kept up to date so that he may move back.

use serde_json::{Map, Value};

use super::collect::fields_of;
use super::compare::compare;
use super::place::Place;
use super::set::FieldSet;
use super::validate::validate;
use super::wording;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The only manager for which the annotation counts; who wants it left alone applies under another name.
pub(super) const MANAGER: &str = "kubectl";

/// All annotations of an object together may not be longer than this.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// The fields that client-side apply set and that still have its values: taking those over is no conflict.
pub(super) fn unchanged_fields(place: &Place<'_>, live: &Value, api_version: &str) -> Option<FieldSet> {
    let applied: Value = serde_json::from_str(annotation(live)?).ok()?;
    if applied.get("apiVersion")?.as_str()? != api_version {
        return None;
    }
    validate(place, &applied).ok()?;
    let changes = compare(place, &applied, live).ok()?;
    let changed = changes.modified.union(&changes.added).union(&changes.removed);
    Some(fields_of(place, &applied).difference(&changed))
}

/// Records `config` in the annotation, if the object has it. Should the annotations become too long it is dropped instead.
pub(super) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = annotations_of(&mut config) {
        annotations.shift_remove(ANNOTATION);
        if annotations.is_empty()
            && let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.shift_remove("annotations");
        }
    }
    let text = format!("{}\n", wording::wire(&config));
    let Some(annotations) = annotations_of(object) else { return };
    let others = annotations.iter().filter(|(name, _)| *name != ANNOTATION);
    let length: usize = others.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if length + ANNOTATION.len() + text.len() > MAX_ANNOTATIONS {
        annotations.shift_remove(ANNOTATION);
    } else {
        annotations.insert(ANNOTATION.to_owned(), text.into());
    }
}

fn annotations_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}
