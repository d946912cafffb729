//! PATCH: JSON patch, merge patch, strategic merge patch and server-side apply.

use axum::body::Body;
use axum::response::Response;
use serde_json::Value;

use super::update::check_name;
use crate::apply::{self, OnConflict};
use crate::http::decode::{self, Decoded};
use crate::http::negotiate::{self, BodyFormat, PatchKind};
use crate::http::request::{FieldValidation, Tracking, WriteOptions};
use crate::http::serve::Call;
use crate::http::status::{Result, Status};
use crate::http::write::{self, IfMissing, Update};
use crate::http::{Api, respond};
use crate::kinds::strategy::Part;
use crate::kinds::{Cause, meta};
use crate::patch;

pub async fn serve(api: &Api, call: Call, part: Part, body: Body) -> Result<Response> {
    let how = negotiate::patch_kind(&call.kind, &call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let mut causes = Vec::new();
    if how == PatchKind::Apply && call.params.text("fieldManager").is_empty() {
        causes.push(Cause::required("fieldManager", "is required for apply patch"));
    }
    if how != PatchKind::Apply && call.params.get("force").is_some() {
        causes.push(Cause::forbidden("force", "may not be specified for non-apply patch"));
    }
    let mut options = WriteOptions::parse("PatchOptions", &call.params, &call.headers, causes)?;
    if how == PatchKind::Apply {
        options.tracking = Tracking::Applied;
        return server_side(api, &call, part, &options, &bytes).await;
    }
    let patch = read_patch(how, &bytes)?;
    let mut warnings = Vec::new();
    let update = Update { api, call: &call, part, options: &options, if_missing: IfMissing::Refuse };
    let outcome = update.run(|old| {
        let old = old.cloned().unwrap_or_default();
        let patched = patched(&call, how, old, &patch.value)?;
        let (object, remarks) = typed(&call, patched, &patch.duplicates, options.validation)?;
        check_name(&call, &object)?;
        warnings = remarks;
        Ok(object)
    });
    let outcome = outcome.await;
    let (code, shown) = outcome.map_err(|status| status.warning(&warnings))?;
    Ok(respond::warn(respond::object(&call, code, &shown)?, &warnings))
}

fn read_patch(how: PatchKind, bytes: &[u8]) -> Result<Decoded> {
    decode::decode(bytes, BodyFormat::Json, "").map_err(|why| match how {
        PatchKind::Strategic => Status::bad_request(format!("error decoding patch: {why}")),
        PatchKind::Json | PatchKind::Merge | PatchKind::Apply => {
            Status::bad_request(format!("error decoding patch: {why}"))
        }
    })
}

fn patched(call: &Call, how: PatchKind, old: Value, patch: &Value) -> Result<Value> {
    let outcome = match how {
        PatchKind::Json => patch::json(old, patch),
        PatchKind::Merge => patch::merge(old, patch),
        PatchKind::Strategic | PatchKind::Apply => {
            let schema = write::writer(call, Part::Main, "", write::now()).schema;
            patch::strategic(old, patch, &schema)
        }
    };
    outcome.map_err(|error| Status::patch_refused(&error))
}

/// The patched object as its type sees it. What does not fit is told about the patch, not about the object.
fn typed(
    call: &Call,
    patched: Value,
    duplicates: &[String],
    validation: FieldValidation,
) -> Result<(Value, Vec<String>)> {
    let shown = patched.to_string();
    let refused = |why: &str| {
        let why = why
            .split_once(": ")
            .filter(|(head, _)| head.contains("cannot be handled as a"))
            .map_or(why, |(_, rest)| rest);
        Status::invalid_named("", "", "", vec![Cause::invalid("patch", &shown.as_str().into(), why)])
    };
    let decoded = Decoded { value: patched, duplicates: duplicates.to_vec() };
    let incoming = write::check(call, decoded, validation).map_err(|status| match status.reason() {
        "BadRequest" => refused(status.message()),
        _ => status,
    })?;
    Ok((incoming.object, incoming.warnings))
}

async fn server_side(
    api: &Api,
    call: &Call,
    part: Part,
    options: &WriteOptions,
    bytes: &[u8],
) -> Result<Response> {
    let decoded = decode::decode(bytes, BodyFormat::Yaml, "")
        .map_err(|why| Status::bad_request(format!("error decoding YAML: {why}")))?;
    let mut warnings = Vec::new();
    match options.validation {
        FieldValidation::Strict if !decoded.duplicates.is_empty() => {
            return Err(Status::bad_request(format!(
                "error strict decoding YAML: {}",
                decoded.duplicates.join(", ")
            )));
        }
        FieldValidation::Strict | FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings.extend(decoded.duplicates),
    }
    let mut config = decoded.value;
    if !config.is_object() {
        return Err(Status::bad_request("error decoding YAML: the patch is not an object"));
    }
    complete(call, &mut config)?;
    let on_conflict = if call.params.flag("force") { OnConflict::TakeOver } else { OnConflict::Refuse };
    let if_missing = if part == Part::Main { IfMissing::Create } else { IfMissing::Refuse };
    let update = Update { api, call, part, options, if_missing };
    let outcome = update.run(|live| {
        let writer = write::writer(call, part, &options.manager, write::now());
        let merged = apply::apply(live, &config, &writer, on_conflict)
            .map_err(|error| Status::apply_refused(&error))?;
        let decoded = Decoded { value: merged, duplicates: Vec::new() };
        let mut incoming = write::check(call, decoded, options.validation)?;
        check_name(call, &incoming.object)?;
        write::set_namespace(call, &mut incoming.object)?;
        Ok(incoming.object)
    });
    let (code, shown) = outcome.await?;
    Ok(respond::warn(respond::object(call, code, &shown)?, &warnings))
}

/// The name of an applied object follows the path.
fn complete(call: &Call, config: &mut Value) -> Result<()> {
    if let Some(metadata) = meta::of_mut(config)
        && meta::text(metadata, "name").is_empty()
    {
        metadata.insert("name".to_owned(), call.path.name.as_str().into());
    }
    check_name(call, config)
}
