//! `/sync` and `/finalize` for metacontroller, which keeps Terraforms where the administrator wants that: it tells of one and is answered
//! what is to be there for it. It cannot say who it is, so this has a port of its own that only metacontroller is to reach. Whoever else
//! does learns what would be made of an object that it has to bring along, and changes nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::{Terraform, TerraformLayer, TerraformRepository};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use controllers::{Class, Terraforms, Told, composite};
use engine::Settings;
use futures::StreamExt;
use jiff::Timestamp;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use server::Refusal;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::listening::serve_for_ever;

/// The largest request: a Terraform and its two objects, each as large as an API takes them, and the CompositeController.
const LARGEST: usize = 8 * 1024 * 1024;
/// How long a request may take to arrive, and to be answered. Metacontroller waits for 10 seconds unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(8);
/// Requests that are read and answered at the same time. Metacontroller has 5 on their way unless it is told otherwise.
const AT_ONCE: usize = 8;

/// What metacontroller sends. What else is in it (the CompositeController, related objects) decides nothing.
#[derive(Debug, Deserialize)]
struct Asked {
    parent: Value,
    #[serde(default)]
    children: BTreeMap<String, BTreeMap<String, Value>>,
    #[serde(default)]
    finalizing: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    status: api::terraform::TerraformStatus,
    children: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resync_after_seconds: Option<f64>,
    finalized: bool,
}

#[derive(Clone)]
struct Service {
    client: Client,
    settings: Arc<Settings>,
    turns: Arc<Semaphore>,
    patience: Duration,
}

fn router(client: Client, settings: Arc<Settings>, patience: Duration) -> Router {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    Router::new()
        .route("/sync", post(sync))
        .route("/finalize", post(finalize))
        .method_not_allowed_fallback(async || {
            Refusal::MethodNotAllowed("metacontroller sends a POST here".to_owned())
        })
        .fallback(async || Refusal::NotFound("there is /sync and /finalize, for metacontroller".to_owned()))
        .with_state(Service { client, settings, turns, patience })
}

/// One flag decides both: whoever answers metacontroller keeps no Terraforms itself.
pub(crate) const fn keeper_of_terraforms(listen: Option<SocketAddr>) -> Terraforms {
    match listen {
        Some(_) => Terraforms::LeftToMetacontroller,
        None => Terraforms::Kept,
    }
}

/// The port, where one is asked for. It is in clear: metacontroller can be told of no certificate, and nothing secret is sent.
pub(crate) async fn listen(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    Ok(Some(embedded::serve::bind(address, "--metacontroller-listen").await?))
}

/// Answers for as long as the process works, and for ever waits where nobody is to be answered.
pub(crate) async fn serve(
    listener: Option<TcpListener>,
    client: Client,
    settings: Arc<Settings>,
) -> anyhow::Result<()> {
    let Some(listener) = listener else { return std::future::pending().await };
    let address = listener.local_addr().context("find the address for metacontroller")?;
    tracing::info!(%address, "answering metacontroller; Terraforms are left to it");
    let service = router(client, settings, PATIENCE);
    serve_for_ever(listener, service, "the HTTP service for metacontroller").await
}

async fn sync(State(service): State<Service>, request: Request) -> Result<Response, Refusal> {
    service.answer(request, Hook::Sync).await
}

async fn finalize(State(service): State<Service>, request: Request) -> Result<Response, Refusal> {
    service.answer(request, Hook::Finalize).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Sync,
    Finalize,
}

impl Service {
    async fn answer(&self, request: Request, hook: Hook) -> Result<Response, Refusal> {
        let answering = async {
            let _turn = self.turns.acquire().await;
            let told = told(request, hook).await?;
            let answer = composite(&self.client, &self.settings, told, Timestamp::now()).await;
            answer.map_err(|error| match error.class() {
                Class::Conflict => Refusal::Conflict(format!("{error}; it is asked again")),
                Class::Transient | Class::Invalid | Class::Bug => Refusal::Unavailable(error.to_string()),
            })
        };
        let patient = tokio::time::timeout(self.patience, answering).await;
        let answer = patient.map_err(|_| {
            Refusal::TooSlow(format!(
                "the request was not read and answered within {:?}; it is made again",
                self.patience
            ))
        })??;
        let answered = Answered {
            status: answer.status,
            children: answer.children,
            resync_after_seconds: answer.resync.map(|pause| pause.as_secs_f64()),
            finalized: answer.finalized,
        };
        Ok(Json(answered).into_response())
    }
}

