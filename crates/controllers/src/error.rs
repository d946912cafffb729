//! What can go wrong in a reconcile, in four classes.

use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Api { doing: &'static str, source: Box<kube::Error> },
    #[error("{doing}: {source}")]
    Datastore { doing: &'static str, source: datastore::client::Error },
    #[error("the run's uid cannot name artefacts: {0}")]
    BadUid(datastore::key::Error),
    #[error("{doing}: no answer within {after:?}")]
    Slow { doing: &'static str, after: Duration },
    #[error("the system gave no randomness: {0}")]
    Randomness(String),
    #[error("the key of digests cannot be used: {0}")]
    BadKey(String),
    #[error("the controllers are already running in this process")]
    DeskTaken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Passes by itself.
    Transient,
    /// Someone else wrote first.
    Conflict,
    /// The API refuses what we ask for; only a change of an object or of our rights helps.
    Invalid,
    /// Ours.
    Bug,
}

impl Class {
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Conflict => "conflict",
            Class::Invalid => "invalid",
            Class::Bug => "bug",
        }
    }

    pub fn pause(self) -> Duration {
        match self {
            Class::Conflict => Duration::from_millis(20),
            Class::Transient => Duration::from_secs(2),
            Class::Invalid => Duration::from_secs(30),
            Class::Bug => Duration::from_secs(60),
        }
    }
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Error::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => match status.code {
                    404 | 409 => Class::Conflict,
                    429 | 500..=599 => Class::Transient,
                    _ => Class::Invalid,
                },
                // The object is there and this version cannot read it.
                kube::Error::SerdeError(_) => Class::Invalid,
                _ => Class::Transient,
            },
            Error::Datastore { .. } | Error::Slow { .. } | Error::Randomness(_) => Class::Transient,
            Error::BadKey(_) => Class::Invalid,
            Error::BadUid(_) | Error::DeskTaken => Class::Bug,
        }
    }
}

/// Whether an API that answers so will have nothing of it as long as nobody changes something. Not a token that is not believed (401),
/// a timeout (408), a conflict (409) or a crowd (429), which pass by themselves; nor a namespace that is gone (404), the object with it.
pub(crate) const fn is_refusal(code: u16) -> bool {
    matches!(code, 400 | 402 | 403 | 405..=407 | 410..=428 | 430..=499)
}

/// Attaches what was being done to a failed request.
pub(crate) fn doing(doing: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Api { doing, source: Box::new(source) }
}

pub(crate) fn storing(doing: &'static str) -> impl FnOnce(datastore::client::Error) -> Error {
    move |source| Error::Datastore { doing, source }
}
