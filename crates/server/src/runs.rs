//! What attempts of runs left: logs, followed while they grow, and plans.

use std::sync::Arc;
use std::time::Duration;

use api::TerraformRun;
use api::service::subresource;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use datastore::client::Relay;
use datastore::{Artefact, Attempt};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use reqwest::Method;
use serde::Deserialize;

use crate::person::{Person, Right};
use crate::{Refusal, Service};

/// How often a follower looks whether the attempt has ended: a runner that died leaves no result that would say so.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long an unreachable datastore is left alone before it is asked again.
const PAUSE: Duration = Duration::from_millis(500);

type Shared = State<Arc<Service>>;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Which {
    /// Without one, the newest.
    attempt: Option<u32>,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    follow: bool,
}

fn right<'a>(namespace: &'a str, name: &'a str, subresource: &'a str) -> Right<'a> {
    Right { verb: "get", resource: "terraformruns", subresource: Some(subresource), namespace, name }
}

pub(crate) async fn log(
    State(service): Shared,
    Path((namespace, name)): Path<(String, String)>,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right(&namespace, &name, subresource::LOG)).await?;
    let attempt = service.attempt(&namespace, &name, which.attempt).await?;
    let reading = Reading {
        service,
        person,
        namespace,
        name,
        attempt,
        offset: which.offset,
        open: None,
        last: !which.follow,
    };
    // An error in mid-stream ends the connection without its last chunk, which the reader notices.
    let stream = futures::stream::try_unfold(reading, Reading::next).map_err(std::io::Error::other);
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

pub(crate) async fn plan_text(
    service: Shared,
    path: Path<(String, String)>,
    which: Query<Which>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    plan(service, path, which, headers, Artefact::PlanText, "text/plain; charset=utf-8").await
}

pub(crate) async fn plan_json(
    service: Shared,
    path: Path<(String, String)>,
    which: Query<Which>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    plan(service, path, which, headers, Artefact::PlanJson, "application/json").await
}

async fn plan(
    State(service): Shared,
    Path((namespace, name)): Path<(String, String)>,
    Query(which): Query<Which>,
    headers: HeaderMap,
    artefact: Artefact,
    content_type: &'static str,
) -> Result<Response, Refusal> {
    let person = service.admit(&headers, right(&namespace, &name, subresource::PLAN)).await?;
    let attempt = service.attempt(&namespace, &name, which.attempt).await?;
    let path = format!("/v1/runs/{attempt}/{}", artefact.name());
    let answer = service.fetch(&person, path).await?;
    match answer.status() {
        StatusCode::OK => {
            let headers = [(header::CONTENT_TYPE, content_type)];
            Ok((headers, Body::from_stream(answer.bytes_stream())).into_response())
        }
        StatusCode::NOT_FOUND => Err(Refusal::NotFound(format!(
            "run {namespace}/{name} left no {}; only a plan that succeeded has one",
            artefact.name()
        ))),
        other => Err(Refusal::Unavailable(format!("the datastore answered {other}"))),
    }
}

impl Service {
    /// A request to the datastore in a person's name.
    pub(crate) async fn fetch(&self, person: &Person, path: String) -> Result<reqwest::Response, Refusal> {
        let relay = Relay { method: Method::GET, path, user: &person.name, sha256: None, body: None };
        self.datastore.relay(relay).await.map_err(|error| Refusal::datastore(&error))
    }

    async fn run(&self, namespace: &str, name: &str) -> Result<TerraformRun, Refusal> {
        Api::<TerraformRun>::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(|error| Refusal::api("read a run", &error))?
            .ok_or_else(|| Refusal::NotFound(format!("run {namespace}/{name} not found")))
    }

    async fn attempt(&self, namespace: &str, name: &str, wanted: Option<u32>) -> Result<Attempt, Refusal> {
        let run = self.run(namespace, name).await?;
        let attempts = run.status.map(|status| status.attempts).unwrap_or_default();
        let found = match wanted {
            Some(number) => attempts.iter().find(|attempt| attempt.number == number),
            None => attempts.last(),
        };
        let number = found.map(|attempt| attempt.number).ok_or_else(|| {
            Refusal::NotFound(match wanted {
                Some(number) => format!("run {namespace}/{name} has no attempt {number}"),
                None => format!("run {namespace}/{name} has not started yet"),
            })
        })?;
        Attempt::new(run.metadata.uid.unwrap_or_default(), number)
            .map_err(|error| Refusal::Unavailable(error.to_string()))
    }

    /// Whether nothing more will come of an attempt. A run that is gone has ended; one that cannot be read may go on.
    async fn has_ended(&self, namespace: &str, name: &str, attempt: &Attempt) -> bool {
        match self.run(namespace, name).await {
            Ok(run) if run.metadata.uid.as_deref() != Some(attempt.run_uid()) => true,
            Ok(run) => run.status.is_some_and(|status| {
                status.state.is_some_and(api::run::RunState::is_terminal)
                    || status
                        .attempts
                        .iter()
                        .any(|known| known.number == attempt.number() && known.finished_at.is_some())
            }),
            Err(Refusal::NotFound(_)) => true,
            Err(_) => false,
        }
    }
}

/// One log on its way to a reader: from the datastore, taken up again where it broke off.
struct Reading {
    service: Arc<Service>,
    person: Person,
    namespace: String,
    name: String,
    attempt: Attempt,
    offset: u64,
    open: Option<BoxStream<'static, reqwest::Result<Bytes>>>,
    /// The end of what is stored now is the end of it all.
    last: bool,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Refusal> {
        loop {
            let Some(stream) = self.open.as_mut() else {
                self.connect().await?;
                continue;
            };
            let piece = tokio::select! {
                piece = stream.next() => piece,
                () = tokio::time::sleep(LOOK_AGAIN), if !self.last => {
                    if self.service.has_ended(&self.namespace, &self.name, &self.attempt).await {
                        self.last = true;
                        self.open = None;
                    }
                    continue;
                }
            };
            match piece {
                Some(Ok(bytes)) => {
                    self.offset = self.offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
                    return Ok(Some((bytes, self)));
                }
                // The attempt's result is there: the log is whole.
                None => return Ok(None),
                Some(Err(error)) if self.last => return Err(Refusal::Unavailable(error.to_string())),
                Some(Err(_)) => {
                    self.open = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Refusal> {
        let follow = !self.last;
        let path = format!("/v1/runs/{}/log?offset={}&follow={follow}", self.attempt, self.offset);
        let answer = self.service.fetch(&self.person, path).await?;
        if !answer.status().is_success() {
            return Err(Refusal::Unavailable(format!("the datastore answered {}", answer.status())));
        }
        self.open = Some(answer.bytes_stream().boxed());
        Ok(())
    }
}
