//! What belongs to a layer rather than to a run: its outputs, its state with all versions, and who holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::service::subresource;
use api::text::Sha256;
use api::{TerraformLayer, TerraformRun};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use datastore::client::Relay;
use datastore::{Artefact, Attempt};
use engine::outputs::Giver;
use futures::StreamExt;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::answers::Asked;
use crate::may::{GetLayer, GetOutputs, GetState, May, UpdateState};
use crate::person::{Person, Right};
use crate::{Refusal, Service};

/// A state larger than this is not searched for outputs.
const STATE_LIMIT: usize = 256 * 1024 * 1024;
/// What stands for a value that is not shown.
const MASK: &str = "(sensitive value)";

type Shared = State<Arc<Service>>;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
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

/// One output of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Output {
    /// `(sensitive value)` where it is sensitive and that was not asked for.
    #[schema(value_type = Value)]
    value: Value,
    #[schema(value_type = Value)]
    #[serde(default, rename = "type", skip_serializing_if = "Value::is_null")]
    kind: Value,
    #[serde(default)]
    sensitive: bool,
}

/// The outputs of a layer; sensitive ones are masked, unless asked for with the right to read the state
#[utoipa::path(
    get, operation_id = "getOutputs", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/outputs",
    params(("namespace" = String, Path), ("name" = String, Path), Wish),
    responses((status = 200, body = BTreeMap<String, Output>)),
)]
pub(crate) async fn outputs(
    may: May<GetOutputs>,
    State(service): Shared,
    Asked(wish): Asked<Wish>,
) -> Result<Response, Refusal> {
    shown_outputs(&service, may, &wish).await
}

/// The same, of a layer that was found in another way.
pub(crate) async fn shown_outputs(
    service: &Service,
    may: May<GetOutputs>,
    wish: &Wish,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    if wish.sensitive {
        let (verb, resource) = ("get", "terraformlayers");
        let subresource = Some(subresource::STATE);
        let right = Right { verb, resource, subresource, namespace: &namespace, name: &name };
        service.check(&person, right).await?;
    }
    let layer = service.layer(&namespace, &name).await?;
    let found = match kept(&layer) {
        Kept::Here(id) => {
            let answer = service.fetch(&person, format!("/v1/state/{id}")).await?;
            match answer.status() {
                StatusCode::OK => read_outputs(answer).await?,
                StatusCode::NO_CONTENT => BTreeMap::new(),
                other => return Err(Refusal::Unavailable(format!("the datastore answered {other}"))),
            }
        }
        Kept::Elsewhere(place) => service.kept_outputs(&person, &layer, &place).await?,
    };
    let shown: BTreeMap<String, Output> = found
        .into_iter()
        .map(|(name, output)| (name, if wish.sensitive { output } else { masked(output) }))
        .collect();
    Ok(axum::Json(shown).into_response())
}

async fn read_outputs(answer: reqwest::Response) -> Result<BTreeMap<String, Output>, Refusal> {
    let state: Outputs = read_json(answer, "the state").await?;
    Ok(state.outputs)
}

async fn read_json<T: DeserializeOwned>(answer: reqwest::Response, what: &str) -> Result<T, Refusal> {
    let broken = |why: String| Refusal::Unavailable(format!("{what} could not be read: {why}"));
    let mut content = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(piece) = stream.next().await {
        content.extend_from_slice(&piece.map_err(|error| broken(error.to_string()))?);
        if content.len() > STATE_LIMIT {
            return Err(broken(format!("it is larger than {STATE_LIMIT} bytes")));
        }
    }
    // The parser's own words could quote a value; the place is enough.
    serde_json::from_slice(&content).map_err(|error| {
        broken(format!("line {} column {} is not as expected", error.line(), error.column()))
    })
}

/// Where a layer's state is.
enum Kept {
    /// In the datastore, under this name.
    Here(Sha256),
    Elsewhere(Place),
}

/// A state that a backend of the layer or of its code keeps.
pub(crate) struct Place {
    layer: String,
    /// The backend in words, without credentials.
    backend: String,
    /// Who changes it holds the lease of this name.
    pub(crate) sha256: Sha256,
}

impl Place {
    /// What happened, and what to do there instead.
    pub(crate) fn says(&self, advice: &str) -> String {
        format!("the state of layer {} is kept by {} and not by Terrane; {advice}", self.layer, self.backend)
    }
}

