//! The schemas of built-in kinds, read from `openapi.json` (generated from a real kube-apiserver by `cargo xtask openapi`).
//! The file keeps one definition a line, so that definitions are found without parsing the whole and served without building them again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use super::strings;
use crate::schema::{ListType, MapType, Node, Type};

const FILE: &str = include_str!("openapi.json");

/// The version of kube-apiserver whose schemas these are, and that the API says it is.
pub const KUBERNETES: &str = "v1.36.3";

/// Definition name to its JSON text.
static TEXTS: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    FILE.lines()
        .filter_map(|line| {
            let (name, text) = line.strip_prefix('"')?.split_once("\":")?;
            Some((name, text.strip_suffix(',').unwrap_or(text)))
        })
        .collect()
});

static SHARED: LazyLock<BuiltinSchemas> = LazyLock::new(BuiltinSchemas::parse);

/// Every definition as a schema, shared by those that refer to it.
#[derive(Debug)]
pub struct BuiltinSchemas {
    nodes: BTreeMap<String, Arc<Node>>,
}

/// The text of one definition as kube-apiserver publishes it.
pub fn document(definition: &str) -> Option<&'static str> {
    TEXTS.get(definition).copied()
}

/// Every definition's name.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEXTS.keys().copied()
}

/// The names of a definition and of all that it refers to. O(definitions reached).
pub fn closure(roots: &[&str]) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = roots.iter().map(|r| (*r).to_owned()).collect();
    while let Some(name) = open.pop() {
        let Some((&name, &text)) = TEXTS.get_key_value(name.as_str()) else { continue };
        if found.insert(name) {
            open.extend(text.match_indices(REFERENCE).filter_map(|(at, _)| {
                let rest = text.get(at + REFERENCE.len()..)?;
                rest.split_once('"').map(|(name, _)| name.to_owned())
            }));
        }
    }
    found
}

const REFERENCE: &str = "\"$ref\":\"#/components/schemas/";

impl BuiltinSchemas {
    pub fn shared() -> &'static BuiltinSchemas {
        &SHARED
    }

    fn parse() -> BuiltinSchemas {
        let mut parser = Parser { done: BTreeMap::new(), open: Vec::new() };
        for name in TEXTS.keys() {
            parser.definition(name);
        }
        BuiltinSchemas { nodes: parser.done }
    }

    /// The schema of a definition; an empty one for a name that is not there.
    pub fn definition(&self, name: &str) -> Arc<Node> {
        self.nodes.get(name).cloned().unwrap_or_default()
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// What a field is for.
    pub fn description(&self, definition: &str, field: &str) -> String {
        let parsed = document(definition).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let found =
            parsed.as_ref().and_then(|d| d.get("properties")?.get(field)?.get("description")?.as_str());
        found.unwrap_or_default().to_owned()
    }
}

struct Parser {
    done: BTreeMap<String, Arc<Node>>,
    /// Definitions being parsed: one that is met again is part of a cycle.
    open: Vec<String>,
}

impl Parser {
    fn definition(&mut self, name: &str) -> Arc<Node> {
        if let Some(node) = self.done.get(name) {
            return Arc::clone(node);
        }
        if self.open.iter().any(|open| open == name) {
            return Arc::new(Node { reference: Some(name.into()), ..Node::default() });
        }
        let Some(Value::Object(raw)) = document(name).and_then(|text| serde_json::from_str(text).ok()) else {
            return Arc::default();
        };
        self.open.push(name.to_owned());
        let node = self.node(&raw);
        self.open.pop();
        self.done.insert(name.to_owned(), Arc::clone(&node));
        node
    }

    fn node(&mut self, raw: &Map<String, Value>) -> Arc<Node> {
        let single =
            raw.get("allOf").and_then(Value::as_array).and_then(|all| all.first()).and_then(Value::as_object);
        for holder in [Some(raw), single].into_iter().flatten() {
            if let Some(name) = holder.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next())
            {
                return self.referring(raw, name);
            }
        }
        let text = |key: &str| raw.get(key).and_then(Value::as_str);
        let mut node = Node {
            kind: text("type").and_then(Type::named),
            format: text("format").map(str::to_owned),
            default: raw.get("default").cloned(),
            required: strings(raw.get("required")),
            enumeration: raw.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            int_or_string: text("format") == Some("int-or-string"),
            preserve_unknown: raw.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)),
            list_map_keys: strings(raw.get("x-kubernetes-list-map-keys")),
            ..Node::default()
        };
        if let Some(properties) = raw.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                if let Some(property) = property.as_object() {
                    node.properties.insert(name.clone(), self.node(property));
                }
            }
        }
        node.items = raw.get("items").and_then(Value::as_object).map(|items| self.node(items));
        node.additional =
            raw.get("additionalProperties").and_then(Value::as_object).map(|values| self.node(values));
        extensions(&mut node, raw);
        Arc::new(node)
    }

    /// A place that refers to a definition, with what the place itself says about lists, maps and patches.
    fn referring(&mut self, raw: &Map<String, Value>, name: &str) -> Arc<Node> {
        let target = self.definition(name);
        let default = raw.get("default");
        if default.is_none() && !raw.keys().any(|key| key.starts_with("x-kubernetes-")) {
            return target;
        }
        let mut node = (*target).clone();
        node.default = default.cloned();
        extensions(&mut node, raw);
        Arc::new(node)
    }
}

fn extensions(node: &mut Node, raw: &Map<String, Value>) {
    let text = |key: &str| raw.get(key).and_then(Value::as_str);
    match text("x-kubernetes-list-type") {
        Some("set") => node.list_type = ListType::Set,
        Some("map") => node.list_type = ListType::Map,
        Some(_) => node.list_type = ListType::Atomic,
        None => {}
    }
    if text("x-kubernetes-map-type") == Some("atomic") {
        node.map_type = MapType::Atomic;
    }
    if let Some(key) = text("x-kubernetes-patch-merge-key") {
        node.patch_merge_key = Some(key.to_owned());
    }
    if let Some(strategies) = text("x-kubernetes-patch-strategy") {
        node.patch_strategies = strategies.split(',').map(str::to_owned).collect();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn containers_merge_by_name_and_ports_by_two_keys() {
        let pod = BuiltinSchemas::shared().definition("io.k8s.api.core.v1.Pod");
        let containers = pod.properties.get("spec").and_then(|s| s.properties.get("containers")).unwrap();
        assert_eq!(containers.list_map_keys, ["name"]);
        assert_eq!(containers.patch_merge_key.as_deref(), Some("name"));
        let ports = containers.items.as_ref().and_then(|c| c.properties.get("ports")).unwrap();
        assert_eq!(ports.list_map_keys, ["containerPort", "protocol"]);
    }

    #[test]
    fn a_schema_of_schemas_refers_to_itself_by_name() {
        let props = BuiltinSchemas::shared()
            .definition("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
        let inner = props.properties.get("properties").and_then(|p| p.additional.as_ref()).unwrap();
        assert_eq!(
            inner.reference.as_deref(),
            Some("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")
        );
    }

    #[test]
    fn every_reference_is_in_the_file() {
        let all: Vec<&str> = TEXTS.keys().copied().collect();
        assert!(all.len() > 250);
        for name in &all {
            for (at, _) in TEXTS[name].match_indices(REFERENCE) {
                let target = TEXTS[name][at + REFERENCE.len()..].split('"').next().unwrap();
                assert!(TEXTS.contains_key(target), "{name} refers to {target}");
            }
        }
        assert_eq!(closure(&all).len(), all.len());
    }
}
