//! Whether an object satisfies its schema. The order of the checks and their words are kube-apiserver's: values, embedded
//! resources, list types, rules; on an update what did not change is not held against the object.

mod embedded;
mod format;
mod lists;
mod number;
mod values;

use serde_json::Value;

use super::cel;
use super::error::{ErrorKind, FieldError, NO_PATH};
use super::node::Node;

pub use embedded::malformed;
pub(super) use values::check as check_values;

/// Everything that is wrong with `new`. With `old`, an update: faults of unchanged values do not count.
pub fn validate(node: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = values::check(node, new, old, "");
    errors.extend(embedded::check(node, new));
    errors.extend(list_faults(node, new, old));
    check_rules(node, new, old, &mut errors);
    errors
}

/// The same for an update of the `status` subresource: of the values only `status` is looked at, the rules see everything.
pub fn validate_status(node: &Node, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = match (new.get("status"), node.properties.get("status")) {
        (Some(status), Some(status_node)) => {
            // Without an old status there is nothing to compare with, and every fault counts.
            values::check(status_node, status, old.get("status"), "status")
        }
        (_, _) => Vec::new(),
    };
    errors.extend(list_faults(node, new, Some(old)));
    check_rules(node, new, Some(old), &mut errors);
    errors
}

fn list_faults(node: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let faults = lists::check(node, new);
    match old {
        Some(old) if !faults.is_empty() && !lists::check(node, old).is_empty() => Vec::new(),
        Some(_) | None => faults,
    }
}

fn check_rules(node: &Node, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if !cel::has_rules(node) {
        return;
    }
    if errors.iter().any(|error| blocks_rules(error.kind)) {
        errors.push(FieldError::invalid(
            NO_PATH,
            Value::Null,
            "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ));
        return;
    }
    errors.extend(cel::check(node, new, old));
}

/// A rule is evaluated only on an object of the right shape and size.
fn blocks_rules(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NotSupported
        | ErrorKind::Required
        | ErrorKind::TooLong
        | ErrorKind::TooMany
        | ErrorKind::TypeInvalid => true,
        ErrorKind::NotFound
        | ErrorKind::Duplicate
        | ErrorKind::Invalid
        | ErrorKind::Forbidden
        | ErrorKind::TooShort
        | ErrorKind::TooFew
        | ErrorKind::Internal => false,
    }
}
