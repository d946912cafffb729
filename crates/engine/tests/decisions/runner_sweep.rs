//! All that a pod and a container can have, by the schemas of Kubernetes, asked for in `overrideRunnerSpec`: each is one of those that the
//! documentation names, or is refused in words, or is dropped. A field that a new version of Kubernetes brings is among them by itself.

use std::collections::{BTreeMap, BTreeSet};

use api::overrides::{Allowed, Field, RunnerOverride};
use api::{TerraformLayer, TerraformRepository};
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::runner_override::everything;
use crate::runner_pod::pod_of;

const SCHEMAS: &str = include_str!("../../../embedded/src/kinds/openapi.json");
const POD: &str = "io.k8s.api.core.v1.PodSpec";
const CONTAINER: &str = "io.k8s.api.core.v1.Container";
/// Deep enough for what a volume's source or an affinity's term is made of.
const DEPTH: u32 = 5;

struct Schemas(Value);

impl Schemas {
    fn new() -> Self {
        Self(serde_json::from_str::<Value>(SCHEMAS).unwrap()["schemas"].take())
    }

    fn whole<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let one = schema["allOf"].get(0).unwrap_or(schema);
        match one["$ref"].as_str() {
            Some(place) => &self.0[place.rsplit('/').next().unwrap()],
            None => one,
        }
    }

    fn fields(&self, kind: &str) -> &Map<String, Value> {
        self.0[kind]["properties"].as_object().unwrap_or_else(|| panic!("no schema of {kind}"))
    }

    /// A value with everything that the schema knows.
    fn sample(&self, schema: &Value, depth: u32) -> Value {
        let schema = self.whole(schema);
        match schema["type"].as_str() {
            Some("boolean") => json!(true),
            Some("integer" | "number") => json!(1),
            Some("array") if depth > 0 => json!([self.sample(&schema["items"], depth - 1)]),
            Some("array") => json!([]),
            Some("object") => match schema["properties"].as_object() {
                Some(fields) if depth > 0 => {
                    fields.iter().map(|(name, below)| (name.clone(), self.sample(below, depth - 1))).collect()
                }
                Some(_) => json!({}),
                None => json!({ "example.org/x": "1" }),
            },
            Some(_) | None => json!("1"),
        }
    }

    /// Ways to ask for a field: all of it at once, and each of its parts by itself. With what has to be there besides.
    fn wishes(&self, field: &str, schema: &Value) -> Vec<Wish> {
        let whole =
            Wish { name: field.to_owned(), base: None, value: json!({ field: self.sample(schema, DEPTH) }) };
        let mut wishes = vec![whole];
        let schema = self.whole(schema);
        let (is_list, one) = match schema["type"].as_str() {
            Some("array") => (true, self.whole(&schema["items"])),
            _ => (false, schema),
        };
        let base = match field {
            "volumes" | "env" => json!({ "name": "v" }),
            "initContainers" => json!({ "name": "i", "image": "example.org/i" }),
            "tolerations" => json!({ "key": "k" }),
            _ => json!({}),
        };
        for (part, below) in one["properties"].as_object().into_iter().flatten() {
            let laid = |more: Value| {
                let mut one = base.clone();
                one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                json!({ field: if is_list { json!([one]) } else { one } })
            };
            wishes.push(Wish {
                name: format!("{field}.{part}"),
                base: Some(laid(json!({}))),
                value: laid(json!({ part: self.sample(below, DEPTH - 1) })),
            });
        }
        wishes
    }
}

#[derive(Debug)]
struct Wish {
    name: String,
    /// What is there without the part that is asked for.
    base: Option<Value>,
    value: Value,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Refused(String),
    /// Nothing of it is in the pod.
    Dropped,
    /// Where the pod is different.
    Given(BTreeSet<String>),
}

fn pod(allowed: &Allowed, wish: &Value) -> Result<Value, String> {
    let asked: RunnerOverride = serde_json::from_value(wish.clone()).map_err(|error| error.to_string())?;
    let settled = allowed.settle(None, Some(&asked)).map_err(|refusal| refusal.to_string())?;
    Ok(serde_json::to_value(pod_of(&settled)).unwrap())
}

