//! What attempts of runs left: logs, followed while they grow, and plans.

use std::sync::Arc;
use std::time::Duration;

use api::TerraformRun;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use datastore::client::Relay;
use datastore::{Artefact, Attempt};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use reqwest::Method;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::answers::Asked;
use crate::may::{GetLog, GetPlan, May};
use crate::person::Person;
use crate::{Refusal, Service};

/// How often a follower looks whether the attempt has ended: a runner that died leaves no result that would say so.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long an unreachable datastore is left alone before it is asked again.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a follower looks whether a run has started.
const STARTED: Duration = Duration::from_millis(200);

type Shared = State<Arc<Service>>;

/// Which attempt.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Without one, the newest.
    attempt: Option<u32>,
}

/// Which part of a log.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// Without one, the newest attempt.
    pub(crate) attempt: Option<u32>,
    /// From this byte on.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Go on while the attempt does, and wait for the first one of a run that has not started.
    #[serde(default)]
    pub(crate) follow: bool,
}

/// The log of an attempt, as text
#[utoipa::path(
    get, operation_id = "getLog", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}/log",
    params(("namespace" = String, Path), ("name" = String, Path), Part),
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(crate) async fn log(
    may: May<GetLog>,
    State(service): Shared,
    Asked(part): Asked<Part>,
) -> Result<Response, Refusal> {
    log_text(service, may, &part).await
}

/// The same, of a run that was found in another way.
pub(crate) async fn log_text(
    service: Arc<Service>,
    may: May<GetLog>,
    part: &Part,
) -> Result<Response, Refusal> {
    let mut reading = Reading::begin(service, may, part).await?;
    // Once an answer has begun, there is no other way to say that nothing can be read than to break it off.
    reading.open().await?;
    // An error in mid-stream ends the connection without its last chunk, which the reader notices.
    let stream = futures::stream::try_unfold(reading, Reading::next).map_err(std::io::Error::other);
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// The plan that a run made, as the tool prints it
#[utoipa::path(
    get, operation_id = "getPlanText", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}/plan",
    params(("namespace" = String, Path), ("name" = String, Path), Which),
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(crate) async fn plan_text(
    may: May<GetPlan>,
    service: Shared,
    Asked(which): Asked<Which>,
) -> Result<Response, Refusal> {
    plan(may, service, which, Artefact::PlanText, "text/plain; charset=utf-8").await
}

/// The plan that a run made, as the tool's JSON with what is sensitive left out
#[utoipa::path(
    get, operation_id = "getPlanJson", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}/plan.json",
    params(("namespace" = String, Path), ("name" = String, Path), Which),
    responses((status = 200, body = Object, content_type = "application/json")),
)]
pub(crate) async fn plan_json(
    may: May<GetPlan>,
    service: Shared,
    Asked(which): Asked<Which>,
) -> Result<Response, Refusal> {
    plan(may, service, which, Artefact::PlanJson, "application/json").await
}

async fn plan(
    may: May<GetPlan>,
    State(service): Shared,
    which: Which,
    artefact: Artefact,
    content_type: &'static str,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = &may;
    let attempt = service.attempt(namespace, name, which.attempt).await?;
    let path = format!("/v1/runs/{attempt}/{}", artefact.name());
    let answer = service.fetch(person, path).await?;
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

    pub(crate) async fn run(&self, namespace: &str, name: &str) -> Result<TerraformRun, Refusal> {
        Api::<TerraformRun>::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(|error| Refusal::api("read a run", &error))?
            .ok_or_else(|| Refusal::NotFound(format!("run {namespace}/{name} not found")))
    }

    async fn attempt(&self, namespace: &str, name: &str, wanted: Option<u32>) -> Result<Attempt, Refusal> {
        let run = self.run(namespace, name).await?;
        attempt_of(&run, wanted)?.ok_or_else(|| {
            Refusal::NotFound(match wanted {
                Some(number) => format!("run {namespace}/{name} has no attempt {number}"),
                None => format!("run {namespace}/{name} has not started yet"),
            })
        })
    }

    /// What a follower of a run that had not started finds now. A run that cannot be read may start yet.
    async fn begun(&self, namespace: &str, name: &str) -> Result<Begun, Refusal> {
        match self.run(namespace, name).await {
            Ok(run) => Ok(match attempt_of(&run, None)? {
                Some(attempt) => Begun::As(attempt),
                None if is_over(&run) => Begun::Never,
                None => Begun::NotYet,
            }),
            Err(Refusal::NotFound(_)) => Ok(Begun::Never),
            Err(_) => Ok(Begun::NotYet),
        }
    }

    /// Whether nothing more will come of an attempt. A run that is gone has ended; one that cannot be read may go on.
    async fn has_ended(&self, namespace: &str, name: &str, attempt: &Attempt) -> bool {
        match self.run(namespace, name).await {
            Ok(run) if run.metadata.uid.as_deref() != Some(attempt.run_uid()) => true,
            Ok(run) => {
                is_over(&run)
                    || attempts(&run)
                        .iter()
                        .any(|known| known.number == attempt.number() && known.finished_at.is_some())
            }
            Err(Refusal::NotFound(_)) => true,
            Err(_) => false,
        }
    }
}

