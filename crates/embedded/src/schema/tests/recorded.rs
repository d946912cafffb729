//! What kube-apiserver v1.36 answered to the schemas and objects in `recorded.json`, against what is answered here.
//!
//! Each case was sent to a real server: the schema in a CustomResourceDefinition, the objects as creations, or as updates of an
//! old object that was stored before the schema was tightened. Its causes are compared as a set, because Go visits maps in no
//! particular order.

use serde_json::Value;

use super::super::{
    FieldError, Node, SCHEMA_PATH, Subresource, default, malformed, prune, validate, validate_status,
};

const RECORDED: &str = include_str!("recorded.json");

/// Faults as a sorted list of their reasons and texts.
fn answers(errors: &[FieldError]) -> Vec<String> {
    let mut answers: Vec<String> =
        errors.iter().map(|error| format!("{} {error}", error.kind.reason())).collect();
    answers.sort();
    answers.dedup();
    answers
}

fn recorded(causes: &Value) -> Vec<String> {
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let mut recorded: Vec<String> = causes
        .as_array()
        .map(|causes| {
            causes.iter().map(|cause| format!("{} {}", text(cause, "reason"), text(cause, "text"))).collect()
        })
        .unwrap_or_default();
    recorded.sort();
    recorded.dedup();
    recorded
}

/// One object of a case as the server keeps it: pruned and with its defaults. Also what was unknown in it.
fn admitted(node: &Node, object: &Value, name: &str) -> (Value, Vec<String>) {
    let mut object = object.clone();
    object["apiVersion"] = Value::from("example.com/v1");
    object["kind"] = Value::from("Thing");
    object["metadata"]["name"] = Value::from(name);
    let unknown = prune(node, &mut object);
    default(node, &mut object);
    (object, unknown)
}

/// Equality as JSON has it: 1 and 1.0 are one number.
fn same_json(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_json(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same_json(a, b)))
        }
        (a, b) => a == b,
    }
}

fn check(case: &Value, differences: &mut Vec<String>) {
    let name = case["name"].as_str().unwrap();
    let mut compare = |what: String, got: Vec<String>, want: Vec<String>| {
        if got != want {
            differences.push(format!("{name}{what}\n   got {got:#?}\n  want {want:#?}"));
        }
    };
    let subresource = if case["status"] == true { Subresource::Status } else { Subresource::None };
    let node = match Node::parse_at(&case["schema"], SCHEMA_PATH, subresource) {
        Ok(node) => node,
        Err(errors) => return compare(String::new(), answers(&errors), recorded(&case["refused"])),
    };
    if let Some(refused) = case.get("refused") {
        return compare(String::new(), Vec::new(), recorded(refused));
    }
    for (position, object) in case["objects"].as_array().unwrap().iter().enumerate() {
        let object_name = format!("o{position}");
        let (new, unknown) = admitted(&node, &object["new"], &object_name);
        if let Some(error) = malformed(&node, &new) {
            let got = format!("BadRequest Thing in version \"v1\" cannot be handled as a Thing: {error}");
            compare(format!("[{position}] malformed"), vec![got], recorded(&object["errors"]));
            continue;
        }
        let old = object.get("old").map(|old| admitted(&node, old, &object_name).0);
        let errors = match (&old, object["sub"] == true) {
            (Some(old), true) => validate_status(&node, &new, old),
            (old, _) => validate(&node, &new, old.as_ref()),
        };
        compare(format!("[{position}] errors"), answers(&errors), recorded(&object["errors"]));
        let want: Vec<String> = object["unknown"]
            .as_array()
            .map(|paths| paths.iter().map(|path| path.as_str().unwrap().to_owned()).collect())
            .unwrap_or_default();
        if old.is_none() && object.get("errors").is_none() {
            compare(format!("[{position}] unknown"), unknown, want);
        }
        if let Some(result) = object.get("result").filter(|_| object["sub"] != true) {
            let mut new = new;
            for field in ["apiVersion", "kind", "metadata"] {
                new.as_object_mut().unwrap().remove(field);
            }
            if !same_json(&new, result) {
                compare(format!("[{position}] result"), vec![new.to_string()], vec![result.to_string()]);
            }
        }
    }
}

#[test]
fn answers_as_kube_apiserver_does() {
    let cases: Value = serde_json::from_str(RECORDED).unwrap();
    let mut differences = Vec::new();
    for case in cases.as_array().unwrap() {
        check(case, &mut differences);
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}
