//! GET of one object.

use axum::response::Response;
use http::StatusCode;

use crate::http::respond;
use crate::http::serve::Call;
use crate::http::status::{Result, Status};
use crate::http::view::Shown;

pub fn serve(call: &Call) -> Result<Response> {
    let asked = call.params.text("resourceVersion");
    if let Some(asked) = asked.parse::<u64>().ok().filter(|asked| *asked > call.snapshot.revision()) {
        return Err(Status::revision_too_large(asked, call.snapshot.revision()));
    }
    match call.snapshot.get(&call.key()) {
        Some(object) => respond::object(call, StatusCode::OK, &Shown::Stored(object)),
        None => Err(Status::not_found(&call.kind, &call.path.name)),
    }
}
