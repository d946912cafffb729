//! Joins the API and the node: `kubectl logs` reads what the node keeps.

use std::path::{Path, PathBuf};

use axum::body::Body;
use embedded::http::pod_log::{Error, LogAnswer, LogOptions, PodLogs};
use serde_json::Value;

pub(super) struct NodeLogs {
    state: PathBuf,
}

impl NodeLogs {
    pub(super) fn new(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }
}

impl PodLogs for NodeLogs {
    fn log(&self, pod: &Value, options: LogOptions) -> LogAnswer {
        let text =
            |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (uid, name, state) = (text("/metadata/uid"), text("/metadata/name"), self.state.clone());
        let pod = pod.clone();
        let wanted = node::logs::Options {
            which: if options.previous { node::logs::Which::Previous } else { node::logs::Which::Current },
            until: if options.follow { node::logs::Until::ContainerEnds } else { node::logs::Until::Now },
            prefix: if options.timestamps {
                node::logs::Prefix::Timestamp
            } else {
                node::logs::Prefix::Nothing
            },
            tail: options.tail_lines,
            since: options.since,
            limit_bytes: options.limit_bytes,
        };
        let which = wanted.which;
        Box::pin(async move {
            match node::logs::open(&state, &uid, &options.container, wanted).await {
                Ok(stream) => Ok(Body::from_stream(stream)),
                Err(node::logs::Error::NotStarted { .. } | node::logs::Error::NoPrevious { .. }) => {
                    Err(Error::NotThere(node::logs::absence(&pod, &options.container, which)))
                }
                Err(error) => Err(Error::Unreachable { pod: name, why: error.to_string() }),
            }
        })
    }
}
