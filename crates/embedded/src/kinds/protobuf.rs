//! Objects in Kubernetes' protobuf form, which kubectl sends for the kinds it is compiled with. They are only read: answers are JSON, which
//! every client accepts beside it. The fields of each message are in `protobuf.txt`, one message a line, made from the Go types by
//! `cargo xtask openapi`.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Map, Value};

const FILE: &str = include_str!("protobuf.txt");
/// What every such body starts with.
const MAGIC: &[u8] = b"k8s\0";
/// Messages of our kinds nest a dozen levels; anything deeper is not one of them.
const MAX_DEPTH: usize = 40;

/// What is wrong with a body, in a few words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Foreign,
    #[error("proto: unexpected EOF")]
    Truncated,
    #[error("proto: illegal tag or wire type")]
    Malformed,
    #[error("proto: a string is not valid UTF-8")]
    NotText,
    #[error("proto: nested too deeply")]
    TooDeep,
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Unknown { kind: String, version: String },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Bytes,
    Integer,
    Boolean,
    Float,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON in bytes.
    Raw,
    /// A list of texts that is a message of its own.
    Texts,
    Message(&'static str),
}

#[derive(Debug, Clone, Copy)]
struct Field {
    /// Empty for a message whose fields are told as those of the one that holds it.
    name: &'static str,
    kind: Kind,
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Always written; its zero means that it is not there.
    Plain,
    /// Written where it is set, so that a zero means zero.
    Optional,
    List,
    Map,
}

type Message = HashMap<u64, Field>;

static MESSAGES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    FILE.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            Some((name, words.filter_map(field).collect()))
        })
        .collect()
});

/// `3:type=s`: number, name, kind.
fn field(word: &'static str) -> Option<(u64, Field)> {
    let (number, rest) = word.split_once(':')?;
    let (name, kind) = rest.split_once('=')?;
    let (shape, kind) = match kind.split_at_checked(1)? {
        ("?", kind) => (Shape::Optional, kind),
        ("*", kind) => (Shape::List, kind),
        ("%", kind) => (Shape::Map, kind),
        _ => (Shape::Plain, kind),
    };
    let kind = match kind.split_at_checked(1)? {
        ("s", _) => Kind::Text,
        ("b", _) => Kind::Bytes,
        ("i", _) => Kind::Integer,
        ("t", _) => Kind::Boolean,
        ("f", _) => Kind::Float,
        ("T", _) => Kind::Time,
        ("M", _) => Kind::MicroTime,
        ("Q", _) => Kind::Quantity,
        ("I", _) => Kind::IntOrString,
        ("R", _) => Kind::Raw,
        ("x", _) => Kind::Texts,
        ("m", message) => Kind::Message(message),
        _ => return None,
    };
    Some((number.parse().ok()?, Field { name, kind, shape }))
}

/// Reads an object. Its type is looked up by what the envelope says; `definition` names it where the envelope says nothing.
pub fn read(bytes: &[u8], definition: &str) -> Result<Value, Error> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(Error::Foreign)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in parts(envelope) {
        match part? {
            (1, Wire::Bytes(meta)) => {
                for part in parts(meta) {
                    match part? {
                        (1, Wire::Bytes(text)) => api_version = utf8(text)?,
                        (2, Wire::Bytes(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let named = definition.rsplit('.').next().unwrap_or_default();
    let message = if kind.is_empty() || kind == named {
        MESSAGES.get(definition)
    } else {
        // Options may come in the name of any group.
        let suffix = format!(".{kind}");
        MESSAGES.iter().find(|(name, _)| name.ends_with(&suffix)).map(|(_, message)| message)
    };
    let message =
        message.ok_or_else(|| Error::Unknown { kind: kind.clone(), version: api_version.clone() })?;
    let mut object = Map::new();
    for (key, value) in [("apiVersion", api_version), ("kind", kind)] {
        if !value.is_empty() {
            object.insert(key.to_owned(), value.into());
        }
    }
    fields(message, raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed64([u8; 8]),
    Fixed32,
}

/// The fields of a message, as they come.
fn parts(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, Wire<'_>), Error>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let part = part(&mut rest);
        if part.is_err() {
            rest = &[];
        }
        Some(part)
    })
}

fn part<'a>(rest: &mut &'a [u8]) -> Result<(u64, Wire<'a>), Error> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => Wire::Fixed64(take(rest, 8)?.try_into().map_err(|_| Error::Truncated)?),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| Error::Truncated)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => {
            take(rest, 4)?;
            Wire::Fixed32
        }
        _ => return Err(Error::Malformed),
    };
    Ok((tag >> 3, wire))
}

fn varint(rest: &mut &[u8]) -> Result<u64, Error> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(Error::Truncated)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::Malformed)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (taken, after) = rest.split_at_checked(length).ok_or(Error::Truncated)?;
    *rest = after;
    Ok(taken)
}

