//! PUT: replaces an object, or one part of it.

use axum::body::Body;
use axum::response::Response;
use serde_json::Value;

use crate::http::request::WriteOptions;
use crate::http::serve::Call;
use crate::http::status::{Result, Status};
use crate::http::write::{self, IfMissing, Update};
use crate::http::{Api, decode, negotiate, respond};
use crate::kinds::meta;
use crate::kinds::strategy::{self, Part};

pub async fn serve(api: &Api, call: Call, part: Part, body: Body) -> Result<Response> {
    let format = negotiate::body_format(&call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let options = WriteOptions::parse("UpdateOptions", &call.params, &call.headers, Vec::new())?;
    let mut incoming = write::read(&call, &bytes, format, options.validation)?;
    check_name(&call, &incoming.object)?;
    write::set_namespace(&call, &mut incoming.object)?;
    let if_missing = if part == Part::Main && strategy::creates_on_update(&call.kind) {
        IfMissing::Create
    } else {
        IfMissing::Refuse
    };
    let update = Update { api, call: &call, part, options: &options, if_missing };
    let object = incoming.object;
    let (code, shown) =
        update.run(|_| Ok(object.clone())).await.map_err(|status| status.warning(&incoming.warnings))?;
    Ok(respond::warn(respond::object(&call, code, &shown)?, &incoming.warnings))
}

/// The object must be the one that the path names.
pub fn check_name(call: &Call, object: &Value) -> Result<()> {
    let (name, namespace) = (meta::name(object), meta::namespace(object));
    if name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            call.path.name
        )));
    }
    if name != call.path.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        );
        return Err(Status::bad_request(message));
    }
    match call.namespace() {
        Some(expected) if !namespace.is_empty() && namespace != expected => Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        _ => Ok(()),
    }
}
