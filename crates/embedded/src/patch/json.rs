//! JSON patch, RFC 6902, with the habits of kube-apiserver: a negative index counts from the end, `replace` also adds a field,
//! an absent field equals null in `test` and is copied as null. The `json-patch` crate has none of these and no bound on what
//! `copy` may produce; tests hold this module against it where the two agree.

use serde_json::Value;

use super::Error;
use crate::apply::{MAX_DEPTH, deeper_than};
use crate::schema::wording::json_kind;

const MAX_OPERATIONS: usize = 10_000;

/// Copying a document into itself doubles it each time, so what all copies of a patch add up to is bounded.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// O(operations × size of the containers they change).
pub fn json(value: Value, patch: &Value) -> Result<Value, Error> {
    let operations = decode(patch)?;
    let mut document = value;
    let mut copied = 0;
    for operation in operations {
        run(&mut document, &operation, &mut copied)?;
    }
    super::check_depth(&document)?;
    Ok(document)
}

struct Operation<'p> {
    op: &'p str,
    path: Option<&'p str>,
    from: Option<&'p str>,
    value: Option<&'p Value>,
}

fn decode(patch: &Value) -> Result<Vec<Operation<'_>>, Error> {
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => return Err(undecodable(other, "Go value of type []handlers.jsonPatchOp")),
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    operations.iter().map(decode_operation).collect()
}

fn decode_operation(operation: &Value) -> Result<Operation<'_>, Error> {
    match operation {
        Value::Object(_) | Value::Null => {}
        other => return Err(undecodable(other, "Go value of type handlers.jsonPatchOp")),
    }
    let text = |name: &str| match operation.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(undecodable(other, &format!("Go struct field jsonPatchOp.{name} of type string"))),
    };
    let op = text("op")?.unwrap_or("unknown");
    Ok(Operation { op, path: text("path")?, from: text("from")?, value: operation.get("value") })
}

fn undecodable(value: &Value, into: &str) -> Error {
    Error::Malformed(format!("error decoding patch: json: cannot unmarshal {} into {into}", json_kind(value)))
}

fn run(document: &mut Value, operation: &Operation<'_>, copied: &mut usize) -> Result<(), Error> {
    let missing = |what: &str| {
        Error::inapplicable(format!("{} operation failed to decode {what}: missing value", operation.op))
    };
    let path = || operation.path.ok_or_else(|| missing("path"));
    let from = || operation.from.ok_or_else(|| missing("from"));
    let value = || operation.value.cloned().unwrap_or(Value::Null);
    match operation.op {
        "add" => add(document, path()?, value()),
        "remove" => remove(document, path()?).map(drop),
        "replace" => replace(document, path()?, value()),
        "test" => test(document, path()?, operation.value),
        "move" => {
            let moved = remove(document, from()?)?;
            add(document, path()?, moved)
        }
        "copy" => {
            let copy = get(document, from()?)?.cloned().unwrap_or(Value::Null);
            *copied += copy.to_string().len();
            if *copied > MAX_COPIED_BYTES {
                return Err(Error::inapplicable(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                )));
            }
            add(document, path()?, copy)
        }
        other => Err(Error::inapplicable(format!("Unexpected kind: {other}"))),
    }
}

/// The steps to the container, the last step, and the number of steps. `None` for the whole document.
fn split(path: &str) -> Result<Option<(Vec<String>, String)>, Error> {
    if path.is_empty() {
        return Ok(None);
    }
    let Some(steps) = path.strip_prefix('/') else {
        return Err(Error::inapplicable(format!("path {path:?} does not start with a slash")));
    };
    let mut steps: Vec<String> =
        steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
    Ok(steps.pop().map(|last| (steps, last)))
}

fn missing_path(path: &str) -> Error {
    Error::inapplicable(format!("operation does not apply: doc is missing path: \"{path}\": missing value"))
}

fn index(step: &str, length: usize, path: &str) -> Result<usize, Error> {
    let wrong = |cause: &str| Error::inapplicable(format!("error for path: '{path}': {cause}: {step}"));
    let number: i64 = step.parse().map_err(|_| wrong("value was not a proper array index"))?;
    let distance = usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX);
    let index = if number < 0 {
        length.checked_sub(distance)
    } else {
        Some(distance).filter(|index| *index < length)
    };
    index.ok_or_else(|| wrong("Unable to access invalid index"))
}

fn container<'d>(document: &'d mut Value, steps: &[String], path: &str) -> Result<&'d mut Value, Error> {
    let mut at = document;
    for step in steps {
        at = match at {
            Value::Object(fields) => fields.get_mut(step).ok_or_else(|| missing_path(path))?,
            Value::Array(items) => {
                let index = index(step, items.len(), path).map_err(|_| missing_path(path))?;
                items.get_mut(index).ok_or_else(|| missing_path(path))?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(missing_path(path));
            }
        };
    }
    Ok(at)
}

/// `None` for a field that an object does not have.
fn get<'d>(document: &'d mut Value, path: &str) -> Result<Option<&'d Value>, Error> {
    let Some((steps, last)) = split(path)? else { return Err(missing_path(path)) };
    match container(document, &steps, path)? {
        Value::Object(fields) => Ok(fields.get(&last)),
        Value::Array(items) => Ok(items.get(index(&last, items.len(), path)?)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing_path(path)),
    }
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), Error> {
    let Some((steps, last)) = split(path)? else { return Err(missing_path(path)) };
    check_depth_at(&steps, &value)?;
    match container(document, &steps, path)? {
        Value::Object(fields) => {
            fields.insert(last, value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            let index = index(&last, items.len() + 1, path)?;
            items.insert(index, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Err(missing_path(path)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str) -> Result<Value, Error> {
    let Some((steps, last)) = split(path)? else { return Err(missing_path(path)) };
    match container(document, &steps, path)? {
        Value::Object(fields) => fields.shift_remove(&last).ok_or_else(|| {
            Error::inapplicable(format!(
                "error in remove for path: '{path}': Unable to remove nonexistent key: {last}: missing value"
            ))
        }),
        Value::Array(items) => {
            let index = index(&last, items.len(), path)?;
            Ok(items.remove(index))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing_path(path)),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), Error> {
    let Some((steps, last)) = split(path)? else {
        return match value {
            Value::Object(_) | Value::Array(_) => {
                *document = value;
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Err(Error::inapplicable("replace operation value must be object or array"))
            }
        };
    };
    check_depth_at(&steps, &value)?;
    match container(document, &steps, path)? {
        Value::Array(items) => {
            let index = index(&last, items.len(), path)?;
            items.splice(index..=index, [value]);
        }
        Value::Object(fields) => {
            fields.insert(last, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Err(missing_path(path)),
    }
    Ok(())
}

/// Checked at each operation: a document nested without bound could not even be dropped.
fn check_depth_at(steps: &[String], value: &Value) -> Result<(), Error> {
    match MAX_DEPTH.checked_sub(steps.len() + 1) {
        Some(left) if !deeper_than(value, left) => Ok(()),
        Some(_) | None => Err(Error::too_deep()),
    }
}

fn test(document: &mut Value, path: &str, expected: Option<&Value>) -> Result<(), Error> {
    let found = if path.is_empty() { document } else { get(document, path)?.unwrap_or(&Value::Null) };
    if found == expected.unwrap_or(&Value::Null) {
        return Ok(());
    }
    Err(Error::inapplicable(format!("testing value {path} failed: test failed")))
}
