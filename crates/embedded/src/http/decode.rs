//! Reading bodies: JSON and YAML into values, with the fields that were given twice, and the limits on size and depth.

use std::fmt;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::negotiate::BodyFormat;
use super::status::{Result, Status};
use crate::kinds::protobuf;

/// Reads a whole body, up to the limit.
pub async fn body(body: Body, limit: usize) -> Result<Bytes> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(Status::too_large(limit)),
        Err(error) => Err(Status::bad_request(format!("the body of the request could not be read: {error}"))),
    }
}

/// A body as a value, and the fields in it that were given more than once, in kube-apiserver's words.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    pub duplicates: Vec<String>,
}

/// `definition` is the type of the object, for the form that does not name its fields.
pub fn decode(bytes: &[u8], format: BodyFormat, definition: &str) -> std::result::Result<Decoded, String> {
    match format {
        BodyFormat::Json => json(bytes),
        // A JSON body is YAML too, and is read with JSON's own reader where it is one.
        BodyFormat::Yaml if bytes.trim_ascii_start().first() == Some(&b'{') => json(bytes),
        BodyFormat::Yaml => yaml(bytes),
        BodyFormat::Protobuf => {
            let value = protobuf::read(bytes, definition).map_err(|error| error.to_string())?;
            Ok(Decoded { value, duplicates: Vec::new() })
        }
    }
}

fn json(bytes: &[u8]) -> std::result::Result<Decoded, String> {
    let mut found = Found { path: String::new(), duplicates: Vec::new() };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Seed(&mut found)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|e| go_wording(bytes, &e))?;
    Ok(Decoded { value, duplicates: found.duplicates })
}

fn yaml(bytes: &[u8]) -> std::result::Result<Decoded, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("error converting YAML to JSON: yaml: {e}"))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|e| {
        let message = e.to_string();
        format!("error converting YAML to JSON: yaml: {}", message.lines().next().unwrap_or_default())
    })?;
    Ok(Decoded { value, duplicates: Vec::new() })
}

/// A syntax error as Go's JSON reader tells it.
fn go_wording(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    if error.to_string().starts_with("recursion limit exceeded") {
        return "exceeded max depth".to_owned();
    }
    let at = bytes
        .split(|b| *b == b'\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.len() + 1)
        .sum::<usize>();
    let at = at + error.column().saturating_sub(1);
    let rest = bytes.get(at..).unwrap_or_default();
    let letter = std::str::from_utf8(rest.get(..4.min(rest.len())).unwrap_or_default())
        .ok()
        .and_then(|s| s.chars().next());
    let letter = letter.or_else(|| rest.first().map(|b| char::from(*b)));
    let shown = match letter {
        Some('\'') => r"'\''".to_owned(),
        Some('"') => "'\"'".to_owned(),
        Some(letter) => format!("'{}'", letter.escape_default()),
        None => return "unexpected end of JSON input".to_owned(),
    };
    let message = error.to_string();
    let place = if message.starts_with("key must be a string") {
        "looking for beginning of object key string"
    } else if message.starts_with("trailing characters") {
        "after top-level value"
    } else if message.starts_with("expected `,` or `}`") {
        "after object key:value pair"
    } else if message.starts_with("expected `,` or `]`") {
        "after array element"
    } else if message.starts_with("expected `:`") {
        "after object key"
    } else {
        "looking for beginning of value"
    };
    format!("invalid character {shown} {place}")
}

struct Found {
    path: String,
    duplicates: Vec<String>,
}

/// Builds a value and remembers which keys came twice; the last one counts.
struct Seed<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        let mut list = Vec::new();
        let length = self.0.path.len();
        loop {
            self.0.path.push_str(&format!("[{}]", list.len()));
            let item = items.next_element_seed(Seed(&mut *self.0))?;
            self.0.path.truncate(length);
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> std::result::Result<Value, A::Error> {
        let mut object = Map::new();
        let length = self.0.path.len();
        while let Some(key) = fields.next_key::<String>()? {
            if length > 0 {
                self.0.path.push('.');
            }
            self.0.path.push_str(&key);
            if object.contains_key(&key) {
                let found = format!("duplicate field {:?}", self.0.path);
                if !self.0.duplicates.contains(&found) {
                    self.0.duplicates.push(found);
                }
            }
            let value = fields.next_value_seed(Seed(&mut *self.0))?;
            self.0.path.truncate(length);
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicate_fields_are_named_by_their_path() {
        let decoded = json(br#"{"a":{"b":1,"b":2},"l":[{"x":1},{"y":1,"y":2}]}"#).unwrap();
        assert_eq!(decoded.duplicates, ["duplicate field \"a.b\"", "duplicate field \"l[1].y\""]);
        assert_eq!(decoded.value, json!({"a": {"b": 2}, "l": [{"x": 1}, {"y": 2}]}));
    }

    #[test]
    fn syntax_errors_read_as_gos() {
        for (text, message) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("x", "invalid character 'x' looking for beginning of value"),
        ] {
            assert_eq!(json(text.as_bytes()).unwrap_err(), message, "{text}");
        }
        let deep = "[".repeat(5000);
        assert_eq!(json(deep.as_bytes()).unwrap_err(), "exceeded max depth");
    }

    #[test]
    fn yaml_is_read_too() {
        let decoded = decode(b"a: 1\nb:\n- x\n- \"2\"\n", BodyFormat::Yaml, "").unwrap();
        assert_eq!(decoded.value, json!({"a": 1, "b": ["x", "2"]}));
    }
}