/// What the newest plan found; before the first one, where Terrane would keep it.
fn kept(layer: &TerraformLayer) -> Kept {
    let known = layer.status.as_ref().and_then(|status| status.state_identity.as_ref());
    match known.filter(|known| !known.is_kept_here()) {
        None => Kept::Here(engine::layer::state_of(layer)),
        Some(away) => Kept::Elsewhere(Place {
            layer: format!("{}/{}", layer.namespace().unwrap_or_default(), layer.name_any()),
            backend: away.backend.clone(),
            sha256: away.sha256.clone(),
        }),
    }
}

fn masked(output: Output) -> Output {
    if output.sensitive { Output { value: Value::String(MASK.to_owned()), ..output } } else { output }
}

/// The newest state, with every secret in it
#[utoipa::path(
    get, operation_id = "getState", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Object, content_type = "application/json")),
)]
pub(crate) async fn state(may: May<GetState>, State(service): Shared) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    let id = service.state_kept_here(&namespace, &name).await?.map_err(|place| {
        Refusal::NotFound(place.says(&format!(
            "read it there, as with `terraform state pull` in a checkout of its code. What Terrane kept of one before is listed by `terrane state versions {name}`"
        )))
    })?;
    let answer = service.fetch(&person, format!("/v1/state/{id}")).await?;
    if answer.status() == StatusCode::NO_CONTENT {
        return Err(Refusal::NotFound(format!(
            "Terrane keeps no state of layer {namespace}/{name}: nothing was applied yet"
        )));
    }
    Ok(as_json(pass(answer).await))
}

/// Replace the state by one that follows it
#[utoipa::path(
    put, operation_id = "putState", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state",
    params(
        ("namespace" = String, Path),
        ("name" = String, Path),
        ("terrane-sha256" = String, Header, description = "The sha256 of the state in hex"),
    ),
    request_body(content = Object, content_type = "application/json"),
    responses((status = 200, description = "It is kept as a new version")),
)]
pub(crate) async fn state_put(
    may: May<UpdateState>,
    State(service): Shared,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    let sha256 =
        headers.get(datastore::header::SHA256).and_then(|value| value.to_str().ok()).ok_or_else(|| {
            Refusal::BadRequest(format!(
                "the header {} must hold the sha256 of the state in hex",
                datastore::header::SHA256
            ))
        })?;
    let id = service.state_kept_here(&namespace, &name).await?.map_err(|place| {
        Refusal::Conflict(
            place.says("push it there, as with `terraform state push` in a checkout of its code"),
        )
    })?;
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
    Ok(pass(answer).await)
}

fn locked(holder: &Value) -> String {
    let word = |field: &str| holder.get(field).and_then(Value::as_str).unwrap_or("somebody");
    format!("locked by {} since {}; try again when it is released", word("HeldBy"), word("HeldSince"))
}

/// The versions of the state
#[utoipa::path(
    get, operation_id = "listStateVersions", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state/versions",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Value, content_type = "application/json")),
)]
pub(crate) async fn versions(may: May<GetLayer>, State(service): Shared) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    let layer = service.layer(&namespace, &name).await?;
    let id = engine::layer::state_of(&layer);
    let answer = service.fetch(&person, format!("/v1/state/{id}/versions")).await?;
    // Of a state that has moved away what was kept before can still be read.
    match kept(&layer) {
        Kept::Elsewhere(place) if answer.status().is_success() => {
            let steps: Vec<Value> = read_json(answer, "the versions").await?;
            if steps.is_empty() {
                return Err(Refusal::NotFound(
                    place.says("what came before, that backend knows, if it keeps it"),
                ));
            }
            Ok(axum::Json(steps).into_response())
        }
        Kept::Elsewhere(_) | Kept::Here(_) => Ok(pass(answer).await),
    }
}

/// One version of the state
#[utoipa::path(
    get, operation_id = "getStateVersion", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state/versions/{version}",
    params(("namespace" = String, Path), ("name" = String, Path), ("version" = u64, Path)),
    responses((status = 200, body = Object, content_type = "application/json")),
)]
pub(crate) async fn version(
    may: May<GetState>,
    State(service): Shared,
    Path((_, _, version)): Path<(String, String, String)>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    // Only a number becomes a part of the datastore's address.
    let version: u64 = version
        .parse()
        .map_err(|_| Refusal::NotFound(format!("versions of states are numbers, and {version} is none")))?;
    let id = engine::layer::state_of(&service.layer(&namespace, &name).await?);
    let answer = service.fetch(&person, format!("/v1/state/{id}/versions/{version}")).await?;
    if answer.status() == StatusCode::NOT_FOUND {
        return Err(Refusal::NotFound(format!(
            "the state of {namespace}/{name} has no version {version}; `terrane state versions {name}` lists them"
        )));
    }
    Ok(as_json(pass(answer).await))
}

