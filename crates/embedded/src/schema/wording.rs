//! How values look inside Kubernetes' messages, which is how Go prints them. No message is made here.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

/// Deeper than any object that was read from the wire, which the JSON reader limits to 128.
pub(crate) const MAX_DEPTH: usize = 160;

/// A value as an error shows it: strings quoted, numbers plain, everything else as JSON.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Number(number) => show_number(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => json(value),
    }
}

fn show_number(number: &Number) -> String {
    match number.as_i64() {
        Some(integer) => integer.to_string(),
        None => float(number.as_f64().unwrap_or_default()),
    }
}

/// A floating-point number with the fewest digits that denote it, with an exponent where its power of ten is below the one
/// bound or not below the other: Go has one pair of bounds for messages and one for JSON.
fn shortest(number: f64, exponent_below: i32, exponent_from: i32) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let power: i32 = exponent.parse().unwrap_or_default();
    if power < exponent_below || power >= exponent_from {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", power.abs());
    }
    format!("{number}")
}

pub(crate) fn float(number: f64) -> String {
    shortest(number, -4, 6)
}

/// A string between double quotes with Go's escapes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if !printable(c) && (c as u32) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if !printable(c) => {
                let _ = write!(out, "\\U{:08x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn printable(c: char) -> bool {
    let invisible = matches!(
        c as u32,
        0xad | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb | 0xe0000..
    );
    c == ' ' || !(c.is_control() || c.is_whitespace() || invisible)
}

/// What Go's JSON reader calls a value.
pub(crate) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Compact JSON as Go writes it: keys sorted, `<`, `>` and `&` escaped.
pub(crate) fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(&mut out, value, 0);
    out
}

fn write_json(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("null");
        return;
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => {
            let _ = write!(out, "{flag}");
        }
        Value::Number(number) => match number.as_i64() {
            Some(integer) => {
                let _ = write!(out, "{integer}");
            }
            None => out.push_str(&json_float(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => write_json_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_json(out, item, depth + 1);
            }
            out.push(']');
        }
        Value::Object(fields) => write_json_object(out, fields, depth),
    }
}

fn write_json_object(out: &mut String, fields: &Map<String, Value>, depth: usize) {
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    out.push('{');
    for (position, (name, field)) in sorted.into_iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        write_json_string(out, name);
        out.push(':');
        write_json(out, field, depth + 1);
    }
    out.push('}');
}

fn json_float(number: f64) -> String {
    shortest(number, -6, 21).replace("e-0", "e-")
}

fn write_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_in_go() {
        let check = |value: Value, want: &str| assert_eq!(show(&value), want);
        check(json!(1), "1");
        check(json!(0.5), "0.5");
        check(json!(100000.0), "100000");
        check(json!(1e6), "1e+06");
        check(json!(0.00001), "1e-05");
        check(json!("a\"b\u{1}\u{200b}é"), "\"a\\\"b\\x01\\u200bé\"");
        check(json!({"b": 1, "a": "<&>"}), r#"{"a":"\u003c\u0026\u003e","b":1}"#);
        check(json!([1e6, null, true]), "[1000000,null,true]");
    }
}
