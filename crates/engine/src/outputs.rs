//! Which outputs of a layer belong into which Secret or ConfigMap, and what has to be done there. Only what the layer itself wrote is ever
//! changed or removed: an object is the layer's by its owner, a key by the list that stands on the object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::inputs::{Data, Kind, Object};
use api::outputs::{Output, OutputKey, OutputPlace, OutputTarget, Outputs};
use api::text::DataKey;
use api::{TerraformLayer, annotation, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;

use crate::manifests::label_value;

/// What Kubernetes lets the values of one object be together.
const MOST_BYTES: usize = 1024 * 1024;
/// Outputs that a person is told of, where one was not found.
const NAMED: usize = 10;

/// What is known of the layer's outputs once they were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Objects that may hold outputs. They stand in the status before the first is written, so that none is forgotten.
    pub places: BTreeSet<Object>,
    pub standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is to be written, and nothing was.
    NotAsked,
    /// They could not be looked at now.
    Unknown,
    /// The objects have to be written into the status first.
    Recording,
    /// There is nothing to write yet.
    Waiting,
    Written(String),
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub why: String,
}

/// Where the outputs of what is in place are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Giver {
    /// Nothing is in place yet.
    Nobody,
    /// It was put in place by a run that was not asked to keep them.
    Forgetful,
    Run {
        name: String,
        uid: String,
        attempt: u32,
    },
}

/// An object as it was read.
#[derive(Clone)]
pub struct Found {
    pub metadata: ObjectMeta,
    pub data: Data,
    pub immutable: bool,
}

/// The values may be secrets.
impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

/// What is to be done to one object. It is what it was when it was read, or nothing is done.
#[derive(Clone, PartialEq)]
pub enum Change {
    Create {
        object: Object,
        data: Data,
    },
    /// Keys that are set or removed, and all those that are the layer's from then on.
    Update {
        object: Object,
        version: String,
        set: Data,
        remove: BTreeSet<String>,
        keys: BTreeSet<String>,
    },
    Delete {
        object: Object,
        uid: String,
        version: String,
    },
    /// Somebody else's keys stay, and the object with them: these go, and nothing of it is the layer's any more.
    Release {
        object: Object,
        version: String,
        remove: BTreeSet<String>,
        owners: Vec<OwnerReference>,
    },
}

/// The values may be secrets.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, object) = match self {
            Self::Create { object, .. } => ("create", object),
            Self::Update { object, .. } => ("update", object),
            Self::Delete { object, .. } => ("delete", object),
            Self::Release { object, .. } => ("release", object),
        };
        write!(f, "{what} {object}")
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub changes: Vec<Change>,
    /// What is known once the changes are made.
    pub outcome: Outcome,
}

/// The objects that the spec names.
pub fn asked(layer: &TerraformLayer) -> BTreeSet<Object> {
    layer.spec.write_outputs_to.iter().filter_map(OutputTarget::object).collect()
}

/// The objects that the status remembers.
pub fn recorded(layer: &TerraformLayer) -> BTreeSet<Object> {
    let places = layer.status.as_ref().map_or(&[][..], |status| &status.output_targets);
    places.iter().filter_map(OutputPlace::object).collect()
}

/// What is known without a look at any object; none where one is needed. O(targets).
pub fn without_looking(layer: &TerraformLayer) -> Option<Outcome> {
    let (asked, recorded) = (asked(layer), recorded(layer));
    if layer.metadata.deletion_timestamp.is_some() {
        // The garbage collector takes them once the layer is gone.
        return Some(Outcome { places: recorded, standing: Standing::Unknown });
    }
    if asked.is_empty() && recorded.is_empty() {
        return Some(Outcome { places: recorded, standing: Standing::NotAsked });
    }
    (!asked.is_subset(&recorded))
        .then(|| Outcome { places: recorded.union(&asked).cloned().collect(), standing: Standing::Recording })
}

/// The run that should have kept the outputs has none.
pub fn unkept(run: &str) -> Refusal {
    let why = format!("run {run} kept no outputs; its log says why, and terrane sync lets another one try");
    Refusal { reason: "OutputsUnknown", why }
}

/// What the API does not let us do may be allowed later.
pub const NOT_PERMITTED: &str = "NotPermitted";

