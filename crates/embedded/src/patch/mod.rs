//! JSON patch, merge patch and strategic merge patch, as pure functions on JSON values. Server-side apply is not a patch of
//! this kind: it lives in `apply`. Which patches a kind takes is decided by the caller.

mod json;
mod merge;
mod strategic;
#[cfg(test)]
mod tests;

pub use json::json;
pub use merge::merge;
pub use strategic::strategic;

use serde_json::Value;

use crate::apply::{MAX_DEPTH, deeper_than};

/// Why a patch was refused, in the words and with the codes of kube-apiserver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no patch.
    #[error("{0}")]
    Malformed(String),
    /// It does not apply to this object. Kubernetes keeps the cause to itself; it is the error's source here, for the log.
    #[error("the server rejected our request due to an error in our request")]
    Inapplicable(#[source] Inapplicable),
    #[error("Request entity too large: {0}")]
    TooLarge(String),
    /// A strategic merge patch that contradicts the schema of its object. Kubernetes answers 500 here too.
    #[error("{0}")]
    Unmergeable(String),
}

/// What of a patch does not apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Inapplicable(pub String);

impl Error {
    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Error::Malformed(_) => 400,
            Error::Inapplicable(_) => 422,
            Error::TooLarge(_) => 413,
            Error::Unmergeable(_) => 500,
        }
    }

    /// A status's `reason`, empty where Kubernetes gives none.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Malformed(_) => "BadRequest",
            Error::Inapplicable(_) => "Invalid",
            Error::TooLarge(_) => "RequestEntityTooLarge",
            Error::Unmergeable(_) => "",
        }
    }

    fn inapplicable(cause: impl Into<String>) -> Self {
        Error::Inapplicable(Inapplicable(cause.into()))
    }

    fn too_deep() -> Self {
        Error::inapplicable(format!("the patched object would be nested more than {MAX_DEPTH} levels deep"))
    }
}

fn check_depth(value: &Value) -> Result<(), Error> {
    if deeper_than(value, MAX_DEPTH) { Err(Error::too_deep()) } else { Ok(()) }
}
