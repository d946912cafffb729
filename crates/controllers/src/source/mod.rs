//! Where code comes from: repositories and registries, what is asked of them, and the desk that asks. What git and registries do themselves
//! is in `sources`.

mod desk;
mod news;
mod question;
mod remote;
#[cfg(test)]
pub(crate) mod tests;
mod turns;

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::TerraformRepository;
use api::image::{ImageCredentials, ImagePlace, Wanted};
use api::template::Declared;
use api::text::{CommitId, GitUrl, ImageDigest, RefName, Sha256};
use engine::image;
use engine::repository::Heads;
use futures::future::BoxFuture;
use kube::ResourceExt;
use sources::{Interest, Module};

pub use desk::Desk;
pub use news::Waiting;

/// A repository, by what git needs to read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub url: GitUrl,
    /// The Secret that the repository names.
    pub secret: Option<String>,
    /// The key of it that holds an SSH private key, where the repository says so.
    pub ssh_key: Option<String>,
}

impl Place {
    pub(crate) fn of(repository: &TerraformRepository) -> Self {
        let login = repository.spec.repository.credentials.as_ref();
        Self {
            uid: repository.uid().unwrap_or_default(),
            name: repository.name_any(),
            namespace: repository.namespace().unwrap_or_default(),
            url: repository.spec.repository.url.clone(),
            secret: login.map(|login| login.secret_name.to_string()),
            ssh_key: login.and_then(|login| login.ssh_key.as_ref()).map(ToString::to_string),
        }
    }
}

/// A branch of a repository, as its layers name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Branch {
    pub place: Place,
    pub name: RefName,
}

/// Images of one name, by what is needed to read them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageAt {
    pub namespace: String,
    pub place: ImagePlace,
    /// What the layer names to log in.
    pub credentials: Option<ImageCredentials>,
}

/// Which image a layer follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Followed {
    pub layer: String,
    pub at: ImageAt,
    pub wanted: Wanted,
}

/// Where a desk gets its answers. Why a question has none is said in words for the status.
pub trait Reader: Send + Sync + std::fmt::Debug {
    fn heads<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Heads, String>>;
    fn relevant<'a>(
        &'a self,
        branch: &'a Branch,
        head: &'a CommitId,
        interest: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>>;
    /// Whether a branch that was at `before` lost nothing on its way to `head`; one without history loses none.
    fn goes_on<'a>(
        &'a self,
        _place: &'a Place,
        _before: &'a CommitId,
        _head: &'a CommitId,
    ) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async { Ok(true) })
    }
    /// Puts the files of a commit into the datastore.
    fn bundle<'a>(&'a self, place: &'a Place, commit: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>>;
    fn declared<'a>(
        &'a self,
        place: &'a Place,
        commit: &'a CommitId,
        module: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>>;
    /// The image that a layer follows, as it is now.
    fn image<'a>(&'a self, followed: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>>;
    /// Puts the layers of an image into the datastore.
    fn image_bundle<'a>(
        &'a self,
        at: &'a ImageAt,
        digest: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>>;
}

/// A panic while the lock was held leaves at worst a finding to be asked for again.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
