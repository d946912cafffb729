//! The `fieldPath` of a rule: which field a broken rule is reported at.

use crate::schema::node::Node;

/// The path in the form of error messages, if it leads somewhere in the schema: `.a.b`, `.a['b.c']`.
pub(in crate::schema) fn field_path(node: &Node, path: &str) -> Option<String> {
    let mut found = String::new();
    let mut node = node.clone();
    for name in steps(path)? {
        let next = match node.properties.is_empty() {
            false => {
                if !found.is_empty() {
                    found.push('.');
                }
                found.push_str(&name);
                node.properties.get(&name)?.clone()
            }
            true => {
                found.push_str(&format!("[{name}]"));
                node.additional.as_ref()?.clone()
            }
        };
        node = (*next).clone();
    }
    Some(found)
}

/// The names along a path. Linear in its length.
fn steps(path: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            let (name, next) = after.split_at(end);
            if name.is_empty() {
                return None;
            }
            names.push(name.to_owned());
            rest = next;
        } else {
            let (name, next) = quoted(rest.strip_prefix("['")?)?;
            names.push(name);
            rest = next.strip_prefix(']')?;
        }
    }
    Some(names)
}

/// A text up to its closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => return Some((name, text.get(at + 1..)?)),
            '\\' => name.push(match chars.next()?.1 {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                escaped @ ('\'' | '\\') => escaped,
                _ => return None,
            }),
            c => name.push(c),
        }
    }
    None
}
