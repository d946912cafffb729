//! Each value against its place in the schema: types, bounds, enumerations, required fields, junctors.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::schema::correlate::Correlated;
use crate::schema::error::{FieldError, NO_PATH};
use crate::schema::node::{Node, Type};
use crate::schema::wording::{self, MAX_DEPTH};

use super::format;
use super::number;

/// Checks a value and everything below it. `base` is where the value stands in the object that was sent.
pub(in crate::schema) fn check(node: &Node, new: &Value, old: Option<&Value>, base: &str) -> Vec<FieldError> {
    let mut run = Run { base, path: String::new(), errors: Vec::new() };
    let correlated = old.map(|old| Correlated::new(node, new, old));
    run.ratcheted(node, new, correlated.as_ref(), 0);
    // The same text is reported once, as where two alternatives of one place fail alike.
    let mut seen = HashSet::new();
    run.errors.retain(|error| seen.insert(error.to_string()));
    run.errors
}

pub(super) struct Run<'a> {
    base: &'a str,
    /// Where the value stands, as `spec.items[0].name`; in messages this is the name of the value.
    pub(super) path: String,
    pub(super) errors: Vec<FieldError>,
}

/// How many checks a value passed: among alternatives that all fail, the one that came closest is reported.
type Passed = u64;

impl Run<'_> {
    /// The path of an error about the current value.
    pub(super) fn place(&self) -> String {
        match (self.path.strip_prefix('.').unwrap_or(&self.path), self.base) {
            ("", "") => NO_PATH.to_owned(),
            ("", base) => base.to_owned(),
            (path, "") => path.to_owned(),
            (path, base) => format!("{base}.{path}"),
        }
    }

    /// A fault that the current value shows.
    pub(super) fn invalid(&mut self, value: impl Into<Value>, detail: String) {
        self.errors.push(FieldError::invalid(self.place(), value, detail));
    }

    fn invalid_type(&mut self, wanted: &str, got: &str) {
        let detail = format!("{} in body must be of type {wanted}: {}", self.path, wording::quoted(got));
        self.errors.push(FieldError::type_invalid(self.place(), got, detail));
    }

    /// A fault that kube-apiserver reports without its path.
    pub(super) fn pathless(&mut self, detail: String) {
        let place = if self.base.is_empty() { NO_PATH } else { self.base };
        self.errors.push(FieldError::invalid(place, "", detail));
    }

    /// Checks a value, and forgives its faults if it is what it was.
    fn ratcheted(
        &mut self,
        node: &Node,
        value: &Value,
        correlated: Option<&Correlated<'_>>,
        depth: usize,
    ) -> Passed {
        let before = self.errors.len();
        let passed = self.value(node, value, correlated, depth);
        if self.errors.len() > before && correlated.is_some_and(Correlated::same) {
            self.errors.truncate(before);
        }
        passed
    }

    fn value(
        &mut self,
        node: &Node,
        value: &Value,
        correlated: Option<&Correlated<'_>>,
        depth: usize,
    ) -> Passed {
        if depth > MAX_DEPTH {
            self.pathless(format!("{} is nested too deeply", self.path));
            return 0;
        }
        let held;
        let node = match node.follow() {
            Some(target) => {
                held = target;
                &*held
            }
            None => node,
        };
        let typed = node.kind.is_some() || node.int_or_string;
        let format = format::known(node);
        let mut passed = 0;
        if value.is_null() {
            if typed && !node.nullable {
                self.invalid_type(type_names(node), "null");
            } else {
                passed += 1;
            }
            self.enumeration(node, value);
            return passed;
        }
        if typed || format.is_some() {
            passed += self.types(node, value, format) + 1;
        }
        passed += self.junctors(node, value, depth) + 2;
        match value {
            Value::String(text) => {
                self.text(node, text);
                passed += 1;
                if let Some(format) = format.filter(|format| format.applies_to_text()) {
                    self.format(format, text);
                    passed += 1;
                }
            }
            Value::Number(number) => {
                number::check(self, node, format, number);
                passed += 2;
            }
            Value::Array(items) => passed += self.items(node, items, correlated, depth) + 2,
            Value::Null | Value::Bool(_) | Value::Object(_) => {}
        }
        self.enumeration(node, value);
        passed += 1;
        if let Value::Object(fields) = value {
            passed += self.fields(node, fields, correlated, depth) + 1;
        }
        passed + 1
    }

    fn types(&mut self, node: &Node, value: &Value, format: Option<format::Format<'_>>) -> Passed {
        let (got, got_format) = match value {
            Value::Null => return 1,
            Value::Bool(_) => ("boolean", ""),
            Value::Number(number) if number.is_i64() => ("integer", "int64"),
            Value::Number(_) => ("number", "float64"),
            Value::String(_) => ("string", ""),
            Value::Array(_) => ("array", ""),
            Value::Object(_) => ("object", ""),
        };
        let takes = |kind: Type| match node.int_or_string {
            true => matches!(kind, Type::Integer | Type::String),
            false => node.kind == Some(kind),
        };
        let fits = match value {
            Value::Null => true,
            Value::Bool(_) => takes(Type::Boolean),
            Value::Number(number) if number.is_i64() => takes(Type::Integer) || takes(Type::Number),
            Value::Number(number) => {
                takes(Type::Number)
                    || (takes(Type::Integer) && number::is_integral(number.as_f64().unwrap_or_default()))
            }
            Value::String(_) => takes(Type::String),
            Value::Array(_) => takes(Type::Array),
            Value::Object(_) => takes(Type::Object),
        };
        let text_or_list = value.is_string() || value.is_array();
        if let Some(format) = format {
            if !text_or_list && !fits && format.name != got_format {
                self.invalid_type(format.name, got_format);
                return 0;
            }
            // With a format, a text is left to the format's own check; a list slips through, as it does in kube-apiserver.
            if text_or_list && !takes(Type::Number) && !takes(Type::Integer) {
                return 1;
            }
        }
        if !fits {
            self.invalid_type(type_names(node), got);
            return 0;
        }
        1
    }

    fn text(&mut self, node: &Node, text: &str) {
        let characters = || text.chars().count() as u64;
        if let Some(limit) = node.max_length.filter(|limit| characters() > *limit) {
            self.errors.push(FieldError::too_long(self.place(), limit));
        } else if let Some(limit) = node.min_length.filter(|limit| characters() < *limit) {
            self.invalid(text, format!("{} in body should be at least {limit} chars long", self.path));
        } else if let Some(pattern) = node.pattern.as_deref().filter(|pattern| !pattern.is_empty())
            && !node.regex().is_some_and(|regex| regex.is_match(text))
        {
            self.invalid(text, format!("{} in body should match '{pattern}'", self.path));
        }
    }

    fn format(&mut self, format: format::Format<'_>, text: &str) {
        if !format.accepts(text) {
            let detail =
                format!("{} in body must be of type {}: {}", self.path, format.name, wording::quoted(text));
            self.errors.push(FieldError::type_invalid(self.place(), text, detail));
        }
    }

    fn enumeration(&mut self, node: &Node, value: &Value) {
        if node.enumeration.is_empty() || node.enumeration.iter().any(|allowed| enumerated(allowed, value)) {
            return;
        }
        let supported: Vec<String> = node
            .enumeration
            .iter()
            .map(|allowed| match allowed {
                Value::String(text) => text.clone(),
                other => wording::json(other),
            })
            .collect();
        self.errors.push(FieldError::not_supported(self.place(), value.clone(), &supported));
    }

    /// Linear in the list; each item is checked once.
    fn items(
        &mut self,
        node: &Node,
        items: &[Value],
        correlated: Option<&Correlated<'_>>,
        depth: usize,
    ) -> Passed {
        let mut passed = 0;
        if let Some(item_node) = &node.items {
            for (index, item) in items.iter().enumerate() {
                let length = self.path.len();
                self.path.push_str(&format!("[{index}]"));
                let item_correlated = correlated.and_then(|correlated| correlated.item(index));
                passed += self.ratcheted(item_node, item, item_correlated.as_ref(), depth + 1);
                self.path.truncate(length);
            }
        }
        let size = items.len();
        if let Some(limit) = node.min_items.filter(|limit| (size as u64) < *limit) {
            self.invalid(size, format!("{} in body should have at least {limit} items", self.path));
        }
        if let Some(limit) = node.max_items.filter(|limit| size as u64 > *limit) {
            self.errors.push(FieldError::too_many(self.place(), size, limit));
        }
        if node.unique_items && has_duplicates(items) {
            self.invalid("", format!("{} in body shouldn't contain duplicates", self.path));
        }
        passed
    }

    fn fields(
        &mut self,
        node: &Node,
        fields: &Map<String, Value>,
        correlated: Option<&Correlated<'_>>,
        depth: usize,
    ) -> Passed {
        let mut passed = 0;
        let size = fields.len();
        if let Some(limit) = node.min_properties.filter(|limit| (size as u64) < *limit) {
            self.invalid(size, format!("{} in body should have at least {limit} properties", self.path));
        }
        if let Some(limit) = node.max_properties.filter(|limit| size as u64 > *limit) {
            self.errors.push(FieldError::too_many(self.place(), size, limit));
        }
        let others = fields.iter().filter(|(name, _)| !node.properties.contains_key(*name));
        for (name, value) in others {
            if node.additional_forbidden {
                self.invalid(name.as_str(), format!("{}.{name} in body is a forbidden property", self.path));
            } else if let Some(additional) = &node.additional {
                passed += self.field(additional, name, Joint::Dot, value, correlated, depth);
            }
        }
        for (name, property) in &node.properties {
            if let Some(value) = fields.get(name) {
                passed += self.field(property, name, Joint::DotInside, value, correlated, depth);
            }
        }
        for name in node.required.iter().filter(|name| !fields.contains_key(*name)) {
            let length = self.path.len();
            self.path.push('.');
            self.path.push_str(name);
            self.errors.push(FieldError::required(self.place(), ""));
            self.path.truncate(length);
        }
        passed
    }

    fn field(
        &mut self,
        node: &Node,
        name: &str,
        joint: Joint,
        value: &Value,
        correlated: Option<&Correlated<'_>>,
        depth: usize,
    ) -> Passed {
        // The version and kind of an object are not compared: a change of version is not visible in them.
        let at_root = self.path.is_empty() && matches!(name, "kind" | "apiVersion");
        let field = correlated.filter(|_| !at_root).and_then(|correlated| correlated.field(name));
        let length = self.path.len();
        match joint {
            Joint::Dot => self.path.push('.'),
            Joint::DotInside if length > 0 => self.path.push('.'),
            Joint::DotInside => {}
        }
        self.path.push_str(name);
        let passed = self.ratcheted(node, value, field.as_ref(), depth + 1);
        self.path.truncate(length);
        passed
    }

    /// The faults of one alternative, apart, and how far it came.
    fn alternative(&mut self, node: &Node, value: &Value, depth: usize) -> (Vec<FieldError>, Passed) {
        let before = self.errors.len();
        let passed = self.value(node, value, None, depth + 1);
        (self.errors.split_off(before), passed)
    }

    /// `anyOf`, `oneOf`, `allOf` and `not`. Every alternative sees the value once, so the work is the schema's size times the
    /// value's.
    fn junctors(&mut self, node: &Node, value: &Value, depth: usize) -> Passed {
        let mut passed = 0;
        if !node.any_of.is_empty() {
            let mut best: Option<(Vec<FieldError>, Passed)> = None;
            let mut success = None;
            for branch in &node.any_of {
                let (faults, count) = self.alternative(branch, value, depth);
                if faults.is_empty() {
                    success = Some(count);
                    break;
                }
                if best.as_ref().is_none_or(|(_, most)| count > *most) {
                    best = Some((faults, count));
                }
            }
            match (success, best) {
                (Some(count), _) => passed += count,
                (None, best) => {
                    let name = wording::quoted(&self.path);
                    self.pathless(format!("{name} must validate at least one schema (anyOf)"));
                    if let Some((faults, count)) = best {
                        self.errors.extend(faults);
                        passed += count;
                    }
                }
            }
        }
        passed += self.one_of(node, value, depth);
        if !node.all_of.is_empty() {
            let mut valid = 0;
            for branch in &node.all_of {
                let (faults, count) = self.alternative(branch, value, depth);
                valid += usize::from(faults.is_empty());
                self.errors.extend(faults);
                passed += count;
            }
            if valid < node.all_of.len() {
                let name = wording::quoted(&self.path);
                let none = if valid == 0 { ". None validated" } else { "" };
                self.pathless(format!("{name} must validate all the schemas (allOf){none}"));
            }
        }
        if let Some(branch) = &node.not
            && self.alternative(branch, value, depth).0.is_empty()
        {
            let name = wording::quoted(&self.path);
            self.pathless(format!("{name} must not validate the schema (not)"));
        }
        passed
    }

    fn one_of(&mut self, node: &Node, value: &Value, depth: usize) -> Passed {
        if node.one_of.is_empty() {
            return 0;
        }
        let mut best: Option<(Vec<FieldError>, Passed)> = None;
        let mut first_success = None;
        let mut valid = 0;
        for branch in &node.one_of {
            let (faults, count) = self.alternative(branch, value, depth);
            if faults.is_empty() {
                valid += 1;
                best = None;
                first_success.get_or_insert(count);
            } else if valid == 0 && best.as_ref().is_none_or(|(_, most)| count > *most) {
                best = Some((faults, count));
            }
        }
        if valid == 1 {
            return first_success.unwrap_or_default();
        }
        let name = wording::quoted(&self.path);
        let found = match valid {
            0 => "Found none valid".to_owned(),
            several => format!("Found {several} valid alternatives"),
        };
        self.pathless(format!("{name} must validate one and only one schema (oneOf). {found}"));
        let (faults, count) = best.unwrap_or_default();
        self.errors.extend(faults);
        count
    }
}

/// Declared fields of a nameless object stand alone, entries of a nameless map after a dot: kube-apiserver's names differ so.
#[derive(Clone, Copy)]
enum Joint {
    Dot,
    DotInside,
}

fn type_names(node: &Node) -> &'static str {
    match (node.int_or_string, node.kind) {
        (true, _) => "integer,string",
        (false, Some(Type::Object)) => "object",
        (false, Some(Type::Array)) => "array",
        (false, Some(Type::String)) => "string",
        (false, Some(Type::Integer)) => "integer",
        (false, Some(Type::Number)) => "number",
        (false, Some(Type::Boolean)) => "boolean",
        (false, None) => "",
    }
}

/// A number is compared as the kind of number that the enumeration holds; null is never enumerated.
fn enumerated(allowed: &Value, value: &Value) -> bool {
    match (allowed, value) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(allowed), Value::Number(value)) => match allowed.as_i64() {
            Some(allowed) => {
                value.as_i64().or_else(|| value.as_f64().map(|float| float as i64)) == Some(allowed)
            }
            None => allowed.as_f64() == value.as_f64(),
        },
        (allowed, value) => allowed == value,
    }
}

fn has_duplicates(items: &[Value]) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().any(|item| !seen.insert(wording::json(item)))
}
