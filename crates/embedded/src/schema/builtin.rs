//! The schemas of built-in kinds, which refer to one another by name and some of them to themselves.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::node::{Node, Type};
use super::parse::scalars;
use super::props::{Additional, Props};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the definitions of built-in types are not a map from names to schemas; generate the file anew")]
    NotAMap,
    #[error(
        "the definition {from} refers to {to}, which is not among the definitions; generate the file anew"
    )]
    Unknown { from: String, to: String },
    #[error("the definition {0} is not among the definitions of built-in types")]
    Missing(String),
    #[error("the definition {0} is nested too deeply; generate the file anew")]
    TooDeep(String),
}

/// All definitions by name, such as `io.k8s.api.core.v1.Pod`. Nodes that close a cycle find their target as long as this lives.
#[derive(Debug, Default)]
pub struct Definitions {
    nodes: BTreeMap<String, Arc<Node>>,
}

impl Definitions {
    /// Reads a map from definition names to OpenAPI v3 schemas. Every definition is read once.
    pub fn parse(definitions: &Value) -> Result<Self, Error> {
        let sources = definitions.as_object().ok_or(Error::NotAMap)?;
        let mut reader =
            Reader { sources: definitions, done: BTreeMap::new(), open: HashSet::new(), waiting: Vec::new() };
        for name in sources.keys() {
            reader.definition(name, name, 0)?;
        }
        for (name, node) in reader.waiting {
            if let Some(target) = reader.done.get(&name) {
                // A target is set once; whoever set it first set the same.
                let _ = node.0.set(Arc::downgrade(target));
            }
        }
        Ok(Self { nodes: reader.done })
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }
}

impl Node {
    /// The schema of a built-in type.
    pub fn parse_builtin(name: &str, definitions: &Definitions) -> Result<Arc<Node>, Error> {
        definitions.get(name).cloned().ok_or_else(|| Error::Missing(name.to_owned()))
    }
}

/// Chains of references in Kubernetes are about twenty long; a longer one comes from a broken file.
const MAX_REFERENCE_DEPTH: usize = 120;

struct Reader<'a> {
    sources: &'a Value,
    done: BTreeMap<String, Arc<Node>>,
    open: HashSet<String>,
    waiting: Vec<(String, super::node::Target)>,
}

impl Reader<'_> {
    fn definition(&mut self, from: &str, name: &str, depth: usize) -> Result<Arc<Node>, Error> {
        if let Some(done) = self.done.get(name) {
            return Ok(done.clone());
        }
        if self.open.contains(name) {
            let node = Node { reference: Some(Arc::from(name)), ..Node::default() };
            self.waiting.push((name.to_owned(), node.target.clone()));
            return Ok(Arc::new(node));
        }
        let sources = self.sources;
        let Some(source) = sources.get(name).and_then(Props::of) else {
            return Err(Error::Unknown { from: from.to_owned(), to: name.to_owned() });
        };
        self.open.insert(name.to_owned());
        let node = self.schema(name, source, depth)?;
        self.open.remove(name);
        self.done.insert(name.to_owned(), node.clone());
        Ok(node)
    }

    fn schema(&mut self, owner: &str, props: Props<'_>, depth: usize) -> Result<Arc<Node>, Error> {
        if depth > MAX_REFERENCE_DEPTH {
            return Err(Error::TooDeep(owner.to_owned()));
        }
        let all_of = props.schemas("allOf");
        let reference = match (props.get("$ref"), all_of.as_slice()) {
            (Some(reference), _) => reference.as_str(),
            (None, [single]) => single.get("$ref").and_then(Value::as_str),
            (None, _) => None,
        };
        let own = scalars(props);
        let default = own.default.filter(|default| !is_placeholder(default));
        if let Some(reference) = reference {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            let target = self.definition(owner, name, depth + 1)?;
            if own.description.is_none() && default.is_none() {
                return Ok(target);
            }
            // The field has words of its own for what it refers to.
            let mut node = (*target).clone();
            if own.description.is_some() {
                node.description = own.description;
            }
            node.default = default.or(node.default);
            return Ok(Arc::new(node));
        }
        let mut properties = BTreeMap::new();
        for (name, property) in props.properties() {
            properties.insert(name.to_owned(), self.schema(owner, property, depth + 1)?);
        }
        let additional = match props.additional() {
            Some(Additional::Schema(values)) => Some(self.schema(owner, values, depth + 1)?),
            Some(Additional::Allowed) => Some(Arc::new(any())),
            Some(Additional::Forbidden) | None => None,
        };
        let items = match props.item() {
            Some(item) => Some(self.schema(owner, item, depth + 1)?),
            None => None,
        };
        let text = |name: &str| Some(props.text(name)).filter(|text| !text.is_empty());
        let int_or_string = own.int_or_string || own.format.as_deref() == Some("int-or-string");
        let is_opaque = match own.kind {
            Some(Type::Object) => properties.is_empty() && additional.is_none(),
            None => !int_or_string,
            Some(_) => false,
        };
        Ok(Arc::new(Node {
            kind: if int_or_string { None } else { own.kind },
            properties,
            additional,
            items,
            default,
            int_or_string,
            // The server writes nulls of built-in kinds away; none of their places forbids one.
            nullable: is_opaque || own.nullable,
            preserve_unknown: own.preserve_unknown || is_opaque,
            patch_merge_key: text("x-kubernetes-patch-merge-key").map(str::to_owned),
            patch_strategies: text("x-kubernetes-patch-strategy")
                .map(|strategies| strategies.split(',').map(|strategy| strategy.trim().to_owned()).collect())
                .unwrap_or_default(),
            ..own
        }))
    }
}

fn any() -> Node {
    Node { nullable: true, preserve_unknown: true, ..Node::default() }
}

/// The published schemas give a zero default to every field that Go always has; only other defaults are meant.
fn is_placeholder(default: &Value) -> bool {
    match default {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