/// An object cannot be read or written.
pub fn forbidden(object: &Object, answer: &str) -> Refusal {
    Refusal { reason: NOT_PERMITTED, why: format!("{object} cannot be written: {answer}") }
}

/// `outputs` are what is to be written, or why that is not known. O(keys wanted and there · log, and the bytes of the values).
pub fn decide(
    layer: &TerraformLayer,
    outputs: Result<&Outputs, Standing>,
    found: &BTreeMap<Object, Found>,
) -> Decision {
    let (mut changes, mut places) = (Vec::new(), BTreeSet::new());
    let (mut refusals, mut written) = (Vec::new(), Vec::new());
    let asked = asked(layer);
    for object in recorded(layer).difference(&asked) {
        match found.get(object).map_or(Ok(None), |found| clear(layer, object, found)) {
            Ok(change) => changes.extend(change),
            Err(refusal) => {
                places.insert(object.clone());
                refusals.push(refusal);
            }
        }
    }
    if let Ok(outputs) = &outputs {
        for object in &asked {
            match fill(layer, object, outputs, found.get(object)) {
                Ok((change, keys)) => {
                    changes.extend(change);
                    written.push(match keys {
                        1 => format!("1 output in {object}"),
                        _ => format!("{keys} outputs in {object}"),
                    });
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
    }
    places.extend(asked.iter().cloned());
    let standing = match (outputs, first_and_count(refusals)) {
        (Ok(_), None) if asked.is_empty() => Standing::NotAsked,
        (Ok(_), None) => Standing::Written(written.join(", ")),
        (Err(_), None) if asked.is_empty() => Standing::NotAsked,
        (Err(standing), None) => standing,
        (_, Some(refusal)) => Standing::Refused(refusal),
    };
    Decision { changes, outcome: Outcome { places, standing } }
}

fn first_and_count(refusals: Vec<Refusal>) -> Option<Refusal> {
    let more = refusals.len().saturating_sub(1);
    let first = refusals.into_iter().next()?;
    Some(match more {
        0 => first,
        1 => Refusal { why: format!("{}; and 1 more", first.why), ..first },
        _ => Refusal { why: format!("{}; and {more} more", first.why), ..first },
    })
}

/// What an object that is asked for needs, and how many keys of it are the layer's then.
fn fill(
    layer: &TerraformLayer,
    object: &Object,
    outputs: &Outputs,
    found: Option<&Found>,
) -> Result<(Option<Change>, usize), Refusal> {
    let targets =
        layer.spec.write_outputs_to.iter().filter(|target| target.object().as_ref() == Some(object));
    let mut wanted = Data::new();
    let mut named: BTreeMap<String, String> = BTreeMap::new();
    for target in targets {
        for (key, (output, value)) in chosen(target, object, outputs)? {
            match named.insert(key.clone(), output.clone()) {
                Some(other) if other != output => {
                    let why = format!(
                        "outputs {other} and {output} would both be key {key} of {object}; give one of them another by `as`"
                    );
                    return Err(Refusal { reason: "KeyTwice", why });
                }
                Some(_) | None => drop(wanted.insert(key, value)),
            }
        }
    }
    let count = wanted.len();
    let Some(found) = found else {
        check_size(object, wanted.values())?;
        return Ok((Some(Change::Create { object: object.clone(), data: wanted }), count));
    };
    if !is_of(layer, &found.metadata) {
        return Err(not_ours(object, &found.metadata));
    }
    let ours = keys_of(&found.metadata);
    if let Some(key) = wanted.keys().find(|key| !ours.contains(*key) && found.data.contains_key(*key)) {
        let why = format!(
            "key {key} of {object} was not written by this layer; remove it there, or give the output another by `as`"
        );
        return Err(Refusal { reason: "KeyTaken", why });
    }
    let theirs = found.data.iter().filter(|(key, _)| !ours.contains(*key)).map(|(_, value)| value);
    check_size(object, wanted.values().chain(theirs))?;
    let keys: BTreeSet<String> = wanted.keys().cloned().collect();
    let remove: BTreeSet<String> =
        ours.iter().filter(|key| !keys.contains(*key) && found.data.contains_key(*key)).cloned().collect();
    let set: Data = wanted.into_iter().filter(|(key, value)| found.data.get(key) != Some(value)).collect();
    if set.is_empty() && remove.is_empty() && ours == keys && is_marked(layer, &found.metadata) {
        return Ok((None, count));
    }
    if found.immutable && !(set.is_empty() && remove.is_empty()) {
        return Err(immutable(object));
    }
    let version = found.metadata.resource_version.clone().unwrap_or_default();
    Ok((Some(Change::Update { object: object.clone(), version, set, remove, keys }), count))
}

/// What an object needs that the spec no longer names. What is not the layer's is none of its business.
fn clear(layer: &TerraformLayer, object: &Object, found: &Found) -> Result<Option<Change>, Refusal> {
    if !is_of(layer, &found.metadata) {
        return Ok(None);
    }
    let ours = keys_of(&found.metadata);
    let version = found.metadata.resource_version.clone().unwrap_or_default();
    if found.data.keys().all(|key| ours.contains(key)) {
        let uid = found.metadata.uid.clone().unwrap_or_default();
        return Ok(Some(Change::Delete { object: object.clone(), uid, version }));
    }
    let remove: BTreeSet<String> = ours.into_iter().filter(|key| found.data.contains_key(key)).collect();
    if found.immutable && !remove.is_empty() {
        return Err(immutable(object));
    }
    let uid = layer.metadata.uid.as_ref();
    let owners = found.metadata.owner_references.iter().flatten().filter(|owner| Some(&owner.uid) != uid);
    let owners = owners.cloned().collect();
    Ok(Some(Change::Release { object: object.clone(), version, remove, owners }))
}

/// The keys of one target, each with the output that it holds.
fn chosen(
    target: &OutputTarget,
    object: &Object,
    outputs: &Outputs,
) -> Result<BTreeMap<String, (String, Vec<u8>)>, Refusal> {
    let is_secret = object.kind == Kind::Secret;
    let mut chosen = BTreeMap::new();
    if target.keys.is_empty() {
        for (name, output) in outputs.iter().filter(|(_, output)| is_secret || !output.sensitive) {
            let Some(value) = value_of(output) else { continue };
            if DataKey::new(name.as_str()).is_err() {
                let why = format!(
                    "output {name} cannot be a key of {object}; name it in `keys` with another by `as`"
                );
                return Err(Refusal { reason: "KeyInvalid", why });
            }
            chosen.insert(name.clone(), (name.clone(), value));
        }
        return Ok(chosen);
    }
    for OutputKey { output, key } in &target.keys {
        let known = outputs.get(output.as_str()).and_then(|found| Some((found, value_of(found)?)));
        let Some((found, value)) = known else { return Err(missing(output.as_str(), outputs)) };
        if found.sensitive && !is_secret {
            let why = format!(
                "output {output} is sensitive and does not go into {object}; write it to a Secret, or leave it out of `keys`"
            );
            return Err(Refusal { reason: "OutputSensitive", why });
        }
        let key = key.as_ref().map_or(output.as_str(), DataKey::as_str).to_owned();
        if let Some((other, _)) = chosen.insert(key.clone(), (output.to_string(), value))
            && other != output.as_str()
        {
            let why = format!(
                "outputs {other} and {output} would both be key {key} of {object}; give one of them another by `as`"
            );
            return Err(Refusal { reason: "KeyTwice", why });
        }
    }
    Ok(chosen)
}

fn missing(output: &str, outputs: &Outputs) -> Refusal {
    let known: Vec<&str> = outputs.keys().take(NAMED).map(String::as_str).collect();
    let known = match (known.len(), outputs.len()) {
        (0, _) => "none".to_owned(),
        (shown, all) if shown < all => format!("{} and {} more", known.join(", "), all - shown),
        _ => known.join(", "),
    };
    let why = format!(
        "the code gives no output {output}; it gives: {known}; correct spec.writeOutputsTo, or add the output to the code"
    );
    Refusal { reason: "OutputMissing", why }
}

fn not_ours(object: &Object, metadata: &ObjectMeta) -> Refusal {
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let whose =
        owner.map_or("not this layer's".to_owned(), |owner| format!("of {} {}", owner.kind, owner.name));
    let why =
        format!("{object} is there already and {whose}; delete it, or name another in spec.writeOutputsTo");
    Refusal { reason: "NotOurs", why }
}

fn immutable(object: &Object) -> Refusal {
    let why =
        format!("{object} was made immutable and cannot follow the outputs; delete it, and it is made anew");
    Refusal { reason: "Immutable", why }
}

fn check_size<'a>(object: &Object, values: impl Iterator<Item = &'a Vec<u8>>) -> Result<(), Refusal> {
    let bytes: usize = values.map(Vec::len).sum();
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let why = format!(
        "{object} would hold {bytes} bytes, and {MOST_BYTES} fit; choose fewer outputs by `keys`, or write them to several objects"
    );
    Err(Refusal { reason: "TooLarge", why })
}

/// Whether the layer made it: the garbage collector takes it with the layer.
fn is_of(layer: &TerraformLayer, metadata: &ObjectMeta) -> bool {
    let uid = layer.metadata.uid.as_deref().unwrap_or_default();
    metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.uid == uid && !uid.is_empty())
}

fn keys_of(metadata: &ObjectMeta) -> BTreeSet<String> {
    let list = metadata.annotations.as_ref().and_then(|all| all.get(annotation::OUTPUT_KEYS));
    let keys = list.map_or("", String::as_str).split(',').filter(|key| !key.is_empty());
    keys.map(str::to_owned).collect()
}

/// What the annotation of an object says.
pub fn key_list(keys: &BTreeSet<String>) -> String {
    keys.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// By which people find what Terrane wrote.
pub fn labels(layer: &TerraformLayer) -> BTreeMap<String, String> {
    let name = label_value(layer.metadata.name.as_deref().unwrap_or_default());
    [(label::MANAGED_BY.to_owned(), "terrane".to_owned()), (label::LAYER.to_owned(), name)].into()
}

fn is_marked(layer: &TerraformLayer, metadata: &ObjectMeta) -> bool {
    let there = metadata.labels.as_ref();
    labels(layer).iter().all(|(key, value)| there.and_then(|all| all.get(key)) == Some(value))
}

/// Text as it is, everything else as JSON; null is no output.
fn value_of(output: &Output) -> Option<Vec<u8>> {
    let text = output.value.get();
    match serde_json::from_str::<Option<String>>(text) {
        Ok(text) => text.map(String::into_bytes),
        Err(_) => Some(compact(text).into_bytes()),
    }
}

/// JSON without space between its parts, and without the escapes by which the tools keep it out of HTML. Numbers stay as they are.
fn compact(json: &str) -> String {
    let mut shorter = String::with_capacity(json.len());
    let mut rest = json.chars();
    let mut in_text = false;
    while let Some(next) = rest.next() {
        match next {
            '\\' if in_text => {
                let escaped = [("u003c", '<'), ("u003e", '>'), ("u0026", '&')];
                let plain = escaped.into_iter().find(|(code, _)| rest.as_str().starts_with(code));
                match plain {
                    Some((code, plain)) => {
                        shorter.push(plain);
                        rest.nth(code.len() - 1);
                    }
                    None => {
                        shorter.push('\\');
                        shorter.extend(rest.next());
                    }
                }
            }
            '"' => {
                in_text = !in_text;
                shorter.push('"');
            }
            ' ' | '\t' | '\n' | '\r' if !in_text => {}
            other => shorter.push(other),
        }
    }
    shorter
}

#[cfg(test)]
mod tests {
    use super::compact;

    #[test]
    fn json_is_made_short_and_stays_the_same() {
        for (long, short) in [
            ("[ 1 ,\n 2.50,\t12345678901234567890123 ]", "[1,2.50,12345678901234567890123]"),
            (r#"{ "a b" : " c\" d " }"#, r#"{"a b":" c\" d "}"#),
            (r#"["\u003ca\u003e \u0026 \\u003c \u0041"]"#, r#"["<a> & \\u003c \u0041"]"#),
            (r#"" \\" "#, r#"" \\""#),
        ] {
            assert_eq!(compact(long), short);
            let value = |text| serde_json::from_str::<serde_json::Value>(text).ok();
            assert!(value(long).is_some() && value(long) == value(short), "{long}");
        }
    }
}
