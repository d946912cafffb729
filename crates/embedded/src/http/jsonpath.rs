//! The small part of JSONPath that printer columns use: names, indices, wildcards and filters on equality.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Name(String),
    Index(i64),
    All,
    /// `[?(@.type=="Ready")]`: the path below the element, and what it must or must not equal.
    Where {
        path: Vec<Step>,
        equal: bool,
        value: Value,
    },
    /// `..name`
    Anywhere(String),
}

/// Everything that the path leads to, in order. Visits each value under the path once.
pub fn find<'a>(path: &str, root: &'a Value) -> Vec<&'a Value> {
    let Some(steps) = parse(path) else { return Vec::new() };
    follow(&steps, root)
}

fn follow<'a>(steps: &[Step], root: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![root];
    for step in steps {
        found = found.into_iter().flat_map(|value| take(step, value)).collect();
    }
    found
}

fn take<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match (step, value) {
        (Step::Name(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(items)) => {
            let at = usize::try_from(*index)
                .ok()
                .or_else(|| items.len().checked_sub(usize::try_from(-index).ok()?));
            at.and_then(|at| items.get(at)).into_iter().collect()
        }
        (Step::All, Value::Array(items)) => items.iter().collect(),
        (Step::All, Value::Object(fields)) => fields.values().collect(),
        (Step::Where { path, equal, value: wanted }, Value::Array(items)) => items
            .iter()
            .filter(|item| follow(path, item).first().is_some_and(|found| (**found == *wanted) == *equal))
            .collect(),
        (Step::Anywhere(name), value) => {
            let mut found = Vec::new();
            anywhere(name, value, &mut found);
            found
        }
        _ => Vec::new(),
    }
}

fn anywhere<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(name));
            fields.values().for_each(|value| anywhere(name, value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| anywhere(name, value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path.trim();
    rest = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}')).unwrap_or(rest);
    rest = rest.strip_prefix('$').unwrap_or(rest);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            let (name, after) = name(after)?;
            steps.push(Step::Anywhere(name));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('.') {
            if after.is_empty() {
                break;
            }
            let (name, after) = name(after)?;
            steps.push(if name == "*" { Step::All } else { Step::Name(name) });
            rest = after;
        } else if rest.starts_with('[') {
            let end = closing(rest)?;
            steps.push(bracket(rest.get(1..end)?)?);
            rest = rest.get(end + 1..)?;
        } else {
            let (name, after) = name(rest)?;
            steps.push(Step::Name(name));
            rest = after;
        }
    }
    Some(steps)
}

/// A name up to the next dot or bracket; `\.` is a dot in it.
fn name(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.push(letters.next()?.1),
            '.' | '[' => return Some((name, text.get(at..)?)),
            letter => name.push(letter),
        }
    }
    (!name.is_empty()).then_some((name, ""))
}

/// Where the bracket that opens `text` closes, quotes and inner brackets minded.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            (None, _) => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    let inner = inner.trim();
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inner.strip_prefix("?(").and_then(|c| c.strip_suffix(')')) {
        let (path, equal, value) = match condition.split_once("==") {
            Some((path, value)) => (path, true, value),
            None => {
                let (path, value) = condition.split_once("!=")?;
                (path, false, value)
            }
        };
        let path = parse(path.trim().strip_prefix('@')?)?;
        return Some(Step::Where { path, equal, value: literal(value.trim())? });
    }
    if let Some(name) = quoted(inner) {
        return Some(Step::Name(name.to_owned()));
    }
    inner.parse().ok().map(Step::Index)
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

fn literal(text: &str) -> Option<Value> {
    match quoted(text) {
        Some(text) => Some(text.into()),
        None => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_find_their_values() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "x"}},
            "spec": {"list": [1, 2, 3], "on": true},
            "status": {"conditions": [{"type": "Other", "status": "Unknown"}, {"type": "Ready", "status": "True", "reason": "Ok"}]},
        });
        for (path, expected) in [
            (".spec.on", json!([true])),
            ("{.spec.on}", json!([true])),
            (".spec.list[0]", json!([1])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[*]", json!([1, 2, 3])),
            (".spec.list[9]", json!([])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Ready')].reason", json!(["Ok"])),
            (".metadata.annotations.a\\.b/c", json!(["x"])),
            (".metadata.annotations['a.b/c']", json!(["x"])),
            ("..reason", json!(["Ok"])),
            (".nothing.here", json!([])),
            (".spec.list[", json!([])),
        ] {
            let found: Vec<Value> = find(path, &object).into_iter().cloned().collect();
            assert_eq!(Value::Array(found), expected, "{path}");
        }
    }
}
