//! What can go wrong with an image, told so that whoever wrote the layer knows what to do.

use std::time::Duration;

use super::constraint::InvalidConstraint;
use crate::error::Class;
use crate::limits::readable;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Constraint(#[from] InvalidConstraint),
    #[error(
        "{image}: its registry refuses the credentials; check that the Secret is present, not expired, and may pull it"
    )]
    Unauthorised { image: String },
    #[error(
        "{image} needs credentials: name a Secret of type kubernetes.io/dockerconfigjson in spec.image.credentials"
    )]
    NeedsLogin { image: String },
    #[error(
        "{image} was not found; check its name, and that the credentials may pull it (registries answer \"not found\" to strangers)"
    )]
    NotFound { image: String },
    #[error(
        "no tag of {image} satisfies {wanted}: {seen}; push such a version, or change spec.image.semanticVersion"
    )]
    NoVersion { image: String, wanted: String, seen: String },
    #[error("{image} cannot be pushed: {why}")]
    NotPushed { image: String, why: &'static str },
    #[error("{image} has no tag {tag} any more, or never had; push it, or change spec.image.tag")]
    NoTag { image: String, tag: String },
    #[error(
        "{image}: its registry asks to be left alone for a while (429, too many requests); it is asked again later"
    )]
    RateLimited { image: String },
    #[error("{image}: its registry fails with {status}; it is asked again later")]
    Failing { image: String, status: u16 },
    #[error("{image}: what answers there is no registry: {detail}; check the host of the image")]
    NoRegistry { image: String, detail: String },
    #[error("{image} could not be reached: {detail}; it is tried again")]
    Unreachable { image: String, detail: String },
    #[error("{image} took longer than {} s and was given up; it is tried again", limit.as_secs())]
    Timeout { image: String, limit: Duration },
    #[error("{image} is not allowed here: {why}")]
    Forbidden { image: String, why: String },
    #[error(
        "{image} has more than {limit} tags, or its list of tags never ends; follow one tag by spec.image.tag instead"
    )]
    EndlessTags { image: String, limit: usize },
    #[error("{image} has nothing for {platform}: it is made for {found}; build it for {platform} too")]
    NoPlatform { image: String, platform: String, found: String },
    #[error("{image} cannot be used: {why}")]
    Unusable { image: String, why: String },
    #[error("{image} is larger than {}, which is the limit here; make it smaller, or raise --max-bundle-size", readable(*.limit))]
    TooLarge { image: String, limit: u64 },
    #[error("{image}: {what} is not what its digest says; nothing of it is used, it is fetched again")]
    Damaged { image: String, what: String },
    #[error("could not {doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
    #[error("could not prepare the client for registries: {0}")]
    Client(String),
}

impl Error {
    /// Whether waiting can help.
    pub fn class(&self) -> Class {
        match self {
            Self::RateLimited { .. }
            | Self::Failing { .. }
            | Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Damaged { .. } => Class::Transient,
            Self::Constraint(_)
            | Self::Unauthorised { .. }
            | Self::NeedsLogin { .. }
            | Self::NotFound { .. }
            | Self::NoVersion { .. }
            | Self::NoTag { .. }
            | Self::NotPushed { .. }
            | Self::NoRegistry { .. }
            | Self::Forbidden { .. }
            | Self::EndlessTags { .. }
            | Self::NoPlatform { .. }
            | Self::Unusable { .. }
            | Self::TooLarge { .. } => Class::Invalid,
            Self::Io { .. } | Self::Client(_) => Class::Local,
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
