//! Binding of a pod to a node.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use crate::http::request::{Mode, WriteOptions};
use crate::http::serve::Call;
use crate::http::status::{Result, Status};
use crate::http::write::{self, store_error};
use crate::http::{Api, decode, negotiate, respond};
use crate::kinds::{Cause, meta};
use crate::store::{Collection, Key, Op, WriteError};

const ATTEMPTS: usize = 32;

/// `POST pods/NAME/binding`, and `POST bindings`, where the name is in the object.
pub async fn serve(api: &Api, call: Call, body: Body) -> Result<Response> {
    let format = negotiate::body_format(&call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let options = WriteOptions::parse("CreateOptions", &call.params, &call.headers, Vec::new())?;
    let Some(kind) = call.kinds.find("", "v1", "bindings") else { return Err(Status::unknown_resource()) };
    let name_in_path = call.path.name.clone();
    let call = Call { kind: std::sync::Arc::clone(kind), ..call };
    let mut incoming = write::read(&call, &bytes, format, options.validation)?;
    write::set_namespace(&call, &mut incoming.object)?;
    let binding = incoming.object;
    let pod = meta::name(&binding);
    if !name_in_path.is_empty() && pod != name_in_path {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let node = check(&binding)?;
    assign(api, &call, &binding, pod, node, options.mode).await?;
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(respond::warn(respond::plain(&call, StatusCode::CREATED, &status)?, &incoming.warnings))
}

fn check(binding: &Value) -> Result<&str> {
    let text = |pointer: &str| binding.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let mut causes = Vec::new();
    if !["", "Node"].contains(&text("/target/kind")) {
        causes.push(Cause::not_supported("target.kind", &text("/target/kind").into(), &["Node", "<empty>"]));
    }
    if text("/target/name").is_empty() {
        causes.push(Cause::required("target.name", ""));
    }
    let said: Vec<String> = causes.iter().map(ToString::to_string).collect();
    match said.as_slice() {
        [] => Ok(text("/target/name")),
        [one] => Err(Status::bare(one.as_str())),
        many => Err(Status::bare(format!("[{}]", many.join(", ")))),
    }
}

async fn assign(api: &Api, call: &Call, binding: &Value, pod: &str, node: &str, mode: Mode) -> Result<()> {
    let key = Key::new(Collection::new("", "pods"), call.namespace().unwrap_or_default(), pod);
    for _ in 0..ATTEMPTS {
        let Some(stored) = api.store.snapshot().get(&key) else {
            return Err(Status::not_found_named("", "pods", pod));
        };
        let old = stored.value();
        let refuse = |why: String| Status::conflict_named("", "pods/binding", pod, &why);
        for (field, found) in
            [("uid", meta::uid(&old).to_owned()), ("resourceVersion", stored.revision.to_string())]
        {
            let wanted = meta::text(meta::of(binding), field);
            if !wanted.is_empty() && wanted != found {
                let shown = if field == "uid" { "UID" } else { "ResourceVersion" };
                let why = format!(
                    "Precondition failed: {shown} in precondition: {wanted}, {shown} in object meta: {found}"
                );
                return Err(Status::conflict_named("", "pods", pod, &why));
            }
        }
        if meta::is_deleting(&old) {
            return Err(refuse(format!("pod {pod} is being deleted, cannot be assigned to a host")));
        }
        let assigned = old.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        if !assigned.is_empty() {
            return Err(refuse(format!("pod {pod} is already assigned to node {assigned:?}")));
        }
        if old
            .pointer("/spec/schedulingGates")
            .and_then(Value::as_array)
            .is_some_and(|gates| !gates.is_empty())
        {
            return Err(refuse(format!("pod {pod} has non-empty .spec.schedulingGates")));
        }
        let object = bound(old, binding, node);
        if mode == Mode::DryRun {
            return Ok(());
        }
        match api.store.write(vec![Op::Update { key: key.clone(), expected: stored.revision, object }]).await
        {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict { .. } | WriteError::Missing { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(Status::conflict_named("", "pods/binding", pod, "the pod changes too often, please try again"))
}

fn bound(mut pod: Value, binding: &Value, node: &str) -> Value {
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("nodeName".to_owned(), node.into());
    }
    let added = |field: &str| meta::of(binding).get(field).and_then(Value::as_object).cloned();
    for field in ["annotations", "labels"] {
        let (Some(added), Some(metadata)) = (added(field), meta::of_mut(&mut pod)) else { continue };
        if let Some(present) = metadata.entry(field).or_insert_with(|| json!({})).as_object_mut() {
            present.extend(added);
        }
    }
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": write::now().to_string(),
    });
    if let Some(fields) = pod.as_object_mut() {
        let status = fields.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut()
            && let Some(list) = status.entry("conditions").or_insert_with(|| json!([])).as_array_mut()
        {
            list.retain(|c| c.get("type").and_then(Value::as_str) != Some("PodScheduled"));
            list.push(condition);
        }
    }
    pod
}
