//! Who is told that something was found, or that it is time to look again.

use api::{Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun};
use futures::channel::mpsc;
use kube::runtime::reflector::ObjectRef;

use crate::feed::Handle;

/// Who is told when a finding is there, or when it is time to look again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiting {
    Repository { namespace: String, name: String },
    Layer { namespace: String, name: String },
    Run { namespace: String, name: String },
    Repo { namespace: String, name: String },
    Terraform { namespace: String, name: String },
    Notification { namespace: String, name: String },
}

impl Waiting {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Repository { .. } => "TerraformRepository",
            Self::Layer { .. } => "TerraformLayer",
            Self::Run { .. } => "TerraformRun",
            Self::Repo { .. } => "Repo",
            Self::Terraform { .. } => "Terraform",
            Self::Notification { .. } => "TerraformNotification",
        }
    }
}

type News<K> = mpsc::UnboundedReceiver<ObjectRef<Handle<K>>>;

/// Who is to look again, by kind.
#[derive(Debug)]
pub(crate) struct AllNews {
    pub(crate) repositories: News<TerraformRepository>,
    pub(crate) layers: News<TerraformLayer>,
    pub(crate) runs: News<TerraformRun>,
    pub(crate) repos: News<Repo>,
    pub(crate) terraforms: News<Terraform>,
    pub(crate) notifications: News<TerraformNotification>,
}
