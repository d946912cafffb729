//! Objects of built-in kinds as the types that kube-apiserver is compiled from see them: a value of the wrong type is refused in the words of
//! Go's JSON reader, fields that the type does not have are taken out and named, and nulls mean nothing.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use serde_json::{Map, Value};

use super::openapi;
use crate::schema::wording::json_kind;

/// A Go type, as far as JSON can tell.
#[derive(Debug, Clone, PartialEq)]
enum Type {
    Struct(&'static str),
    List(Box<Type>),
    Map(Box<Type>),
    Text,
    Integer(&'static str),
    Float,
    Boolean,
    /// Text or a whole number.
    IntOrString,
    /// Text or a number, read by its own rules.
    Quantity,
    Time(&'static str),
    Bytes,
    Any,
}

type Fields = HashMap<String, Type>;

/// Definition name to the fields of its struct, read when it is first needed.
static STRUCTS: LazyLock<HashMap<&'static str, OnceLock<Fields>>> =
    LazyLock::new(|| openapi::names().map(|name| (name, OnceLock::new())).collect());

fn fields(definition: &'static str) -> Option<&'static Fields> {
    Some(STRUCTS.get(definition)?.get_or_init(|| {
        let parsed: Value = openapi::document(definition)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let properties = parsed.get("properties").and_then(Value::as_object);
        properties.into_iter().flatten().map(|(name, raw)| (name.clone(), read(raw))).collect()
    }))
}

fn read(raw: &Value) -> Type {
    let single = raw.get("allOf").and_then(Value::as_array).and_then(|all| all.first());
    for holder in [Some(raw), single].into_iter().flatten() {
        if let Some(name) = holder.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next()) {
            return named(name);
        }
    }
    let format = raw.get("format").and_then(Value::as_str).unwrap_or_default();
    match raw.get("type").and_then(Value::as_str) {
        Some("array") => Type::List(Box::new(raw.get("items").map_or(Type::Any, read))),
        Some("object") => match raw.get("additionalProperties") {
            Some(values) if values.is_object() => Type::Map(Box::new(read(values))),
            _ => Type::Any,
        },
        Some("string") if format == "byte" => Type::Bytes,
        Some("string") => Type::Text,
        Some("integer") => Type::Integer(if format == "int64" { "int64" } else { "int32" }),
        Some("number") => Type::Float,
        Some("boolean") => Type::Boolean,
        _ => Type::Any,
    }
}

fn named(name: &str) -> Type {
    match name.rsplit('.').next() {
        Some("Time") => return Type::Time("Time"),
        Some("MicroTime") => return Type::Time("MicroTime"),
        Some("Quantity") => return Type::Quantity,
        Some("IntOrString") => return Type::IntOrString,
        Some(
            "FieldsV1"
            | "RawExtension"
            | "JSON"
            | "JSONSchemaPropsOrBool"
            | "JSONSchemaPropsOrArray"
            | "JSONSchemaPropsOrStringArray",
        ) => {
            return Type::Any;
        }
        _ => {}
    }
    match STRUCTS.get_key_value(name) {
        Some((name, _)) => Type::Struct(name),
        None => Type::Any,
    }
}

impl Type {
    /// As Go prints it.
    fn go(&self) -> String {
        match self {
            Type::Struct(definition) => {
                let mut parts = definition.rsplit('.');
                let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("{version}.{name}")
            }
            Type::List(item) => format!("[]{}", item.go()),
            Type::Map(value) => format!("map[string]{}", value.go()),
            Type::Text => "string".to_owned(),
            Type::Integer(name) => (*name).to_owned(),
            Type::Float => "float64".to_owned(),
            Type::Boolean => "bool".to_owned(),
            Type::IntOrString => "intstr.IntOrString".to_owned(),
            Type::Quantity => "resource.Quantity".to_owned(),
            Type::Time(name) => format!("v1.{name}"),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Any => "interface {}".to_owned(),
        }
    }
}

/// Takes out of an object of `definition` what its type does not have, and names that; or says what does not fit. Visits each value once.
pub fn read_as(definition: &str, object: &mut Value) -> Result<Vec<String>, String> {
    let Some((definition, _)) = STRUCTS.get_key_value(definition) else { return Ok(Vec::new()) };
    let mut reader = Reader { unknown: Vec::new(), path: Vec::new() };
    reader.value(&Type::Struct(definition), object, short(definition))?;
    Ok(reader.unknown)
}

/// Checks `metadata` of an object whose kind is not built in.
pub fn read_metadata(object: &mut Value) -> Result<(), String> {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let (Some(metadata), Some((definition, _))) = (object.get_mut("metadata"), STRUCTS.get_key_value(META))
    else {
        return Ok(());
    };
    let mut reader = Reader { unknown: Vec::new(), path: Vec::new() };
    reader.value(&Type::Struct(definition), metadata, "")
}

fn short(definition: &str) -> &str {
    definition.rsplit('.').next().unwrap_or_default()
}

struct Reader {
    unknown: Vec<String>,
    /// Field names, and indices as `[0]`.
    path: Vec<String>,
}

impl Reader {
    fn value(&mut self, kind: &Type, value: &mut Value, owner: &str) -> Result<(), String> {
        match (kind, value) {
            (_, Value::Null) | (Type::Any | Type::Quantity, _) => Ok(()),
            (Type::Struct(definition), Value::Object(object)) => self.object(definition, object),
            (Type::List(item), Value::Array(items)) => {
                for (index, element) in items.iter_mut().enumerate() {
                    self.path.push(format!("[{index}]"));
                    self.value(item, element, owner)?;
                    self.path.pop();
                }
                Ok(())
            }
            (Type::Map(inner), Value::Object(entries)) => {
                entries.retain(|_, value| !value.is_null());
                for (key, entry) in entries.iter_mut() {
                    self.path.push(format!("\0{key}"));
                    self.value(inner, entry, owner)?;
                    self.path.pop();
                }
                Ok(())
            }
            (Type::Text, Value::String(_))
            | (Type::Boolean, Value::Bool(_))
            | (Type::Float, Value::Number(_)) => Ok(()),
            (Type::Integer(name), Value::Number(number)) => self.integer(name, number, owner),
            (Type::IntOrString, Value::String(_) | Value::Number(_)) => Ok(()),
            (Type::Time(name), Value::String(text)) => time(name, text),
            (Type::Bytes, Value::String(text)) => bytes(text),
            (
                kind @ (Type::Struct(_)
                | Type::List(_)
                | Type::Map(_)
                | Type::Text
                | Type::Integer(_)
                | Type::Float
                | Type::Boolean),
                value,
            ) => Err(self.mismatch(json_kind(value), kind, owner)),
            (kind @ (Type::IntOrString | Type::Time(_) | Type::Bytes), value) => Err(match kind {
                Type::Time(_) | Type::IntOrString => {
                    format!("json: cannot unmarshal {} into Go value of type {}", json_kind(value), "string")
                }
                _ => self.mismatch(json_kind(value), kind, owner),
            }),
        }
    }

    fn object(&mut self, definition: &'static str, object: &mut Map<String, Value>) -> Result<(), String> {
        let Some(known) = fields(definition) else { return Ok(()) };
        let mut unknown = Vec::new();
        for (key, value) in object.iter_mut() {
            self.path.push(key.clone());
            match known.get(key) {
                Some(kind) => self.value(kind, value, short(definition))?,
                None => unknown.push(key.clone()),
            }
            if known.get(key).is_none() {
                self.unknown.push(self.named());
            }
            self.path.pop();
        }
        object.retain(|key, value| !value.is_null() && !unknown.contains(key));
        // Times of conditions are told even where there are none.
        for field in match short(definition) {
            "PodCondition" | "JobCondition" => &["lastProbeTime", "lastTransitionTime"][..],
            "NodeCondition" => &["lastHeartbeatTime", "lastTransitionTime"],
            _ => &[],
        } {
            object.entry(*field).or_insert(Value::Null);
        }
        Ok(())
    }

    fn integer(&self, name: &'static str, number: &serde_json::Number, owner: &str) -> Result<(), String> {
        let fits = match name {
            "int32" => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            _ => number.is_i64(),
        };
        if fits {
            Ok(())
        } else {
            Err(self.mismatch(&format!("number {number}"), &Type::Integer(name), owner))
        }
    }

    /// `spec.containers[0].foo`.
    fn named(&self) -> String {
        let mut path = String::new();
        for part in &self.path {
            match part.strip_prefix('\0') {
                _ if part.starts_with('[') => path.push_str(part),
                Some(key) => path.push_str(&format!("[{key}]")),
                None => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(part);
                }
            }
        }
        path
    }

    fn mismatch(&self, found: &str, kind: &Type, owner: &str) -> String {
        let path: Vec<&str> =
            self.path.iter().filter(|p| !p.starts_with(['[', '\0'])).map(String::as_str).collect();
        if path.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {}", kind.go());
        }
        format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {}",
            path.join("."),
            kind.go()
        )
    }
}

