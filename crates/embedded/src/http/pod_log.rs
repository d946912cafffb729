//! Logs of pods: the options and whose fault a bad one is. The bytes come from whoever runs the pod.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;

use super::Api;
use super::serve::Call;
use super::status::{Result, Status};
use super::view;
use crate::kinds::{Cause, meta};

/// What of a container's log is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    /// The log of the instance before the current one.
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub since: Option<Timestamp>,
}

/// Why there is no log. The words reach the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The container has not started yet, or has no earlier instance.
    #[error("{0}")]
    NotThere(String),
    #[error("the logs of {pod} cannot be reached: {why}")]
    Unreachable { pod: String, why: String },
}

/// The answer of a log source.
pub type LogAnswer = Pin<Box<dyn Future<Output = std::result::Result<Body, Error>> + Send>>;

/// Where logs come from: the node that runs the pod.
pub trait PodLogs: Send + Sync {
    /// The log of one container of `pod`, as bytes of text; with `follow`, until the container has ended or nobody listens.
    fn log(&self, pod: &Value, options: LogOptions) -> LogAnswer;
}

pub(super) async fn serve(api: &Arc<Api>, call: &Call) -> Result<Response> {
    let Some(stored) = call.snapshot.get(&call.key()) else {
        return Err(Status::not_found(&call.kind, &call.path.name));
    };
    let pod = view::value(&call.kind, &stored);
    let options = options(call, &pod)?;
    let body = if pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().is_empty() {
        // No node has it yet, so there is nothing to read.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    } else {
        let Some(logs) = &api.options.logs else {
            return Err(Status::internal(format!(
                "no node of this API keeps the logs of pod {:?}",
                call.path.name
            )));
        };
        logs.log(&pod, options).await.map_err(|error| match error {
            Error::NotThere(why) => Status::bad_request(why),
            Error::Unreachable { .. } => Status::internal(error),
        })?
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

fn options(call: &Call, pod: &Value) -> Result<LogOptions> {
    let params = &call.params;
    let mut causes = Vec::new();
    let tail = params.integer("tailLines")?;
    if let Some(lines) = tail.filter(|lines| *lines < 0) {
        causes.push(Cause::invalid("tailLines", &lines.into(), "must be greater than or equal to 0"));
    }
    let limit = params.integer("limitBytes")?;
    if let Some(bytes) = limit.filter(|bytes| *bytes < 1) {
        causes.push(Cause::invalid("limitBytes", &bytes.into(), "must be greater than 0"));
    }
    let seconds = params.integer("sinceSeconds")?;
    let time = params.text("sinceTime");
    let time = match time {
        "" => None,
        text => Some(text.parse::<Timestamp>().map_err(|_| {
            Status::bad_request(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
            ))
        })?),
    };
    match (seconds, time) {
        (Some(_), Some(_)) => causes
            .push(Cause::forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified")),
        (Some(seconds), None) if seconds < 1 => {
            causes.push(Cause::invalid("sinceSeconds", &seconds.into(), "must be greater than 0"))
        }
        _ => {}
    }
    if !causes.is_empty() {
        return Err(Status::invalid_named("", "PodLogOptions", &call.path.name, causes));
    }
    let ago = |seconds: i64| Timestamp::now().checked_sub(jiff::SignedDuration::from_secs(seconds)).ok();
    Ok(LogOptions {
        container: container(pod, params.text("container"))?,
        follow: params.flag("follow"),
        previous: params.flag("previous"),
        timestamps: params.flag("timestamps"),
        tail_lines: tail.and_then(|n| u64::try_from(n).ok()),
        limit_bytes: limit.and_then(|n| u64::try_from(n).ok()),
        since: time.or_else(|| seconds.and_then(ago)),
    })
}

/// The container whose log is meant: the only one, or the one that is named and exists.
fn container(pod: &Value, asked: &str) -> Result<String> {
    let names = |pointer: &str| -> Vec<&str> {
        let list = pod.pointer(pointer).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|c| c.get("name")?.as_str()).collect()
    };
    let (containers, init) = (names("/spec/containers"), names("/spec/initContainers"));
    let name = meta::name(pod);
    if asked.is_empty() {
        return match containers.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
            many => {
                let mut message = format!(
                    "a container name must be specified for pod {name}, choose one of: [{}]",
                    many.join(" ")
                );
                if !init.is_empty() {
                    message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                Err(Status::bad_request(message))
            }
        };
    }
    if containers.contains(&asked) || init.contains(&asked) {
        return Ok(asked.to_owned());
    }
    Err(Status::bad_request(format!("container {asked} is not valid for pod {name}")))
}