fn attempts(run: &TerraformRun) -> &[api::run::Attempt] {
    run.status.as_ref().map_or(&[], |status| status.attempts.as_slice())
}

fn is_over(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|status| status.state).is_some_and(api::run::RunState::is_terminal)
}

/// That attempt of the run, or its newest.
fn attempt_of(run: &TerraformRun, wanted: Option<u32>) -> Result<Option<Attempt>, Refusal> {
    let known = attempts(run);
    let found = match wanted {
        Some(number) => known.iter().find(|attempt| attempt.number == number),
        None => known.last(),
    };
    let Some(found) = found else { return Ok(None) };
    Attempt::new(run.metadata.uid.clone().unwrap_or_default(), found.number)
        .map(Some)
        .map_err(|error| Refusal::Unavailable(error.to_string()))
}

/// How far a run is whose log somebody waits for.
enum Begun {
    As(Attempt),
    NotYet,
    /// It is over, and no attempt was made.
    Never,
}

/// One log on its way to a reader: from the datastore, taken up again where it broke off.
pub(crate) struct Reading {
    service: Arc<Service>,
    person: Person,
    namespace: String,
    name: String,
    /// Nothing while the run has not started.
    attempt: Option<Attempt>,
    offset: u64,
    open: Option<BoxStream<'static, reqwest::Result<Bytes>>>,
    /// The end of what is stored now is the end of it all.
    last: bool,
}

impl Reading {
    pub(crate) async fn begin(service: Arc<Service>, may: May<GetLog>, part: &Part) -> Result<Self, Refusal> {
        if i64::try_from(part.offset).is_err() {
            return Err(Refusal::BadRequest(
                "offset must be a byte of the log: 0 or more, below 2^63".to_owned(),
            ));
        }
        let May { person, namespace, name, .. } = may;
        // Who follows a run from its creation waits for its first attempt; a browser would not come back after a 404.
        let attempt = match (part.follow, part.attempt) {
            (true, None) => attempt_of(&service.run(&namespace, &name).await?, None)?,
            (true | false, wanted) => Some(service.attempt(&namespace, &name, wanted).await?),
        };
        let (offset, last) = (part.offset, !part.follow);
        Ok(Self { service, person, namespace, name, attempt, offset, open: None, last })
    }

    /// Asks for what comes next, where there is an attempt and it was not asked for yet.
    async fn open(&mut self) -> Result<(), Refusal> {
        let Some(attempt) = self.attempt.as_ref().filter(|_| self.open.is_none()) else { return Ok(()) };
        let path = format!("/v1/runs/{attempt}/log?offset={}&follow={}", self.offset, !self.last);
        let answer = self.service.fetch(&self.person, path).await?;
        if !answer.status().is_success() {
            return Err(Refusal::Unavailable(format!("the datastore answered {}", answer.status())));
        }
        self.open = Some(answer.bytes_stream().boxed());
        Ok(())
    }

    pub(crate) async fn next(mut self) -> Result<Option<(Bytes, Self)>, Refusal> {
        loop {
            let Some(attempt) = &self.attempt else {
                match self.service.begun(&self.namespace, &self.name).await? {
                    Begun::As(attempt) => self.attempt = Some(attempt),
                    Begun::NotYet => tokio::time::sleep(STARTED).await,
                    Begun::Never => return Ok(None),
                }
                continue;
            };
            let Some(stream) = self.open.as_mut() else {
                self.open().await?;
                continue;
            };
            let piece = tokio::select! {
                piece = stream.next() => piece,
                () = tokio::time::sleep(LOOK_AGAIN), if !self.last => {
                    if self.service.has_ended(&self.namespace, &self.name, attempt).await {
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
}