/// Who holds the state
#[utoipa::path(
    get, operation_id = "getStateLock", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state/lock",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses(
        (status = 200, body = Value, content_type = "application/json"),
        (status = 204, description = "Nobody holds it"),
    ),
)]
pub(crate) async fn lock(may: May<GetLayer>, State(service): Shared) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    let id = match service.state_kept_here(&namespace, &name).await? {
        Ok(id) => id,
        Err(place) => {
            return Err(Refusal::NotFound(service.held_elsewhere(&namespace, &name, &place).await?));
        }
    };
    Ok(pass(service.fetch(&person, format!("/v1/state/{id}/lock")).await?).await)
}

impl Service {
    /// Under which name the datastore keeps a layer's state; or where that is kept instead.
    pub(crate) async fn state_kept_here(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Result<Sha256, Place>, Refusal> {
        Ok(match kept(&self.layer(namespace, name).await?) {
            Kept::Here(id) => Ok(id),
            Kept::Elsewhere(place) => Err(place),
        })
    }

    /// What the run that made infrastructure and code equal kept of the outputs. O(runs of the namespace).
    async fn kept_outputs(
        &self,
        person: &Person,
        layer: &TerraformLayer,
        place: &Place,
    ) -> Result<BTreeMap<String, Output>, Refusal> {
        let uid = layer.uid().unwrap_or_default();
        let of_layer = ListParams::default().fields(&format!("spec.layer.name={}", layer.name_any()));
        let mut runs =
            Api::<TerraformRun>::namespaced(self.client.clone(), &layer.namespace().unwrap_or_default())
                .list(&of_layer)
                .await
                .map_err(|error| Refusal::api("list runs", &error))?
                .items;
        runs.retain(|run| run.spec.layer.uid == uid);
        let (run, uid, attempt) = match engine::layer::kept_outputs(&runs) {
            Giver::Run { name, uid, attempt } => (name, uid, attempt),
            Giver::Forgetful | Giver::Nobody => {
                return Err(Refusal::NotFound(place.says(
                    "no run was asked to keep the outputs: spec.writeOutputsTo has runs keep them, or read them there, as with `terraform output` in a checkout of its code",
                )));
            }
        };
        let attempt = Attempt::new(uid, attempt).map_err(|error| Refusal::Unavailable(error.to_string()))?;
        let path = format!("/v1/runs/{attempt}/{}", Artefact::Outputs.name());
        let answer = self.fetch(person, path).await?;
        match answer.status() {
            StatusCode::OK => read_json(answer, "what a run kept of the outputs").await,
            StatusCode::NOT_FOUND => Err(Refusal::NotFound(place.says(&format!(
                "run {run} kept no outputs; its log says why, and `terrane sync {}` lets another one try",
                layer.name_any()
            )))),
            other => Err(Refusal::Unavailable(format!("the datastore answered {other}"))),
        }
    }
}

/// A state is JSON, which its datastore does not look at.
fn as_json(mut response: Response) -> Response {
    if response.status().is_success() {
        let json = axum::http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    response
}

/// The datastore's answer as it is; its refusals are sentences for people, and become problems.
pub(crate) async fn pass(answer: reqwest::Response) -> Response {
    let status = answer.status();
    if !status.is_success() {
        let said = answer.json::<datastore::Refusal>().await.map(|refusal| refusal.message);
        let said = said.unwrap_or_else(|_| format!("the datastore answered {status}"));
        let refusal = match status {
            StatusCode::BAD_REQUEST => Refusal::BadRequest(said),
            StatusCode::NOT_FOUND => Refusal::NotFound(said),
            StatusCode::CONFLICT | StatusCode::LOCKED => Refusal::Conflict(said),
            StatusCode::PAYLOAD_TOO_LARGE => Refusal::TooLarge(said),
            StatusCode::UNPROCESSABLE_ENTITY => Refusal::Invalid(said),
            _ => Refusal::Unavailable(said),
        };
        return refusal.into_response();
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
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
