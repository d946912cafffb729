//! Removing what the schema does not know, and nulls that nothing allows. Which fields go is decided by the schema alone.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::meta;
use super::node::Node;
use super::wording::MAX_DEPTH;

/// Removes from an object every field that its schema does not specify and every null that is neither allowed nor replaced by
/// a default. Returns the paths of the unknown fields, as `spec.items[0].foo`: first those within `metadata`, then the others
/// in order, then those within the metadata of embedded resources.
///
/// `apiVersion`, `kind` and `metadata` are part of every object, at the root and where a resource is embedded.
pub fn prune(node: &Node, object: &mut Value) -> Vec<String> {
    let held;
    let node = match node.follow() {
        Some(target) => {
            held = target;
            &*held
        }
        None => node,
    };
    let mut walk = Pruner::default();
    let mut unknown = Vec::new();
    if let Some(metadata) = object.get_mut("metadata") {
        unknown.extend(meta::prune(metadata, "metadata"));
    }
    walk.prune(Some(node), object, Place::Resource, 0);
    walk.unknown.sort();
    unknown.append(&mut walk.unknown);
    walk.embedded.sort();
    unknown.append(&mut walk.embedded);
    drop_nulls(Some(node), object, 0);
    unknown
}

/// Removes from a default what its own place does not know.
pub(super) fn prune_default(node: &Node, value: &mut Value) {
    let place = if node.embedded_resource { Place::Resource } else { Place::Inside };
    Pruner::default().prune(Some(node), value, place, 0);
}

/// Removes what a schema that is no resource does not know, and names it below `path`, in the order of the document.
pub(super) fn prune_below(node: &Node, value: &mut Value, path: &str) -> Vec<String> {
    let mut walk = Pruner { path: path.to_owned(), ..Pruner::default() };
    walk.prune(Some(node), value, Place::Inside, 0);
    walk.unknown
}

/// Whether the fields that every resource has are at home here.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Resource,
    Inside,
}

#[derive(Default)]
struct Pruner {
    path: String,
    unknown: Vec<String>,
    embedded: Vec<String>,
}

fn is_meta_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

impl Pruner {
    /// Visits each value once: linear in the size of the object.
    fn prune(&mut self, node: Option<&Node>, value: &mut Value, place: Place, depth: usize) {
        let followed = node.and_then(Node::follow);
        let node = followed.as_deref().or(node);
        let preserve = node.is_some_and(|node| node.preserve_unknown);
        let embedded = node.is_some_and(|node| node.embedded_resource);
        if depth > MAX_DEPTH {
            // Nothing that deep came through the JSON reader; it is not worth keeping.
            *value = Value::Null;
            return;
        }
        match value {
            Value::Object(fields) => {
                let resource = place == Place::Resource || embedded;
                if embedded && place == Place::Inside {
                    self.prune_embedded_metadata(fields);
                }
                self.prune_fields(node, fields, resource, preserve, depth);
            }
            Value::Array(items) => {
                let item_node = node.and_then(|node| node.items.as_deref());
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    match (preserve, item_node) {
                        (true, None) => {}
                        (true, Some(item_node)) => self.skip(item_node, item, depth + 1),
                        (false, item_node) => self.prune(item_node, item, Place::Inside, depth + 1),
                    }
                    self.path.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Within a list whose parent keeps unknown fields, its items keep theirs too.
    fn skip(&mut self, node: &Node, value: &mut Value, depth: usize) {
        if node.preserve_unknown {
            self.prune(Some(node), value, Place::Inside, depth);
        } else {
            let kept = Node { preserve_unknown: true, ..node.clone() };
            self.prune(Some(&kept), value, Place::Inside, depth);
        }
    }

    fn prune_fields(
        &mut self,
        node: Option<&Node>,
        fields: &mut Map<String, Value>,
        resource: bool,
        preserve: bool,
        depth: usize,
    ) {
        let root = self.path.is_empty();
        let mut gone = Vec::new();
        for (name, value) in fields.iter_mut() {
            if resource && is_meta_field(name) {
                continue;
            }
            match node.and_then(|node| field_node(node, name)) {
                Some(field) => {
                    let length = self.path.len();
                    self.descend(name);
                    self.prune(Some(&field), value, Place::Inside, depth + 1);
                    self.path.truncate(length);
                }
                None if preserve => {}
                None => gone.push(name.clone()),
            }
        }
        if gone.is_empty() {
            return;
        }
        fields.retain(|name, _| {
            (resource && is_meta_field(name)) || node.is_some_and(|node| field_node(node, name).is_some())
        });
        for name in gone {
            if root && is_meta_field(&name) {
                continue;
            }
            let length = self.path.len();
            self.descend(&name);
            self.unknown.push(self.path.clone());
            self.path.truncate(length);
        }
    }

    fn descend(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn prune_embedded_metadata(&mut self, fields: &mut Map<String, Value>) {
        if let Some(metadata) = fields.get_mut("metadata") {
            let path = super::error::child(&self.path, "metadata");
            self.embedded.extend(meta::prune(metadata, &path));
        }
    }
}

/// The schema of one field: its property, else that of the map's values.
pub(crate) fn field_node(node: &Node, name: &str) -> Option<Arc<Node>> {
    let found = node.properties.get(name).or(node.additional.as_ref())?;
    Some(found.follow().unwrap_or_else(|| found.clone()))
}

/// A null stays where the schema allows it, where a default will replace it, and in lists.
fn drop_nulls(node: Option<&Node>, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let field = node.and_then(|node| field_node(node, name));
                let unwanted = value.is_null()
                    && field.as_ref().is_some_and(|field| !field.nullable && field.default.is_none());
                if !unwanted {
                    drop_nulls(field.as_deref(), value, depth + 1);
                }
                !unwanted
            });
        }
        Value::Array(items) => {
            let item_node = node.and_then(|node| node.items.as_ref());
            let followed = item_node.map(|node| node.follow().unwrap_or_else(|| node.clone()));
            for item in items {
                drop_nulls(followed.as_deref(), item, depth + 1);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
