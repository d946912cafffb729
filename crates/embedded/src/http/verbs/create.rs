//! POST of a new object.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;

use crate::http::request::WriteOptions;
use crate::http::serve::Call;
use crate::http::status::Result;
use crate::http::{Api, decode, negotiate, respond, write};
use crate::kinds::strategy;

pub async fn serve(api: &Api, call: Call, body: Body) -> Result<Response> {
    let format = negotiate::body_format(&call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let options = WriteOptions::parse("CreateOptions", &call.params, &call.headers, Vec::new())?;
    let mut incoming = write::read(&call, &bytes, format, options.validation)?;
    write::set_namespace(&call, &mut incoming.object)?;
    incoming.warnings.extend(strategy::warnings(&call.kind, &incoming.object));
    let shown = write::create(api, &call, incoming.object, &options)
        .await
        .map_err(|status| status.warning(&incoming.warnings))?;
    Ok(respond::warn(respond::object(&call, StatusCode::CREATED, &shown)?, &incoming.warnings))
}
