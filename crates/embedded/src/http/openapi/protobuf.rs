//! The OpenAPI v2 document in the protobuf form that kubectl asks for and reads nothing else of: the messages of gnostic's `openapi.v2`, as
//! far as the document has them. Written straight from the JSON; what has no field there is not in the document.

use serde_json::{Map, Value};

/// One message under construction. A field that is empty is not written, as proto3 has it.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        loop {
            let low = u8::try_from(number & 0x7f).unwrap_or_default();
            number >>= 7;
            if number == 0 {
                return self.0.push(low);
            }
            self.0.push(low | 0x80);
        }
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(u64::try_from(bytes.len()).unwrap_or_default());
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, field: u64, text: Option<&Value>) -> Self {
        match text.and_then(Value::as_str) {
            Some(text) if !text.is_empty() => self.bytes(field, text.as_bytes()),
            _ => self,
        }
    }

    fn flag(mut self, field: u64, flag: Option<&Value>) -> Self {
        if flag == Some(&Value::Bool(true)) {
            self.varint(field << 3);
            self.varint(1);
        }
        self
    }

    fn integer(mut self, field: u64, number: Option<&Value>) -> Self {
        if let Some(number) = number.and_then(Value::as_i64).filter(|number| *number != 0) {
            self.varint(field << 3);
            self.varint(number.cast_unsigned());
        }
        self
    }

    fn double(mut self, field: u64, number: Option<&Value>) -> Self {
        if let Some(number) = number.and_then(Value::as_f64).filter(|number| *number != 0.0) {
            self.varint(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
        self
    }

    fn message(self, field: u64, message: Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// Each item as a message of its own. O(items).
    fn each<T>(self, field: u64, items: impl IntoIterator<Item = T>, build: impl Fn(T) -> Message) -> Self {
        items.into_iter().fold(self, |message, item| message.message(field, build(item)))
    }

    /// The `x-` fields. Both JSON and YAML readers take JSON.
    fn extensions(self, field: u64, of: &Value) -> Self {
        let extensions = members(Some(of)).filter(|(name, _)| name.starts_with("x-"));
        self.each(field, extensions, |(name, value)| named(name, any(value)))
    }
}

pub(super) fn document(document: &Value) -> Vec<u8> {
    let info = document.get("info").unwrap_or(&Value::Null);
    let info = Message::default().text(1, info.get("title")).text(2, info.get("version"));
    let paths = Message::default()
        .each(2, members(document.get("paths")), |(path, item)| named(path, path_item(item)));
    let definitions = properties(document.get("definitions"));
    Message::default()
        .text(1, document.get("swagger"))
        .message(2, info)
        .message(8, paths)
        .message(9, definitions)
        .0
}

fn members(object: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    object.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn items(array: Option<&Value>) -> impl Iterator<Item = &Value> {
    array.and_then(Value::as_array).into_iter().flatten()
}

fn named(name: &str, value: Message) -> Message {
    Message::default().bytes(1, name.as_bytes()).message(2, value)
}

fn any(value: &Value) -> Message {
    Message::default().bytes(2, value.to_string().as_bytes())
}

fn path_item(item: &Value) -> Message {
    let fields = [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)];
    fields.into_iter().fold(Message::default(), |message, (method, field)| match item.get(method) {
        Some(found) => message.message(field, operation(found)),
        None => message,
    })
}

fn operation(operation: &Value) -> Message {
    let responses = Message::default().each(1, members(operation.get("responses")), |(code, response)| {
        let response = Message::default().text(1, response.get("description"));
        named(code, Message::default().message(1, response))
    });
    Message::default()
        .each(8, items(operation.get("parameters")), parameter)
        .message(9, responses)
        .extensions(13, operation)
}

/// All of them are of the query.
fn parameter(parameter: &Value) -> Message {
    let query = Message::default()
        .text(2, parameter.get("in"))
        .text(4, parameter.get("name"))
        .text(6, parameter.get("type"))
        .flag(20, parameter.get("uniqueItems"));
    let not_body = Message::default().message(3, query);
    Message::default().message(1, Message::default().message(2, not_body))
}

fn properties(properties: Option<&Value>) -> Message {
    Message::default().each(1, members(properties), |(name, property)| named(name, schema(property)))
}

fn schema(raw: &Value) -> Message {
    let get = |key: &str| raw.get(key);
    let mut message = Message::default().text(1, get("$ref")).text(2, get("format")).text(3, get("title"));
    message = message.text(4, get("description"));
    if let Some(default) = get("default") {
        message = message.message(5, any(default));
    }
    message = message.double(6, get("multipleOf")).double(7, get("maximum"));
    message = message.flag(8, get("exclusiveMaximum")).double(9, get("minimum"));
    message = message.flag(10, get("exclusiveMinimum"));
    message = message.integer(11, get("maxLength")).integer(12, get("minLength")).text(13, get("pattern"));
    message = message.integer(14, get("maxItems")).integer(15, get("minItems")).flag(16, get("uniqueItems"));
    message = message.integer(17, get("maxProperties")).integer(18, get("minProperties"));
    for name in items(get("required")).filter_map(Value::as_str) {
        message = message.bytes(19, name.as_bytes());
    }
    message = message.each(20, items(get("enum")), any);
    match get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            message = message.message(21, Message::default().flag(2, Some(&Value::Bool(*allowed))));
        }
        Some(values) => message = message.message(21, Message::default().message(1, schema(values))),
        None => {}
    }
    if let Some(kind) = get("type") {
        message = message.message(22, Message::default().text(1, Some(kind)));
    }
    if let Some(of) = get("items") {
        message = message.message(23, Message::default().message(1, schema(of)));
    }
    if let Some(fields) = get("properties") {
        message = message.message(25, properties(Some(fields)));
    }
    message.extensions(31, raw)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_are_those_of_the_messages() {
        let written = schema(&json!({"type": "integer", "minimum": 1, "maxLength": 300, "x-a": [1]}));
        let wanted: &[&[u8]] = &[
            &[9 << 3 | 1],
            &1.0_f64.to_le_bytes(),
            &[11 << 3, 0xac, 0x02],
            &[0xb2, 0x01, 9, 10, 7],
            b"integer",
            &[0xfa, 0x01, 12, 10, 3],
            b"x-a",
            &[18, 5, 18, 3],
            b"[1]",
        ];
        assert_eq!(written.0, wanted.concat());
    }
}
