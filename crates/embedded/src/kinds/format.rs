//! The formats of names, label keys and label values, with kube-apiserver's words for what is wrong with them.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_MESSAGE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_1035_MESSAGE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const VALUE_MESSAGE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const CONFIG_KEY: &str = "[-._a-zA-Z0-9]+";
const CONFIG_KEY_MESSAGE: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";

fn regex(message: &str, expression: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{expression}')");
    }
    // Two examples are joined by a comma, two spaces and "or" on the real server, which follows from how it builds the sentence.
    let mut shown = String::new();
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            shown.push_str(" or ");
        }
        shown.push_str(&format!("'{example}', "));
    }
    format!("{message} (e.g. {shown}regex used for validation is '{expression}')")
}

/// Names are counted in characters and labels in bytes, in words only: both are ASCII where they are valid.
fn max_len(length: usize) -> String {
    format!("must be no more than {length} characters")
}

fn max_bytes(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

fn is_lower_alnum(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(value: &str) -> bool {
    let bytes = value.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&first), Some(&last)) if is_lower_alnum(first) && is_lower_alnum(last))
        && bytes.iter().all(|&b| is_lower_alnum(b) || b == b'-')
}

fn is_key_name(value: &str) -> bool {
    let bytes = value.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// RFC 1123 label, such as a namespace's name.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_len(63));
    }
    if !is_label(value) {
        if !value.is_empty() && value.split('.').all(is_label) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(regex(LABEL_MESSAGE, LABEL, &["my-name", "123-abc"]));
        }
    }
    errors
}

/// RFC 1123 subdomain, the form of most names.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_len(253));
    }
    if !value.split('.').all(is_label) {
        errors.push(regex(SUBDOMAIN_MESSAGE, SUBDOMAIN, &["example.com"]));
    }
    errors
}

/// RFC 1035 label: starts with a letter.
pub fn dns_1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_len(63));
    }
    if !is_label(value) || value.as_bytes().first().is_some_and(u8::is_ascii_digit) {
        errors.push(regex(LABEL_1035_MESSAGE, LABEL_1035, &["my-name", "abc-123"]));
    }
    errors
}

/// The key of a label or an annotation, a finalizer's name, a condition's type.
pub fn label_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns_subdomain(prefix).into_iter().map(|e| format!("prefix part {e}")));
            }
            *name
        }
        _ => {
            let message = regex(KEY_MESSAGE, KEY, &["MyName", "my.name", "123-abc"]);
            return vec![format!(
                "a valid label key {message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_bytes(63)));
    }
    if !is_key_name(name) {
        errors.push(format!("name part {}", regex(KEY_MESSAGE, KEY, &["MyName", "my.name", "123-abc"])));
    }
    errors
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_bytes(63));
    }
    if !value.is_empty() && !is_key_name(value) {
        errors.push(regex(VALUE_MESSAGE, VALUE, &["MyValue", "my_value", "12345"]));
    }
    errors
}

/// A key of a ConfigMap's or a Secret's data.
pub fn config_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_len(253));
    }
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        errors.push(regex(CONFIG_KEY_MESSAGE, CONFIG_KEY, &["key.name", "KEY_NAME", "key-name"]));
    }
    if value == "." {
        errors.push("must not be '.'".to_owned());
    }
    if value == ".." {
        errors.push("must not be '..'".to_owned());
    } else if value.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// The name of an environment variable: anything printable but `=`.
pub fn env_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.is_empty() {
        errors.push("environment variable name must be non-empty".to_owned());
    }
    if value.chars().any(|c| c == '=' || !(' '..='~').contains(&c)) {
        errors.push("a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned());
    }
    errors
}

/// Names that are parts of a path, as roles have them.
pub fn path_segment(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    for bad in [".", ".."] {
        if value == bad {
            errors.push(format!("may not be '{bad}'"));
        }
    }
    for part in ["/", "%"] {
        if value.contains(part) {
            errors.push(format!("may not contain '{part}'"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "a-b", "0", "a.b", "a1.b2.c3"] {
            assert!(dns_subdomain(good).is_empty(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a..b", ".a", "a_b", "a b", "ü"] {
            assert_eq!(dns_subdomain(bad).len(), 1, "{bad}");
        }
        assert_eq!(dns_subdomain(&"a".repeat(254)), ["must be no more than 253 characters"]);
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
    }

    #[test]
    fn label_keys_and_values() {
        assert!(label_key("app.kubernetes.io/name").is_empty());
        assert!(label_value("").is_empty());
        assert_eq!(label_key("/x"), ["prefix part must be non-empty"]);
        assert_eq!(label_key("a/b/c").len(), 1);
        assert_eq!(label_value("a b").len(), 1);
        assert_eq!(config_key(".."), ["must not be '..'"]);
    }
}
