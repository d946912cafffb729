//! JSON merge patch, RFC 7386.

use serde_json::Value;

use super::Error;
use crate::schema::wording::json_kind;

/// Null removes a field, objects are merged, anything else is replaced. Also within what is new, null fields are left out. The
/// depth of the result is that of the deeper of the two. O(n).
pub fn merge(value: Value, patch: &Value) -> Result<Value, Error> {
    match patch {
        Value::Object(_) => {}
        Value::Null => return Err(Error::Malformed("Invalid JSON Patch".to_owned())),
        other => {
            let kind = json_kind(other);
            return Err(Error::Malformed(format!(
                "error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
            )));
        }
    }
    super::check_depth(&value)?;
    super::check_depth(patch)?;
    Ok(laid_over(Some(value), patch))
}

fn laid_over(value: Option<Value>, patch: &Value) -> Value {
    match (value, patch) {
        (Some(Value::Object(mut fields)), Value::Object(patch)) => {
            for (name, patch) in patch {
                if patch.is_null() {
                    fields.shift_remove(name);
                } else {
                    let field = fields.get_mut(name).map(Value::take);
                    fields.insert(name.clone(), laid_over(field, patch));
                }
            }
            Value::Object(fields)
        }
        (_, patch) => without_nulls(patch),
    }
}

/// Without the null fields of objects. Null items of lists are values.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
