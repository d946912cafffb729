//! What is particular to each kind of Git host: how a delivery of its webhooks proves where it comes from, what it says, and how its
//! repositories are written as URLs. Pure: bytes and headers come in, values go out. Nothing here waits, reads a clock or speaks to a host.

pub mod address;
pub mod event;
mod form;
pub mod proof;

use std::fmt;
use std::str::FromStr;

/// The kinds of Git hosts whose webhooks are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Host {
    GitHub,
    GitLab,
    /// Gitea, and Forgejo, which says the same.
    Gitea,
    /// Bitbucket Cloud and Bitbucket Data Center.
    Bitbucket,
    AzureDevOps,
}

impl Host {
    pub const ALL: [Self; 5] = [Self::GitHub, Self::GitLab, Self::Gitea, Self::Bitbucket, Self::AzureDevOps];

    /// As it is written in paths, metrics and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GitHub => "github",
            Self::GitLab => "gitlab",
            Self::Gitea => "gitea",
            Self::Bitbucket => "bitbucket",
            Self::AzureDevOps => "azuredevops",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no such host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kind of Git host is called so; there are github, gitlab, gitea, bitbucket and azuredevops")]
pub struct Unknown;

impl FromStr for Host {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Self::ALL.into_iter().find(|host| host.as_str() == text).ok_or(Unknown)
    }
}
