//! What tests of other modules read repositories and registries by.

use api::template::Declared;
use api::text::{CommitId, ImageDigest, Sha256};
use engine::image;
use engine::repository::Heads;
use futures::future::BoxFuture;
use sources::{Interest, Module};

use super::{Branch, Followed, ImageAt, Place, Reader};

/// Answers nothing by itself.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Reader for Nobody {
    fn heads<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        Box::pin(std::future::pending())
    }

    fn relevant<'a>(
        &'a self,
        _: &'a Branch,
        _: &'a CommitId,
        _: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>> {
        Box::pin(std::future::pending())
    }

    fn declared<'a>(
        &'a self,
        _: &'a Place,
        _: &'a CommitId,
        _: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
        Box::pin(std::future::pending())
    }

    fn bundle<'a>(&'a self, _: &'a Place, _: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(std::future::pending())
    }

    fn image<'a>(&'a self, _: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>> {
        Box::pin(std::future::pending())
    }

    fn image_bundle<'a>(
        &'a self,
        _: &'a ImageAt,
        _: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(std::future::pending())
    }
}
