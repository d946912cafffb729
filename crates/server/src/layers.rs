//! What belongs to a layer rather than to a run: its outputs, its state with all versions, and who holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::TerraformLayer;
use api::service::subresource;
use api::text::Sha256;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use datastore::client::Relay;
use futures::StreamExt;
use kube::Api;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::person::Right;
use crate::{Refusal, Service};

/// A state larger than this is not searched for outputs.
const STATE_LIMIT: usize = 256 * 1024 * 1024;
/// What stands for a value that is not shown.
const MASK: &str = "(sensitive value)";

type Shared = State<Arc<Service>>;
pub(crate) type Named = Path<(String, String)>;

pub(crate) fn right<'a>(
    verb: &'a str,
    subresource: Option<&'a str>,
    namespace: &'a str,
    name: &'a str,
) -> Right<'a> {
    Right { verb, resource: "terraformlayers", subresource, namespace, name }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Wish {
    /// Show sensitive values too; needs the right to read the state.
    #[serde(default)]
    sensitive: bool,
}

#[derive(Debug, Deserialize)]
struct Outputs {
    #[serde(default)]
    outputs: BTreeMap<String, Output>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Output {
    value: Value,
    #[serde(default, rename = "type", skip_serializing_if = "Value::is_null")]
    kind: Value,
    #[serde(default)]
    sensitive: bool,
}

pub(crate) async fn outputs(
    State(service): Shared,
    Path((namespace, name)): Named,
    Query(wish): Query<Wish>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right("get", Some(subresource::OUTPUTS), &namespace, &name)).await?;
    if wish.sensitive {
        service.check(&person, right("get", Some(subresource::STATE), &namespace, &name)).await?;
    }
    let id = service.state_id(&namespace, &name).await?;
    let answer = service.fetch(&person, format!("/v1/state/{id}")).await?;
    let found = match answer.status() {
        StatusCode::OK => read_outputs(answer).await?,
        StatusCode::NO_CONTENT => BTreeMap::new(),
        other => return Err(Refusal::Unavailable(format!("the datastore answered {other}"))),
    };
    let shown: BTreeMap<String, Output> = found
        .into_iter()
        .map(|(name, output)| (name, if wish.sensitive { output } else { masked(output) }))
        .collect();
    Ok(axum::Json(shown).into_response())
}

async fn read_outputs(answer: reqwest::Response) -> Result<BTreeMap<String, Output>, Refusal> {
    let broken = |why: String| Refusal::Unavailable(format!("the state could not be read: {why}"));
    let mut content = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(piece) = stream.next().await {
        content.extend_from_slice(&piece.map_err(|error| broken(error.to_string()))?);
        if content.len() > STATE_LIMIT {
            return Err(broken(format!("it is larger than {STATE_LIMIT} bytes")));
        }
    }
    // The parser's own words could quote a value; the place is enough.
    let state: Outputs = serde_json::from_slice(&content)
        .map_err(|error| broken(format!("line {} column {} is no state", error.line(), error.column())))?;
    Ok(state.outputs)
}

fn masked(output: Output) -> Output {
    if output.sensitive { Output { value: Value::String(MASK.to_owned()), ..output } } else { output }
}

pub(crate) async fn state(
    State(service): Shared,
    Path((namespace, name)): Named,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right("get", Some(subresource::STATE), &namespace, &name)).await?;
    let id = service.state_id(&namespace, &name).await?;
    let answer = service.fetch(&person, format!("/v1/state/{id}")).await?;
    if answer.status() == StatusCode::NO_CONTENT {
        return Err(no_state(&namespace, &name));
    }
    Ok(pass(answer))
}

fn no_state(namespace: &str, name: &str) -> Refusal {
    Refusal::NotFound(format!(
        "Terrane keeps no state of layer {namespace}/{name}: nothing was applied yet, or its code names a backend of its own"
    ))
}

