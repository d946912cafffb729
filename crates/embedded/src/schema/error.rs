//! One fault of one field, worded as Kubernetes words it. What is at fault is found elsewhere; here are only the words.

use std::fmt;

use serde_json::Value;

use super::wording;

/// The path Kubernetes prints where a fault belongs to the object as a whole.
pub(crate) const NO_PATH: &str = "<nil>";

/// One reason why an object is not acceptable. `Display` gives `path: Kind: value: detail`.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub path: String,
    pub kind: ErrorKind,
    /// The offending value; `None` where the wording leaves it out, as for whole objects that broke a rule.
    pub value: Option<Value>,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooShort,
    TooMany,
    TooFew,
    TypeInvalid,
    Internal,
}

impl ErrorKind {
    /// The `reason` of a cause in a `Status`.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooShort => "FieldValueTooShort",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::TooFew => "FieldValueTooFew",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            ErrorKind::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "Not found",
            ErrorKind::Required => "Required value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooShort => "Too short",
            ErrorKind::TooMany => "Too many",
            ErrorKind::TooFew => "Too few",
            ErrorKind::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        match self {
            ErrorKind::NotFound
            | ErrorKind::Duplicate
            | ErrorKind::Invalid
            | ErrorKind::TypeInvalid
            | ErrorKind::NotSupported
            | ErrorKind::TooMany
            | ErrorKind::TooFew => true,
            ErrorKind::Required
            | ErrorKind::Forbidden
            | ErrorKind::TooLong
            | ErrorKind::TooShort
            | ErrorKind::Internal => false,
        }
    }
}

impl FieldError {
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind: ErrorKind::Required, value: None, detail: detail.into() }
    }

    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind: ErrorKind::Forbidden, value: None, detail: detail.into() }
    }

    pub fn invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind: ErrorKind::Invalid, value: Some(value.into()), detail: detail.into() }
    }

    pub fn type_invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::TypeInvalid, ..Self::invalid(path, value, detail) }
    }

    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self {
            path: path.into(),
            kind: ErrorKind::Duplicate,
            value: Some(value.into()),
            detail: String::new(),
        }
    }

    pub fn not_supported<S: AsRef<str>>(
        path: impl Into<String>,
        value: impl Into<Value>,
        supported: &[S],
    ) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| wording::quoted(s.as_ref())).collect();
        let detail = match quoted.is_empty() {
            true => String::new(),
            false => format!("supported values: {}", quoted.join(", ")),
        };
        Self { path: path.into(), kind: ErrorKind::NotSupported, value: Some(value.into()), detail }
    }

    pub fn too_long(path: impl Into<String>, limit: u64) -> Self {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        Self {
            path: path.into(),
            kind: ErrorKind::TooLong,
            value: None,
            detail: format!("may not be more than {limit} {unit}"),
        }
    }

    pub fn too_many(path: impl Into<String>, actual: usize, limit: u64) -> Self {
        let unit = if limit == 1 { "item" } else { "items" };
        Self {
            path: path.into(),
            kind: ErrorKind::TooMany,
            value: Some(Value::from(actual)),
            detail: format!("must have at most {limit} {unit}"),
        }
    }

    /// The message without the path: what a cause in a `Status` carries.
    pub fn body(&self) -> String {
        let mut text = self.kind.title().to_owned();
        if let (true, Some(value)) = (self.kind.shows_value(), &self.value) {
            text.push_str(": ");
            text.push_str(&wording::show(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// One message for several faults: a single one plain, several in brackets, the same text only once.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen = std::collections::HashSet::new();
    let texts: Vec<String> =
        errors.iter().map(ToString::to_string).filter(|text| seen.insert(text.clone())).collect();
    match texts.as_slice() {
        [single] => single.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// `parent.child`, or the child alone where there is no parent.
pub(crate) fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

pub(crate) fn key(parent: &str, name: &str) -> String {
    format!("{parent}[{name}]")
}

pub(crate) fn index(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(error: FieldError, want: &str) {
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn wording() {
        check(FieldError::required("spec.x", ""), "spec.x: Required value");
        check(FieldError::invalid("spec.n", 0, "too small"), "spec.n: Invalid value: 0: too small");
        check(
            FieldError::not_supported("spec.kind", "z", &["a", "b"]),
            r#"spec.kind: Unsupported value: "z": supported values: "a", "b""#,
        );
        check(
            FieldError::duplicate("spec.l[1]", json!({"name": "x"})),
            r#"spec.l[1]: Duplicate value: {"name":"x"}"#,
        );
        check(FieldError::too_long("spec.s", 1), "spec.s: Too long: may not be more than 1 byte");
        check(FieldError::too_many("spec.l", 3, 2), "spec.l: Too many: 3: must have at most 2 items");
        check(
            FieldError { value: None, ..FieldError::invalid("spec", "", "failed rule: self.a < self.b") },
            "spec: Invalid value: failed rule: self.a < self.b",
        );
    }

    #[test]
    fn aggregates() {
        let one = FieldError::required("a", "");
        let two = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(aggregate(&[one.clone(), two, one]), "[a: Required value, b: Required value]");
    }
}
