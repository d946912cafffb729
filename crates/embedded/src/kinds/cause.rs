//! One complaint about one field, in kube-apiserver's words. Who complains, and about what, is decided by the validations beside this file.

use std::fmt;

use serde_json::Value;

use crate::schema::FieldError;

/// One entry of `details.causes`, and one part of an `Invalid` message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: &'static str,
    /// The message without the field's name, such as `Required value`.
    pub message: String,
    pub field: String,
}

impl Cause {
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Cause { reason: "FieldValueRequired", message, field: field.into() }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {}: {detail}", shown(value)),
            field: field.into(),
        }
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() { "Forbidden".to_owned() } else { format!("Forbidden: {detail}") };
        Cause { reason: "FieldValueForbidden", message, field: field.into() }
    }

    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let listed: Vec<String> = supported.iter().map(|v| format!("{v:?}")).collect();
        Cause {
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {}: supported values: {}", shown(value), listed.join(", ")),
            field: field.into(),
        }
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Cause {
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {}", shown(value)),
            field: field.into(),
        }
    }

    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Cause {
            reason: "FieldValueNotFound",
            message: format!("Not found: {}", shown(value)),
            field: field.into(),
        }
    }

    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        Cause {
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {max} bytes"),
            field: field.into(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// How a bad value is printed in a field error.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

impl From<FieldError> for Cause {
    fn from(error: FieldError) -> Self {
        Cause { reason: error.kind.reason(), message: error.body(), field: error.path }
    }
}