/// The places at which two pods are different, to the depth of a field of a container.
fn differences(one: &Value, other: &Value, place: &str, found: &mut BTreeSet<String>) {
    match (one, other) {
        (Value::Object(left), Value::Object(right)) if place.matches('/').count() < 5 => {
            for name in left.keys().chain(right.keys()).collect::<BTreeSet<_>>() {
                let (left, right) = (left.get(name), right.get(name));
                let null = Value::Null;
                differences(left.unwrap_or(&null), right.unwrap_or(&null), &format!("{place}/{name}"), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (at, (left, right)) in left.iter().zip(right).enumerate() {
                differences(left, right, &format!("{place}/{at}"), found);
            }
        }
        _ if one == other => {}
        _ => {
            found.insert(place.to_owned());
        }
    }
}

fn answer(allowed: &Allowed, wish: &Wish) -> Answer {
    let with = match pod(allowed, &wish.value) {
        Ok(pod) => pod,
        Err(why) => return Answer::Refused(why),
    };
    // Without its parts it may be nothing that can be asked for.
    let base = wish.base.as_ref().and_then(|base| pod(allowed, base).ok());
    let without = base.unwrap_or_else(|| serde_json::to_value(pod_of(&RunnerOverride::default())).unwrap());
    let mut found = BTreeSet::new();
    differences(&without, &with, "", &mut found);
    if found.is_empty() { Answer::Dropped } else { Answer::Given(found) }
}

fn all_wishes() -> Vec<Wish> {
    let schemas = Schemas::new();
    let mut wishes = Vec::new();
    for kind in [POD, CONTAINER] {
        for (field, schema) in schemas.fields(kind) {
            wishes.extend(schemas.wishes(field, schema));
        }
    }
    // The pod's own context is asked for by another name.
    let context = &schemas.fields(POD)["securityContext"];
    wishes.extend(schemas.wishes("podSecurityContext", context));
    wishes
}

fn given(allowed: &Allowed) -> BTreeMap<String, BTreeSet<String>> {
    let mut given: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut refused, mut dropped) = (0, 0);
    for wish in all_wishes() {
        let field = wish.name.split('.').next().unwrap();
        let is_known = Field::ALL.iter().any(|known| known.as_str() == field);
        match answer(allowed, &wish) {
            Answer::Given(places) => given.entry(wish.name).or_default().extend(places),
            Answer::Refused(why) => {
                assert!(why.len() > 15 && is_known, "{wish:?}: {why}");
                refused += 1;
            }
            Answer::Dropped => {
                // The environment of the tool is no part of the pod.
                let is_elsewhere = ["env", "envFrom"].contains(&field);
                let is_nothing = wish.value[field].as_object().is_some_and(Map::is_empty);
                let part = wish.name.split_once('.').map(|(_, part)| part);
                assert!(!is_known || is_elsewhere || is_nothing || part.is_some(), "{wish:?} is forgotten");
                dropped += 1;
            }
        }
    }
    assert!(refused > 50 && dropped > 50, "{refused} {dropped}");
    given
}

/// Where in the pod a field has its effect.
fn place_of(field: &str) -> String {
    let of_container = ["image", "imagePullPolicy", "resources", "securityContext", "volumeMounts"];
    match field {
        "podSecurityContext" => "/spec/securityContext".to_owned(),
        field if of_container.contains(&field) => format!("/spec/containers/0/{field}"),
        field => format!("/spec/{field}"),
    }
}

/// What docs/runner-pods.md says can be had without a word of the administrator.
const BY_DEFAULT: [&str; 9] = [
    "affinity.nodeAffinity",
    "nodeSelector",
    "tolerations.key",
    "tolerations.tolerationSeconds",
    "tolerations.value",
    "volumes.configMap",
    "volumes.downwardAPI",
    "volumes.emptyDir",
    "volumes.secret",
];

/// What it says can be had besides where the administrator names everything; of volumes all kinds but those with a token.
const BY_ADMINISTRATOR: [&str; 24] = [
    "image",
    "imagePullSecrets",
    "imagePullSecrets.name",
    "initContainers.args",
    "initContainers.command",
    "initContainers.envFrom",
    "initContainers.image",
    "initContainers.imagePullPolicy",
    "initContainers.name",
    "initContainers.resources",
    "initContainers.workingDir",
    "podSecurityContext.fsGroup",
    "podSecurityContext.fsGroupChangePolicy",
    "podSecurityContext.runAsGroup",
    "podSecurityContext.runAsUser",
    "podSecurityContext.supplementalGroups",
    "podSecurityContext.supplementalGroupsPolicy",
    "resources",
    "resources.limits",
    "resources.requests",
    "securityContext.runAsGroup",
    "securityContext.runAsNonRoot",
    "securityContext.runAsUser",
    "serviceAccountName",
];

#[test]
fn nothing_of_a_pod_can_be_had_but_what_is_documented() {
    let by_default = given(&Allowed::default());
    let names: Vec<&String> = by_default.keys().collect();
    assert_eq!(names, BY_DEFAULT);
    let by_administrator = given(&everything());
    let is_besides = |name: &&String| !by_default.contains_key(*name) && !name.starts_with("volumes.");
    let besides: Vec<&String> = by_administrator.keys().filter(is_besides).collect();
    assert_eq!(besides, BY_ADMINISTRATOR);
    assert!(!by_administrator.contains_key("volumes.projected"), "a token of a ServiceAccount");
    for (name, places) in by_default.into_iter().chain(by_administrator) {
        let expected = place_of(name.split('.').next().unwrap());
        assert!(places.iter().all(|place| place.starts_with(&expected)), "{name} is seen at {places:?}");
    }
}

/// What the API keeps of an override is what there are rules for; the rest it drops before anybody reads it.
#[test]
fn the_definitions_keep_no_field_that_has_no_rule() {
    let expected: BTreeSet<String> = Field::ALL.iter().map(|field| field.as_str().to_owned()).collect();
    for definition in [TerraformLayer::crd(), TerraformRepository::crd()] {
        let definition = serde_json::to_value(definition).unwrap();
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let asked = &spec["properties"]["overrideRunnerSpec"];
            let known: BTreeSet<String> = asked["properties"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(known, expected);
            for open in ["x-kubernetes-preserve-unknown-fields", "additionalProperties"] {
                assert!(asked.get(open).is_none(), "{open}");
            }
        }
    }
}