pub(crate) async fn state_put(
    State(service): Shared,
    Path((namespace, name)): Named,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Refusal> {
    let person =
        service.admit(&headers, right("update", Some(subresource::STATE), &namespace, &name)).await?;
    let sha256 =
        headers.get(datastore::header::SHA256).and_then(|value| value.to_str().ok()).ok_or_else(|| {
            Refusal::BadRequest(format!(
                "the header {} must hold the sha256 of the state in hex",
                datastore::header::SHA256
            ))
        })?;
    let id = service.state_id(&namespace, &name).await?;
    let relay = Relay {
        method: Method::POST,
        path: format!("/v1/state/{id}?namespace={namespace}"),
        user: &person.name,
        sha256: Some(sha256),
        body: Some(reqwest::Body::wrap_stream(request.into_body().into_data_stream())),
    };
    let answer = service.datastore.relay(relay).await.map_err(|error| Refusal::datastore(&error))?;
    if answer.status() == StatusCode::LOCKED {
        let holder: Value = answer.json().await.unwrap_or_default();
        return Err(Refusal::Conflict(format!("the state of {namespace}/{name} is {}", locked(&holder))));
    }
    Ok(pass(answer))
}

fn locked(holder: &Value) -> String {
    let word = |field: &str| holder.get(field).and_then(Value::as_str).unwrap_or("somebody");
    format!("locked by {} since {}; try again when it is released", word("HeldBy"), word("HeldSince"))
}

pub(crate) async fn versions(
    State(service): Shared,
    Path((namespace, name)): Named,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right("get", None, &namespace, &name)).await?;
    let id = service.state_id(&namespace, &name).await?;
    Ok(pass(service.fetch(&person, format!("/v1/state/{id}/versions")).await?))
}

pub(crate) async fn version(
    State(service): Shared,
    Path((namespace, name, version)): Path<(String, String, u64)>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right("get", Some(subresource::STATE), &namespace, &name)).await?;
    let id = service.state_id(&namespace, &name).await?;
    let answer = service.fetch(&person, format!("/v1/state/{id}/versions/{version}")).await?;
    if answer.status() == StatusCode::NOT_FOUND {
        return Err(Refusal::NotFound(format!(
            "the state of {namespace}/{name} has no version {version}; `terrane state versions {name}` lists them"
        )));
    }
    Ok(pass(answer))
}

pub(crate) async fn lock(
    State(service): Shared,
    Path((namespace, name)): Named,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right("get", None, &namespace, &name)).await?;
    let id = service.state_id(&namespace, &name).await?;
    Ok(pass(service.fetch(&person, format!("/v1/state/{id}/lock")).await?))
}

impl Service {
    /// Under which name the datastore keeps a layer's state.
    pub(crate) async fn state_id(&self, namespace: &str, name: &str) -> Result<Sha256, Refusal> {
        let layer = Api::<TerraformLayer>::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(|error| Refusal::api("read a layer", &error))?
            .ok_or_else(|| Refusal::NotFound(format!("layer {namespace}/{name} not found")))?;
        Ok(engine::layer::state_of(&layer))
    }
}

/// The datastore's answer as it is: its refusals are sentences for people already.
pub(crate) fn pass(answer: reqwest::Response) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    let kept = [
        header::CONTENT_TYPE,
        header::CONTENT_LENGTH,
        HeaderName::from_static(datastore::header::SHA256),
        HeaderName::from_static(datastore::header::STATE_VERSION),
    ];
    for name in kept {
        if let Some(value) = answer.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    *response.body_mut() = Body::from_stream(answer.bytes_stream());
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_sensitive_outputs_are_masked() {
        let output = |sensitive| Output { value: json!("hunter2"), kind: json!("string"), sensitive };
        assert_eq!(masked(output(true)).value, json!("(sensitive value)"));
        assert_eq!(masked(output(false)).value, json!("hunter2"));
    }
}
