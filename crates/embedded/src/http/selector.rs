//! Label and field selectors: parsing with kube-apiserver's words for what is wrong, and matching.

use std::borrow::Cow;

use serde_json::Value;

use super::status::{Result, Status};
use crate::kinds::{Builtin, Kind, format};
use crate::store::Stored;

/// Which objects a list, a watch or a deletecollection is about.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    /// As the stored form names it.
    field: String,
    value: String,
    negated: bool,
}

impl Selector {
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Selector> {
        Ok(Selector {
            labels: parse_labels(labels).map_err(Status::bad_request)?,
            fields: parse_fields(kind, fields).map_err(Status::bad_request)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that can match, if the selector says so.
    pub fn single_name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|term| term.field == "metadata.name" && !term.negated)
            .map(|term| term.value.as_str())
    }

    /// The one namespace that can match, if the selector says so.
    pub fn single_namespace(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|term| term.field == "metadata.namespace" && !term.negated)
            .map(|term| term.value.as_str())
    }

    /// A field and the value that it must have, if the selector says so.
    pub fn wanted_values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().filter(|term| !term.negated).map(|term| (term.field.as_str(), term.value.as_str()))
    }

    /// O(terms); parses the object only for fields that the store does not keep beside it.
    pub fn matches(&self, object: &Stored) -> bool {
        if !self.labels.iter().all(|requirement| requirement.matches(object.labels.get(&requirement.key))) {
            return false;
        }
        let mut parsed = None;
        self.fields.iter().all(|term| {
            let equal = match term.field.as_str() {
                "metadata.name" => *object.key.name == *term.value,
                "metadata.namespace" => *object.key.namespace == *term.value,
                _ if !term.may_equal(&object.bytes()) => false,
                field => field_text(parsed.get_or_insert_with(|| object.value()), field) == term.value,
            };
            equal != term.negated
        })
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        match (&self.operator, value) {
            (Operator::In(values), Some(value)) => values.iter().any(|v| v == value),
            (Operator::NotIn(values), Some(value)) => !values.iter().any(|v| v == value),
            (Operator::Exists, value) => value.is_some(),
            (Operator::Absent, value) => value.is_none(),
            (Operator::Above(bound), Some(value)) => value.parse::<i64>().is_ok_and(|v| v > *bound),
            (Operator::Below(bound), Some(value)) => value.parse::<i64>().is_ok_and(|v| v < *bound),
            (Operator::NotIn(_), None) => true,
            (Operator::In(_) | Operator::Above(_) | Operator::Below(_), None) => false,
        }
    }
}

impl FieldTerm {
    /// Whether a field of the stored JSON can have the value: `false` is certain. A value that JSON writes as it is stands in the
    /// bytes of every object that has it, and looking for it is a hundred times faster than parsing.
    fn may_equal(&self, json: &[u8]) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
        let searchable = !DEFAULTED.contains(&self.field.as_str())
            && !self.value.is_empty()
            && self.value.bytes().all(plain);
        !searchable || memchr::memmem::find(json, self.value.as_bytes()).is_some()
    }
}

/// Fields that have a value where the object names none.
const DEFAULTED: [&str; 3] = ["status.successful", "spec.unschedulable", "spec.hostNetwork"];

/// A field as selectors compare it: absent is empty, numbers and booleans are printed.
fn field_text<'a>(object: &'a Value, field: &str) -> Cow<'a, str> {
    match field {
        // The component of an event's source, as kube-apiserver indexes it.
        "source" => {
            let component = object.pointer("/source/component").and_then(Value::as_str).unwrap_or_default();
            let fallback = object.get("reportingComponent").and_then(Value::as_str).unwrap_or_default();
            return Cow::Borrowed(if component.is_empty() { fallback } else { component });
        }
        "status.successful" => return printed(object.pointer("/status/succeeded"), "0"),
        "spec.unschedulable" | "spec.hostNetwork" => {
            return printed(field.split('.').try_fold(object, |at, part| at.get(part)), "false");
        }
        _ => {}
    }
    printed(field.split('.').try_fold(object, |at, part| at.get(part)), "")
}

