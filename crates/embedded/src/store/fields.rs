//! Which fields of which collections are looked up by value, and how they are read out of an object. It knows paths and texts; how
//! selectors are written, and which fields they may name, belongs above the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::object::Collection;

/// The fields that have an index, by collection; each is a path such as `spec.layer.name`.
#[derive(Debug, Clone, Default)]
pub struct IndexedFields(BTreeMap<Collection, Vec<String>>);

/// The values of a collection's indexed fields, in their order; `None` where an object has none.
pub(super) type Values = Box<[Option<Arc<str>>]>;

impl IndexedFields {
    pub fn add(&mut self, collection: Collection, path: String) {
        self.0.entry(collection).or_default().push(path);
    }

    /// The place of `path` among the values of the collection's objects.
    pub(super) fn position(&self, collection: &Collection, path: &str) -> Option<usize> {
        self.0.get(collection)?.iter().position(|indexed| indexed == path)
    }

    /// O(paths); nothing is allocated for a collection without an index.
    pub(super) fn values(&self, collection: &Collection, object: &Value) -> Values {
        let value = |path: &String| text(path.split('.').try_fold(object, |at, part| at.get(part))?);
        self.paths(collection).iter().map(value).collect()
    }

    /// As [`IndexedFields::values`], of an object as it is stored. Parses nothing of a collection without an index.
    pub(super) fn read(&self, collection: &Collection, json: &[u8]) -> Result<Values, serde_json::Error> {
        if self.paths(collection).is_empty() {
            return Ok(Values::default());
        }
        Ok(self.values(collection, &serde_json::from_slice(json)?))
    }

    fn paths(&self, collection: &Collection) -> &[String] {
        self.0.get(collection).map_or(&[], Vec::as_slice)
    }
}

/// A scalar as selectors compare it. Absent and empty mean the same to them, so neither is a value to find an object by.
fn text(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.as_str().into()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_texts_and_what_is_empty_or_no_scalar_is_none() {
        let runs = Collection::new("terrane.dev", "terraformruns");
        let mut fields = IndexedFields::default();
        fields.add(runs.clone(), "spec.layer.name".to_owned());
        fields.add(runs.clone(), "spec.count".to_owned());
        for (object, expected) in [
            (json!({"spec": {"layer": {"name": "vpc"}, "count": 3}}), [Some("vpc"), Some("3")]),
            (json!({"spec": {"layer": {"name": ""}, "count": true}}), [None, Some("true")]),
            (json!({"spec": {"layer": "vpc", "count": {}}}), [None, None]),
            (json!({}), [None, None]),
        ] {
            let expected: Values = expected.map(|text| text.map(Arc::from)).into();
            assert_eq!(fields.values(&runs, &object), expected, "{object}");
            assert_eq!(fields.read(&runs, object.to_string().as_bytes()).unwrap(), expected, "{object}");
        }
        assert_eq!(fields.position(&runs, "spec.count"), Some(1));
        let pods = Collection::new("", "pods");
        assert_eq!(
            (fields.position(&pods, "spec.count"), fields.read(&pods, b"?").unwrap().len()),
            (None, 0)
        );
    }
}