fn time(name: &str, text: &str) -> Result<(), String> {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return Ok(());
    }
    let layout =
        if name == "MicroTime" { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    Err(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""))
}

fn bytes(text: &str) -> Result<(), String> {
    use base64::Engine;
    // Go ignores line breaks inside.
    let text: std::borrow::Cow<'_, str> =
        if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], "").into() } else { text.into() };
    match base64::engine::general_purpose::STANDARD.decode(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => {
            Err(format!("illegal base64 data at input byte {at}"))
        }
        Err(base64::DecodeError::InvalidLength(at)) => {
            Err(format!("illegal base64 data at input byte {}", at / 4 * 4))
        }
        Err(base64::DecodeError::InvalidPadding) => {
            Err(format!("illegal base64 data at input byte {}", text.len() / 4 * 4))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    const POD: &str = "io.k8s.api.core.v1.Pod";

    #[test]
    fn unknown_fields_are_named_and_taken_out() {
        let mut pod = json!({"metadata": {"name": "a", "foo": 1}, "spec": {"containers": [{"name": "c", "bar": 1, "image": null}], "x": {}}});
        assert_eq!(read_as(POD, &mut pod).unwrap(), ["metadata.foo", "spec.containers[0].bar", "spec.x"]);
        assert_eq!(pod, json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}));
    }

    #[test]
    fn wrong_types_are_refused_in_gos_words() {
        for (spec, message) in [
            (
                json!({"spec": {"containers": "x"}}),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                json!({"spec": {"containers": [{"name": 1}]}}),
                "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                json!({"spec": {"priority": 3000000000_i64}}),
                "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
            ),
            (json!([]), "json: cannot unmarshal array into Go value of type v1.Pod"),
        ] {
            let mut spec = spec;
            assert_eq!(read_as(POD, &mut spec).unwrap_err(), message);
        }
        let mut secret = json!({"data": {"a": "!!"}});
        assert_eq!(
            read_as("io.k8s.api.core.v1.Secret", &mut secret).unwrap_err(),
            "illegal base64 data at input byte 0"
        );
    }
}