fn utf8(bytes: &[u8]) -> Result<String, Error> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Error::NotText)
}

fn fields(
    message: &Message,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    for part in parts(bytes) {
        let (number, wire) = part?;
        let Some(field) = message.get(&number) else { continue };
        if field.name.is_empty() {
            if let (Kind::Message(inner), Wire::Bytes(bytes)) = (field.kind, &wire)
                && let Some(inner) = MESSAGES.get(inner)
            {
                fields(inner, bytes, object, depth + 1)?;
            }
            continue;
        }
        match field.shape {
            Shape::Plain => {
                let value = value(field.kind, &wire, depth)?;
                if !is_zero(&value) {
                    object.insert(field.name.to_owned(), value);
                }
            }
            Shape::Optional => {
                object.insert(field.name.to_owned(), value(field.kind, &wire, depth)?);
            }
            Shape::List => {
                let value = value(field.kind, &wire, depth)?;
                if let Some(list) =
                    object.entry(field.name).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
                {
                    list.push(value);
                }
            }
            Shape::Map => {
                let Wire::Bytes(entry) = wire else { return Err(Error::Malformed) };
                let (key, value) = entry_of(field.kind, entry, depth)?;
                if let Some(map) =
                    object.entry(field.name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
                {
                    map.insert(key, value);
                }
            }
        }
    }
    Ok(())
}

fn entry_of(kind: Kind, entry: &[u8], depth: usize) -> Result<(String, Value), Error> {
    let (mut key, mut found) = (String::new(), None);
    for part in parts(entry) {
        match part? {
            (1, Wire::Bytes(text)) => key = utf8(text)?,
            (2, wire) => found = Some(value(kind, &wire, depth)?),
            _ => {}
        }
    }
    let found = match found {
        Some(found) => found,
        None => value(kind, &Wire::Bytes(&[]), depth)?,
    };
    Ok((key, found))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn value(kind: Kind, wire: &Wire<'_>, depth: usize) -> Result<Value, Error> {
    match (kind, wire) {
        (Kind::Integer, Wire::Number(number)) => Ok(number.cast_signed().into()),
        (Kind::Boolean, Wire::Number(number)) => Ok((*number != 0).into()),
        (Kind::Float, Wire::Fixed64(bytes)) => Ok(f64::from_le_bytes(*bytes).into()),
        (Kind::Text, Wire::Bytes(bytes)) => Ok(utf8(bytes)?.into()),
        (Kind::Bytes, Wire::Bytes(bytes)) => {
            Ok(base64::engine::general_purpose::STANDARD.encode(bytes).into())
        }
        (Kind::Time | Kind::MicroTime, Wire::Bytes(bytes)) => time(kind, bytes),
        (Kind::Quantity, Wire::Bytes(bytes)) => first_text(bytes).map(Value::from),
        (Kind::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes),
        (Kind::Raw, Wire::Bytes(bytes)) => {
            let raw = parts(bytes).find_map(|part| match part {
                Ok((1, Wire::Bytes(raw))) => Some(raw),
                _ => None,
            });
            Ok(raw.and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default())
        }
        (Kind::Texts, Wire::Bytes(bytes)) => {
            let texts = parts(bytes).filter_map(|part| match part {
                Ok((1, Wire::Bytes(text))) => Some(utf8(text).map(Value::from)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            });
            texts.collect()
        }
        (Kind::Message(name), Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            if let Some(message) = MESSAGES.get(name) {
                fields(message, bytes, &mut object, depth + 1)?;
            }
            Ok(Value::Object(object))
        }
        (_, Wire::Number(_) | Wire::Bytes(_) | Wire::Fixed64(_) | Wire::Fixed32) => Err(Error::Malformed),
    }
}

fn first_text(bytes: &[u8]) -> Result<String, Error> {
    for part in parts(bytes) {
        if let (1, Wire::Bytes(text)) = part? {
            return utf8(text);
        }
    }
    Ok(String::new())
}

/// A time that is not set is written as nothing.
fn time(kind: Kind, bytes: &[u8]) -> Result<Value, Error> {
    let (mut seconds, mut nanos) = (None, 0);
    for part in parts(bytes) {
        match part? {
            (1, Wire::Number(number)) => seconds = Some(number.cast_signed()),
            (2, Wire::Number(number)) => {
                nanos = i32::try_from(number.cast_signed()).map_err(|_| Error::Malformed)?
            }
            _ => {}
        }
    }
    let Some(seconds) = seconds else { return Ok(Value::Null) };
    let nanos = if kind == Kind::MicroTime { nanos } else { 0 };
    let time = Timestamp::new(seconds, nanos).map_err(|_| Error::Malformed)?;
    Ok(if kind == Kind::MicroTime { format!("{time:.6}").into() } else { time.to_string().into() })
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for part in parts(bytes) {
        match part? {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(value)) => text = utf8(value)?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn bytes(number: u64, value: &[u8]) -> Vec<u8> {
        let mut out = vec![u8::try_from(number << 3 | 2).unwrap(), u8::try_from(value.len()).unwrap()];
        out.extend_from_slice(value);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, raw)].concat()
    }

    #[test]
    fn a_secret_is_read() {
        let metadata = [bytes(1, b"s"), bytes(2, b""), bytes(8, b"")].concat();
        let entry = [bytes(1, b"k"), bytes(2, b"v")].concat();
        let raw = [bytes(1, &metadata), bytes(2, &entry), bytes(3, b"Opaque"), vec![5 << 3, 0]].concat();
        let read = read(&envelope("v1", "Secret", &raw), "io.k8s.api.core.v1.Secret").unwrap();
        let expected = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "dg=="}, "type": "Opaque", "immutable": false});
        assert_eq!(read, expected);
    }

    #[test]
    fn inline_messages_and_lists_are_read() {
        let volume = [bytes(1, b"v"), bytes(2, &bytes(2, b""))].concat();
        let container = [bytes(1, b"c"), bytes(3, b"a"), bytes(3, b"b")].concat();
        let spec = [bytes(1, &volume), bytes(2, &container), vec![4 << 3, 30]].concat();
        let read = read(&envelope("v1", "Pod", &bytes(2, &spec)), "io.k8s.api.core.v1.Pod").unwrap();
        let expected = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "command": ["a", "b"]}], "terminationGracePeriodSeconds": 30});
        assert_eq!(read.get("spec"), Some(&expected));
    }

    #[test]
    fn nonsense_is_refused() {
        let secret = "io.k8s.api.core.v1.Secret";
        assert_eq!(read(b"{}", secret), Err(Error::Foreign));
        assert_eq!(read(b"k8s\0\x12\x7f", secret), Err(Error::Truncated));
        assert_eq!(read(b"k8s\0\x07", secret), Err(Error::Malformed));
        assert_eq!(read(&envelope("v1", "Secret", &bytes(3, &[0xff])), secret), Err(Error::NotText));
        for length in 0..64 {
            let noise: Vec<u8> = (0..length).map(|at: u8| at.wrapping_mul(37)).collect();
            let _ = read(&envelope("v1", "Secret", &noise), secret);
        }
    }
}