fn printed<'a>(value: Option<&'a Value>, absent: &'static str) -> Cow<'a, str> {
    match value {
        None | Some(Value::Null) => Cow::Borrowed(absent),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

fn parse_fields(kind: &Kind, selector: &str) -> std::result::Result<Vec<FieldTerm>, String> {
    let mut parts = split_terms(selector);
    parts.sort_unstable();
    let mut terms = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let Some((field, negated, raw)) = split_term(part) else {
            return Err(format!("invalid selector: '{selector}'; can't understand '{part}'"));
        };
        let value = unescape(raw)?;
        terms.push(FieldTerm { field: supported_field(kind, field)?, value, negated });
    }
    Ok(terms)
}

/// The stored name of a selectable field.
fn supported_field(kind: &Kind, field: &str) -> std::result::Result<String, String> {
    let metadata = field == "metadata.name"
        || (field == "metadata.namespace"
            && (kind.is_namespaced() || !matches!(kind.builtin(), Some(Builtin::Node | Builtin::Namespace))));
    if metadata {
        return Ok(field.to_owned());
    }
    if kind.selectable.iter().any(|known| known == field) {
        return Ok(match kind.builtin() {
            Some(Builtin::EventV1) if field == "reportingController" => "reportingComponent".to_owned(),
            Some(Builtin::EventV1) => field.replace("regarding.", "involvedObject."),
            _ => field.to_owned(),
        });
    }
    Err(match kind.builtin() {
        Some(Builtin::Pod) if field == "spec.host" => return Ok("spec.nodeName".to_owned()),
        Some(Builtin::Job) => format!("field label {field:?} not supported for Job"),
        Some(
            Builtin::Pod
            | Builtin::Node
            | Builtin::Event
            | Builtin::EventV1
            | Builtin::Namespace
            | Builtin::Secret
            | Builtin::Service,
        )
        | None => {
            format!("field label not supported: {field}")
        }
        Some(_) => {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
    })
}

fn split_terms(selector: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, letter) in selector.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(selector.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(selector.get(start..).unwrap_or_default());
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in term.char_indices() {
        let (before, rest) = term.split_at(at);
        for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((before, negated, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(next) => {
                    return Err(format!("invalid field selector: invalid escape sequence: \\{next}"));
                }
                None => return Err("invalid field selector: invalid escape sequence: \\".to_owned()),
            },
            // The real server prints the character's number.
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(letter)
                ));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Word,
    In,
    NotIn,
    Symbol(&'static str),
    End,
}

/// `in` and `notin` are words where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    KeyAndOperator,
    Values,
}

const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

impl Parser {
    fn new(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            if rest.is_empty() {
                break;
            }
            if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
                tokens.push((Token::Symbol(symbol), (*symbol).to_owned()));
                rest = rest.get(symbol.len()..).unwrap_or_default();
                continue;
            }
            let end = rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Word,
            };
            tokens.push((token, word.to_owned()));
            rest = after;
        }
        Parser { tokens, position: 0 }
    }

    fn look(&self, place: Place) -> (Token, String) {
        match self.tokens.get(self.position) {
            None => (Token::End, String::new()),
            Some((Token::In | Token::NotIn, word)) if place == Place::Values => (Token::Word, word.clone()),
            Some(token) => token.clone(),
        }
    }

    fn take(&mut self, place: Place) -> (Token, String) {
        let token = self.look(place);
        self.position += 1;
        token
    }

    fn requirements(&mut self) -> std::result::Result<Vec<Requirement>, String> {
        let mut found = Vec::new();
        loop {
            let (token, literal) = self.look(Place::Values);
            match token {
                Token::Word | Token::Symbol("!") => {
                    found.push(self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?);
                    let (token, literal) = self.take(Place::Values);
                    match token {
                        Token::End => return Ok(found),
                        Token::Symbol(",") => {
                            let (token, literal) = self.look(Place::Values);
                            if token != Token::Word && token != Token::Symbol("!") {
                                return Err(format!("found '{literal}', expected: identifier after ','"));
                            }
                        }
                        _ => return Err(format!("found '{literal}', expected: ',' or 'end of string'")),
                    }
                }
                Token::End => return Ok(found),
                _ => return Err(format!("found '{literal}', expected: !, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> std::result::Result<Requirement, String> {
        let (mut token, mut literal) = self.take(Place::Values);
        let negated = token == Token::Symbol("!");
        if negated {
            (token, literal) = self.take(Place::Values);
        }
        if token != Token::Word {
            return Err(format!("found '{literal}', expected: identifier"));
        }
        let key = literal;
        let bad_key = format::label_key(&key);
        if !bad_key.is_empty() {
            return Err(format!("<nil>: Invalid value: {key:?}: {}", bad_key.join("; ")));
        }
        if negated {
            return Ok(Requirement { key, operator: Operator::Absent });
        }
        if matches!(self.look(Place::Values).0, Token::End | Token::Symbol(",")) {
            return Ok(Requirement { key, operator: Operator::Exists });
        }
        let (token, literal) = self.take(Place::KeyAndOperator);
        let operator = match token {
            Token::In => Operator::In(self.values(&key)?),
            Token::NotIn => Operator::NotIn(self.values(&key)?),
            Token::Symbol("=" | "==") => Operator::In(vec![self.exact(&key)?]),
            Token::Symbol("!=") => Operator::NotIn(vec![self.exact(&key)?]),
            Token::Symbol(">") => Operator::Above(self.bound(&key)?),
            Token::Symbol("<") => Operator::Below(self.bound(&key)?),
            _ => return Err(format!("found '{literal}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        Ok(Requirement { key, operator })
    }

    fn exact(&mut self, key: &str) -> std::result::Result<String, String> {
        let (token, _) = self.look(Place::Values);
        if matches!(token, Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        let (token, literal) = self.take(Place::Values);
        if token != Token::Word {
            return Err(format!("found '{literal}', expected: identifier"));
        }
        checked_value(key, 0, literal)
    }

    fn bound(&mut self, key: &str) -> std::result::Result<i64, String> {
        let value = self.exact(key)?;
        value.parse().map_err(|_| {
            format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            )
        })
    }

    fn values(&mut self, key: &str) -> std::result::Result<Vec<String>, String> {
        let (token, literal) = self.take(Place::Values);
        if token != Token::Symbol("(") {
            return Err(format!("found '{literal}' expected: '('"));
        }
        match self.look(Place::Values).0 {
            Token::Word | Token::Symbol(",") => {}
            Token::Symbol(")") => {
                self.take(Place::Values);
                return Ok(vec![String::new()]);
            }
            _ => {
                return Err(format!(
                    "found '{}', expected: ',', ')' or identifier",
                    self.look(Place::Values).1
                ));
            }
        }
        let mut values: Vec<String> = Vec::new();
        let mut after_word = false;
        loop {
            let (token, literal) = self.take(Place::Values);
            match token {
                Token::Word if !after_word => {
                    values.push(literal);
                    after_word = true;
                }
                Token::Symbol(",") => {
                    if !after_word && values.is_empty() {
                        values.push(String::new());
                    }
                    after_word = false;
                    if matches!(self.look(Place::Values).0, Token::Symbol("," | ")"))
                        && !values.iter().any(String::is_empty)
                    {
                        values.push(String::new());
                    }
                }
                Token::Symbol(")") => break,
                _ if after_word => return Err(format!("found '{literal}', expected: ',' or ')'")),
                _ => return Err(format!("found '{literal}', expected: ',', or identifier")),
            }
        }
        values.into_iter().enumerate().map(|(index, value)| checked_value(key, index, value)).collect()
    }
}

fn checked_value(key: &str, index: usize, value: String) -> std::result::Result<String, String> {
    let bad = format::label_value(&value);
    if bad.is_empty() {
        Ok(value)
    } else {
        Err(format!("values[{index}][{key}]: Invalid value: {value:?}: {}", bad.join("; ")))
    }
}

fn parse_labels(selector: &str) -> std::result::Result<Vec<Requirement>, String> {
    Parser::new(selector).requirements()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(selector: &str, labels: &[(&str, &str)], expected: bool) {
        let requirements = parse_labels(selector).unwrap();
        let found =
            requirements.iter().all(|r| r.matches(labels.iter().find(|(k, _)| *k == r.key).map(|(_, v)| *v)));
        assert_eq!(found, expected, "{selector} on {labels:?}");
    }

    #[test]
    fn label_selectors_match_as_kubernetes_means_them() {
        check("a=b", &[("a", "b")], true);
        check("a==b,c!=d", &[("a", "b"), ("c", "e")], true);
        check("a!=b", &[], true);
        check("a in (b, c)", &[("a", "c")], true);
        check("a in (b,)", &[("a", "")], true);
        check("a notin (b)", &[("a", "b")], false);
        check("a notin (b)", &[], true);
        check("a", &[("a", "")], true);
        check("!a", &[("a", "")], false);
        check("a>3", &[("a", "4")], true);
        check("a<3", &[("a", "4")], false);
        check("a=", &[("a", "")], true);
        check("in=in", &[("in", "in")], true);
        check("  a = b , c", &[("a", "b"), ("c", "")], true);
        check("", &[], true);
    }

    #[test]
    fn only_a_value_that_json_would_show_rules_an_object_out() {
        let json = br#"{"spec":{"layer":{"name":"vpc"},"count":12,"text":"a\"b"}}"#;
        for (field, value, expected) in [
            ("spec.layer.name", "vpc", true),
            ("spec.layer.name", "vpc-2", false),
            ("spec.count", "12", true),
            ("spec.layer.name", "", true),
            ("spec.text", "a\"b", true),
            ("spec.unschedulable", "false", true),
            ("status.successful", "0", true),
        ] {
            let term = FieldTerm { field: field.to_owned(), value: value.to_owned(), negated: false };
            assert_eq!(term.may_equal(json), expected, "{field}={value}");
        }
    }

    #[test]
    fn bad_label_selectors_are_refused_in_kubernetes_words() {
        for (selector, message) in [
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ] {
            assert_eq!(parse_labels(selector).unwrap_err(), message, "{selector}");
        }
        assert!(parse_labels("-a=b").unwrap_err().starts_with(
            "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of"
        ));
    }

    #[test]
    fn field_terms_keep_escapes_and_reject_nonsense() {
        assert_eq!(split_terms(r"a=b\,c,d=e"), [r"a=b\,c", "d=e"]);
        assert_eq!(unescape(r"b\,c").unwrap(), "b,c");
        assert!(unescape("a=b").is_err());
        assert_eq!(split_term("a!=b"), Some(("a", true, "b")));
        assert_eq!(split_term("ab"), None);
    }
}
