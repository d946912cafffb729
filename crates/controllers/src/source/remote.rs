//! The remotes themselves: repositories by the `git` command, registries by their own protocol. Nothing is kept of what they say but what
//! saves git work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use api::template::Declared;
use api::text::{CommitId, ImageDigest, RefName, Sha256};
use engine::image;
use engine::repository::Heads;
use futures::future::BoxFuture;
use sources::oci::Images;
use sources::{Bundle, Git, Interest, Module, Relevance, Source};

use super::{Branch, Followed, ImageAt, Place, Reader, locked};
use crate::credentials;

/// Branches of which is kept what matters to their layers.
const BRANCHES: usize = 1_000;
/// Commits and images of which is kept what their bundle is called.
const BUNDLES: usize = 10_000;

pub(super) struct Remote {
    client: kube::Client,
    git: Git,
    images: Images,
    datastore: datastore::Client,
    /// What is known of each branch that layers follow.
    relevance: Mutex<HashMap<Branch, Arc<Relevance>>>,
    /// A bundle is called by its content, so its name is known only once it was made. Whoever knows the name asks the datastore for it, and
    /// need not make it again.
    made: Mutex<HashMap<Files, Sha256>>,
}

/// What a bundle is made of. Who may not read it from there does not learn what it is called.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Files {
    Commit(Place, CommitId),
    Image(ImageAt, ImageDigest),
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("git", &self.git).finish_non_exhaustive()
    }
}

impl Remote {
    pub(super) fn new(client: kube::Client, git: Git, images: Images, datastore: datastore::Client) -> Self {
        Self { client, git, images, datastore, relevance: Mutex::default(), made: Mutex::default() }
    }

    fn relevance(&self, branch: &Branch) -> Arc<Relevance> {
        let mut all = locked(&self.relevance);
        if all.len() >= BRANCHES && !all.contains_key(branch) {
            // Rare: everything is found again when it is asked for again.
            all.clear();
        }
        Arc::clone(all.entry(branch.clone()).or_default())
    }

    /// The name of a bundle that was made before and is there.
    async fn kept(&self, files: &Files) -> Result<Option<Sha256>, String> {
        let Some(sha256) = locked(&self.made).get(files).cloned() else { return Ok(None) };
        let is_there = self.datastore.bundle_keep(&sha256).await.map_err(|e| e.to_string())?;
        Ok(is_there.then_some(sha256))
    }

    /// Stores what was made, unless it is there: by an earlier process, or for another commit with the same files.
    async fn keep(&self, files: Files, bundle: &Bundle) -> Result<Sha256, String> {
        let sha256 = bundle.sha256().clone();
        if !self.datastore.bundle_keep(&sha256).await.map_err(|e| e.to_string())? {
            self.datastore.bundle_put(&sha256, bundle.path()).await.map_err(|e| e.to_string())?;
        }
        let mut made = locked(&self.made);
        if made.len() >= BUNDLES {
            // Rare: each is made once more, and not stored again.
            made.clear();
        }
        made.insert(files, sha256.clone());
        Ok(sha256)
    }

    async fn source(&self, place: &Place) -> Result<Source, String> {
        let credentials = credentials::read(&self.client, place).await?;
        Ok(Source { url: place.url.clone(), tenant: place.namespace.clone(), credentials })
    }
}

impl Reader for Remote {
    fn heads<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let refs = self.git.resolve(&source).await.map_err(|e| e.to_string())?;
            Ok(heads(&refs))
        })
    }

    fn relevant<'a>(
        &'a self,
        branch: &'a Branch,
        head: &'a CommitId,
        interest: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>> {
        Box::pin(async move {
            let relevance = self.relevance(branch);
            // A commit that touches few layers leaves the others with what is known, without a word to git.
            if let Some(commit) = relevance.known(head, interest).await {
                return Ok(commit);
            }
            let source = self.source(&branch.place).await?;
            let mirror = self.git.mirror(&source, head).await.map_err(|e| e.to_string())?;
            self.git.relevant(&mirror, head, interest, &relevance).await.map_err(|e| e.to_string())
        })
    }

    fn goes_on<'a>(
        &'a self,
        place: &'a Place,
        before: &'a CommitId,
        head: &'a CommitId,
    ) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let mirror = self.git.mirror(&source, head).await.map_err(|e| e.to_string())?;
            self.git.goes_on(&mirror, before, head).await.map_err(|e| e.to_string())
        })
    }

    fn bundle<'a>(&'a self, place: &'a Place, commit: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let files = Files::Commit(place.clone(), commit.clone());
            if let Some(sha256) = self.kept(&files).await? {
                return Ok(sha256);
            }
            let source = self.source(place).await?;
            let mirror = self.git.mirror(&source, commit).await.map_err(|e| e.to_string())?;
            let bundle = self.git.bundle(&mirror, commit).await.map_err(|e| e.to_string())?;
            self.keep(files, &bundle).await
        })
    }

    fn declared<'a>(
        &'a self,
        place: &'a Place,
        commit: &'a CommitId,
        module: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
        Box::pin(async move {
            let source = self.source(place).await?;
            let mirror = self.git.mirror(&source, commit).await.map_err(|e| e.to_string())?;
            let found = self.git.declared(&mirror, commit, module).await.map_err(|e| e.to_string())?;
            found.ok_or_else(|| {
                format!(
                    "{} is a unit of Terragrunt, whose variables cannot be read from outside; name the module itself",
                    module.path
                )
            })
        })
    }

    fn image<'a>(&'a self, followed: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>> {
        Box::pin(async move {
            let Followed { at, wanted, .. } = followed;
            let logins = credentials::read_logins(&self.client, at).await?;
            let found = self.images.resolve(&at.place, wanted, &logins).await.map_err(|e| e.to_string())?;
            Ok(image::Found { tag: found.tag, digest: found.digest })
        })
    }

    fn image_bundle<'a>(
        &'a self,
        at: &'a ImageAt,
        digest: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let files = Files::Image(at.clone(), digest.clone());
            if let Some(sha256) = self.kept(&files).await? {
                return Ok(sha256);
            }
            let logins = credentials::read_logins(&self.client, at).await?;
            let bundle = self.images.bundle(&at.place, digest, &logins).await.map_err(|e| e.to_string())?;
            self.keep(files, &bundle).await
        })
    }
}

/// A default branch with a name that no layer could follow is none.
fn heads(refs: &sources::Refs) -> Heads {
    let default_branch = refs.default_branch.as_ref().and_then(|name| RefName::new(name.as_str()).ok());
    let branches = refs.branches.iter().map(|(name, commit)| (format!("refs/heads/{name}"), commit.clone()));
    let tags = refs.tags.iter().map(|(name, commit)| (format!("refs/tags/{name}"), commit.clone()));
    Heads { default_branch, refs: branches.chain(tags).collect() }
}
