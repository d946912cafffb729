//! Texts with names in braces: `{bucket}` becomes the field, `{{` a brace. A text that is one name takes its value as it is, with its
//! type. Values that are put in are not looked at again, so nothing that a layer says is taken for a name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What names stand for.
pub(super) type Names = BTreeMap<String, Value>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Name(String),
}

/// O(letters).
pub(super) fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut found = Vec::new();
    let mut plain = String::new();
    let mut left = text.chars().peekable();
    while let Some(letter) = left.next() {
        match letter {
            '{' | '}' if left.next_if_eq(&letter).is_some() => plain.push(letter),
            '{' => {
                let mut name = String::new();
                loop {
                    match left.next() {
                        Some('}') => break,
                        Some('{') => return Err(format!("{text:?} has a brace within braces")),
                        Some(letter) => name.push(letter),
                        None => {
                            return Err(format!(
                                "{text:?} has a brace that does not end; {{{{ means a brace"
                            ));
                        }
                    }
                }
                if !plain.is_empty() {
                    found.push(Piece::Text(std::mem::take(&mut plain)));
                }
                found.push(Piece::Name(name));
            }
            '}' => return Err(format!("{text:?} has a brace that does not begin; }}}} means a brace")),
            other => plain.push(other),
        }
    }
    if !plain.is_empty() {
        found.push(Piece::Text(plain));
    }
    Ok(found)
}

/// The names in a template, or what is wrong with it. O(template).
pub(super) fn names_in(template: &Value, found: &mut Vec<String>) -> Result<(), String> {
    match template {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => {
            let names = pieces(text)?.into_iter().filter_map(|piece| match piece {
                Piece::Name(name) => Some(name),
                Piece::Text(_) => None,
            });
            found.extend(names);
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| names_in(item, found)),
        Value::Object(fields) => fields.values().try_for_each(|field| names_in(field, found)),
    }
}

/// What a template comes to; nothing where a name in it stands for nothing. O(template and its values).
pub(super) fn render(template: &Value, names: &Names) -> Option<Value> {
    match template {
        Value::Null => None,
        Value::Bool(_) | Value::Number(_) => Some(template.clone()),
        Value::String(text) => {
            let pieces = pieces(text).ok()?;
            if let [Piece::Name(only)] = pieces.as_slice() {
                return names.get(only).cloned();
            }
            let mut whole = String::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => whole.push_str(&text),
                    Piece::Name(name) => match names.get(&name)? {
                        Value::String(text) => whole.push_str(text),
                        other => whole.push_str(&other.to_string()),
                    },
                }
            }
            Some(Value::String(whole))
        }
        Value::Array(items) => {
            let rendered: Vec<Value> = items.iter().filter_map(|item| render(item, names)).collect();
            (items.is_empty() || !rendered.is_empty()).then_some(Value::Array(rendered))
        }
        Value::Object(fields) => {
            let rendered: Map<String, Value> = fields
                .iter()
                .filter_map(|(name, field)| Some((name.clone(), render(field, names)?)))
                .collect();
            (fields.is_empty() || !rendered.is_empty()).then_some(Value::Object(rendered))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: Value) -> Option<Value> {
        let names = [("a", json!("A{b}")), ("n", json!(3)), ("l", json!(["x"]))];
        render(&template, &names.map(|(name, value)| (name.to_owned(), value)).into())
    }

    #[test]
    fn names_become_values_and_values_stay_what_they_are() {
        for (template, expected) in [
            (json!("{a}"), Some(json!("A{b}"))),
            (json!("{n}"), Some(json!(3))),
            (json!("{l}"), Some(json!(["x"]))),
            (json!("x/{a}/{n}"), Some(json!("x/A{b}/3"))),
            (json!("{{a}}"), Some(json!("{a}"))),
            (json!("x/{missing}"), None),
            (json!({ "s3": "{missing}" }), None),
            (json!({ "s3": "{missing}", "n": "{n}" }), Some(json!({ "n": 3 }))),
            (json!([{ "name": "{a}" }]), Some(json!([{ "name": "A{b}" }]))),
            (json!(true), Some(json!(true))),
        ] {
            assert_eq!(rendered(template.clone()), expected, "{template}");
        }
    }

    #[test]
    fn a_brace_that_does_not_match_is_found() {
        for text in ["{a", "a}", "{a}}", "{"] {
            assert!(pieces(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_upsets_it(text in "[{}a-c/$%\"\\\\]{0,20}") {
            let _ = pieces(&text);
            let doubled = text.replace('{', "{{").replace('}', "}}");
            let rendered = render(&Value::String(doubled), &Names::new());
            proptest::prop_assert_eq!(rendered, Some(Value::String(text)));
        }
    }
}