async fn told(request: Request, hook: Hook) -> Result<Told, Refusal> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes()).unwrap_or_default();
    if !kind.starts_with(b"application/json") {
        return Err(Refusal::WrongType(
            "the body must be JSON, with the header content-type: application/json".to_owned(),
        ));
    }
    let body = whole(body).await?;
    let asked: Asked = serde_json::from_slice(&body).map_err(|error| {
        Refusal::BadRequest(format!(
            "the body is not what metacontroller sends for a CompositeController: {error}"
        ))
    })?;
    let terraform = parent(asked.parent)?;
    let is_going = terraform.metadata.deletion_timestamp.is_some();
    if (hook == Hook::Finalize || asked.finalizing) && !is_going {
        return Err(Refusal::Invalid(format!(
            "Terraform {} is to be finalized, and has no deletionTimestamp",
            terraform.metadata.name.as_deref().unwrap_or_default()
        )));
    }
    let name = terraform.metadata.name.clone().unwrap_or_default();
    let mut children = asked.children;
    Ok(Told {
        repository: child::<TerraformRepository>(&mut children, &name)?,
        layer: child::<TerraformLayer>(&mut children, &name)?,
        terraform,
    })
}

/// Never more than the limit is held.
async fn whole(body: Body) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Refusal::BadRequest(format!("the body broke off: {error}")))?;
        if bytes.len() + chunk.len() > LARGEST {
            return Err(Refusal::TooLarge(format!("the body is larger than {LARGEST} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn parent(told: Value) -> Result<Terraform, Refusal> {
    let of = |field: &str| told.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = (of("apiVersion"), of("kind"));
    let (version, kind) = (Terraform::api_version(&()), Terraform::kind(&()));
    if found != (version.to_string(), kind.to_string()) {
        return Err(Refusal::Invalid(format!(
            "the parent is a {:?} of {:?}; a CompositeController that asks here has parents of kind {kind} of {version}",
            found.1, found.0
        )));
    }
    let terraform: Terraform = read(told, "the parent")?;
    let metadata = &terraform.metadata;
    let known = [&metadata.name, &metadata.namespace, &metadata.uid];
    if known.iter().any(|text| text.as_deref().is_none_or(str::is_empty)) {
        return Err(Refusal::Invalid("the parent has no name, namespace or uid".to_owned()));
    }
    Ok(terraform)
}

fn child<K>(
    children: &mut BTreeMap<String, BTreeMap<String, Value>>,
    name: &str,
) -> Result<Option<K>, Refusal>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let kind = format!("{}.{}", K::kind(&()), K::api_version(&()));
    let told = children.get_mut(&kind).and_then(|of_kind| of_kind.remove(name));
    told.map(|told| read(told, &format!("its {kind} {name}"))).transpose()
}

fn read<K: DeserializeOwned>(told: Value, what: &str) -> Result<K, Refusal> {
    serde_json::from_value(told).map_err(|error| Refusal::Invalid(format!("{what} cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use bytes::Bytes;
    use engine::manifests::{RunnerSecrets, RunnerSettings};
    use futures::stream;
    use http::StatusCode;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    /// An API that has nothing.
    fn empty() -> Client {
        let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 });
            let answer = http::Response::builder().status(404).header("content-type", "application/json");
            Ok::<_, std::convert::Infallible>(answer.body(body.to_string()).unwrap())
        });
        Client::new(service, "default")
    }

    fn settings() -> Arc<Settings> {
        Arc::new(Settings::new(RunnerSettings {
            image: "terrane.dev/local".to_owned(),
            service_account: "default".to_owned(),
            datastore_url: "http://127.0.0.1:1".to_owned(),
            path: None,
            environment: Vec::new(),
            secrets: RunnerSecrets::default(),
        }))
    }

    async fn ask(path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = http::Request::post(path).header("content-type", "application/json");
        let answer =
            router(empty(), settings(), PATIENCE).oneshot(request.body(body.into()).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK {
            assert_eq!(parts.headers["content-type"], "application/problem+json");
        }
        (parts.status, serde_json::from_slice(&whole(body).await.unwrap()).unwrap())
    }

    fn asked(parent: &Value, finalizing: bool) -> String {
        let children = json!({ "TerraformLayer.terrane.dev/v1alpha1": {}, "TerraformRepository.terrane.dev/v1alpha1": {} });
        json!({ "controller": {}, "parent": parent, "children": children, "related": null, "finalizing": finalizing })
            .to_string()
    }

    fn parent() -> Value {
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": { "name": "db", "namespace": "default", "uid": "1", "generation": 1 },
            "spec": { "gitRepo": { "url": "https://github.com/team/infra", "branch": "main" } },
        })
    }

    #[tokio::test]
    async fn what_is_to_be_there_is_answered_and_nothing_is_left_of_what_never_was() {
        let (status, answer) = ask("/sync", asked(&parent(), false)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["children"][0]["kind"], "TerraformRepository");
        assert_eq!(answer["children"][0]["metadata"]["labels"]["controller-uid"], "1");
        assert_eq!(answer["status"]["state"], "Pending");
        assert_eq!(answer["finalized"], false);
        let mut going = parent();
        going["metadata"]["deletionTimestamp"] = json!("2026-11-18T14:00:00Z");
        for path in ["/finalize", "/sync"] {
            let (status, answer) = ask(path, asked(&going, true)).await;
            assert_eq!((status, &answer["finalized"]), (StatusCode::OK, &json!(true)), "{answer}");
            assert_eq!(answer["children"], json!([]));
        }
    }

    #[tokio::test]
    async fn what_metacontroller_would_not_send_is_refused_in_words() {
        let changed = |pointer: &str, value: Value| {
            let mut parent = parent();
            *parent.pointer_mut(pointer).unwrap() = value;
            asked(&parent, false)
        };
        let cases = [
            ("/sync", "{".to_owned(), 400, "not what metacontroller sends"),
            ("/sync", "[]".to_owned(), 400, "not what metacontroller sends"),
            ("/sync", "{}".to_owned(), 400, "missing field `parent`"),
            (
                "/sync",
                changed("/kind", json!("Pod")),
                422,
                "has parents of kind Terraform of alustan.io/v1alpha1",
            ),
            ("/sync", changed("/apiVersion", json!("v1")), 422, "the parent is a \"Terraform\" of \"v1\""),
            ("/sync", changed("/spec/gitRepo/url", json!("ftp://x")), 422, "the parent cannot be read"),
            ("/sync", changed("/metadata/uid", json!("")), 422, "no name, namespace or uid"),
            ("/sync", asked(&parent(), true), 422, "is to be finalized, and has no deletionTimestamp"),
            ("/finalize", asked(&parent(), false), 422, "is to be finalized, and has no deletionTimestamp"),
            ("/sync", " ".repeat(LARGEST + 1), 413, "larger than"),
            ("/else", asked(&parent(), false), 404, "there is /sync and /finalize"),
        ];
        for (path, body, code, words) in cases {
            let (status, problem) = ask(path, body).await;
            assert_eq!(status, code, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(words), "{words}: {problem}");
        }
        let wrong = [
            (http::Request::post("/sync"), 415, "must be JSON"),
            (http::Request::get("/sync"), 405, "sends a POST here"),
        ];
        for (request, code, words) in wrong {
            let answer = router(empty(), settings(), PATIENCE)
                .oneshot(request.body(Body::empty()).unwrap())
                .await
                .unwrap();
            assert_eq!(answer.status(), code);
            let problem = String::from_utf8(whole(answer.into_body()).await.unwrap()).unwrap();
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_arrive_is_given_up() {
        let first = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let request = http::Request::post("/sync").header("content-type", "application/json");
        let request = request.body(body).unwrap();
        let answer = router(empty(), settings(), Duration::from_millis(20)).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
