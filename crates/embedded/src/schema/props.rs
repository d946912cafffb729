//! A schema as it was sent, read field by field: what is absent, empty, or of the wrong type counts as not set.

use serde_json::{Map, Value};

/// One schema of a CustomResourceDefinition.
#[derive(Clone, Copy)]
pub(super) struct Props<'a>(&'a Map<String, Value>);

pub(super) enum Items<'a> {
    One(Props<'a>),
    Several(Vec<Props<'a>>),
}

pub(super) enum Additional<'a> {
    Schema(Props<'a>),
    Allowed,
    Forbidden,
}

impl<'a> Props<'a> {
    pub(super) fn of(value: &'a Value) -> Option<Self> {
        value.as_object().map(Props)
    }

    pub(super) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(self, name: &str) -> &'a str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn kind(self) -> &'a str {
        self.text("type")
    }

    /// A text that may be set to the empty one, such as `x-kubernetes-list-type`.
    pub(super) fn optional_text(self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(Value::as_str)
    }

    pub(super) fn flag(self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(super) fn number(self, name: &str) -> Option<f64> {
        self.get(name).and_then(Value::as_f64)
    }

    pub(super) fn count(self, name: &str) -> Option<u64> {
        self.get(name).and_then(|value| value.as_u64().or_else(|| value.as_i64().map(|_| 0)))
    }

    pub(super) fn list(self, name: &str) -> &'a [Value] {
        self.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn texts(self, name: &str) -> Vec<&'a str> {
        self.list(name).iter().filter_map(Value::as_str).collect()
    }

    pub(super) fn schema(self, name: &str) -> Option<Props<'a>> {
        self.get(name).and_then(Props::of)
    }

    pub(super) fn schemas(self, name: &str) -> Vec<Props<'a>> {
        self.list(name).iter().filter_map(Props::of).collect()
    }

    /// Named schemas, in the order of their names, so that faults come in the same order every time.
    pub(super) fn named(self, name: &str) -> Vec<(&'a str, Props<'a>)> {
        let fields = self.get(name).and_then(Value::as_object);
        let mut named: Vec<_> = fields
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.as_str(), Props::of(value)?)))
            .collect();
        named.sort_by_key(|(name, _)| *name);
        named
    }

    pub(super) fn properties(self) -> Vec<(&'a str, Props<'a>)> {
        self.named("properties")
    }

    pub(super) fn property(self, name: &str) -> Option<Props<'a>> {
        self.get("properties").and_then(|properties| properties.get(name)).and_then(Props::of)
    }

    pub(super) fn items(self) -> Option<Items<'a>> {
        match self.get("items")? {
            Value::Array(several) => Some(Items::Several(several.iter().filter_map(Props::of).collect())),
            one => Props::of(one).map(Items::One),
        }
    }

    pub(super) fn item(self) -> Option<Props<'a>> {
        match self.items()? {
            Items::One(item) => Some(item),
            Items::Several(_) => None,
        }
    }

    pub(super) fn additional(self) -> Option<Additional<'a>> {
        match self.get("additionalProperties")? {
            Value::Bool(true) => Some(Additional::Allowed),
            Value::Bool(false) => Some(Additional::Forbidden),
            other => Props::of(other).map(Additional::Schema),
        }
    }

    pub(super) fn additional_schema(self) -> Option<Props<'a>> {
        match self.additional()? {
            Additional::Schema(schema) => Some(schema),
            Additional::Allowed | Additional::Forbidden => None,
        }
    }

    pub(super) fn default(self) -> Option<&'a Value> {
        self.get("default")
    }

    /// The names of the fields that are set to something.
    pub(super) fn set_fields(self) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(|(_, value)| !is_zero(value)).map(|(name, _)| name.as_str())
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
