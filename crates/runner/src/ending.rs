//! How an attempt ends, and which failure leads to which reason.

use api::attempt::{PlanOutcome, Reason};
use api::image::PinnedImage;
use api::text::Sha256;
use datastore::client;
use tofu::Report;

use crate::hooks::Outputs;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) exit_code: i32,
    pub(crate) plan: Option<Box<PlanOutcome>>,
    /// The script that was planned, or run to its end.
    pub(crate) script: Option<Sha256>,
    /// The image that was built.
    pub(crate) image: Option<Box<PinnedImage>>,
    pub(crate) hook_outputs: Outputs,
    pub(crate) logged: Logged,
}

/// Whether the log has the message of an ending already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logged {
    Yes,
    NotYet,
}

impl Ending {
    pub(crate) fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            exit_code: 1,
            plan: None,
            script: None,
            image: None,
            hook_outputs: Outputs::new(),
            logged: Logged::NotYet,
        }
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::failed(Reason::BadInput, message)
    }
}

/// A step that cannot go on ends the attempt.
pub(crate) type Step<T> = Result<T, Ending>;

pub(crate) fn how(ended: &tofu::process::Ended) -> String {
    match (ended.code, ended.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

pub(crate) fn complaint(report: &Report) -> String {
    report.complaints.first().map_or_else(|| how(&report.ended), tofu::diagnostics::Diagnostic::message)
}

pub(crate) fn disk(error: std::io::Error) -> Ending {
    Ending::failed(Reason::ToolFailed, format!("the runner's own disk failed: {error}"))
}

pub(crate) fn process_failed(error: tofu::Error) -> Ending {
    Ending::failed(Reason::ToolFailed, error.to_string())
}

/// What could not be fetched is bad input, unless it was only out of reach.
pub(crate) fn fetch_failed(error: client::Error) -> Ending {
    if error.is_transient() {
        Ending::failed(Reason::ToolFailed, error.to_string())
    } else {
        Ending::bad_input(error.to_string())
    }
}

pub(crate) fn store_failed(error: &client::Error) -> Ending {
    let reason = if error.is_full() { Reason::DatastoreFull } else { Reason::ToolFailed };
    Ending::failed(reason, format!("the plan could not be stored: {error}"))
}
