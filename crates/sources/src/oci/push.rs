//! Giving to a registry: blobs that it does not have, and the manifest that makes an image of them.

use std::path::Path;

use api::text::{ImageDigest, ImageTag};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, Url};

use super::error::Error;
use super::registry::Session;

/// What is sent. It can be sent again after a login.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Nothing,
    Bytes(&'a [u8]),
    File { path: &'a Path, size: u64 },
}

impl Content<'_> {
    pub(super) async fn attach(&self, request: RequestBuilder) -> Result<RequestBuilder, Error> {
        Ok(match self {
            Self::Nothing => request,
            Self::Bytes(bytes) => request.body(bytes.to_vec()),
            Self::File { path, size } => {
                let file = tokio::fs::File::open(path).await.map_err(Error::io("read a layer"))?;
                request.header(CONTENT_LENGTH, *size).body(Body::from(file))
            }
        })
    }
}

const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

impl Session<'_> {
    /// What a tag points to, if it is there.
    pub(super) async fn known_digest(&mut self, tag: &ImageTag) -> Result<Option<ImageDigest>, Error> {
        match self.digest_of(tag).await {
            Ok(digest) => Ok(Some(digest)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn has_blob(&mut self, digest: &ImageDigest) -> Result<bool, Error> {
        let url = self.url(&format!("blobs/{digest}"))?;
        match self.ask(Method::HEAD, url, "*/*").await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the registry took a blob from another of its repositories.
    pub(super) async fn mount(&mut self, digest: &ImageDigest, from: &Session<'_>) -> Result<bool, Error> {
        if !self.target.is_beside(&from.target) {
            return Ok(false);
        }
        let mut url = self.url("blobs/uploads/")?;
        url.query_pairs_mut().append_pair("mount", digest.as_str()).append_pair("from", &from.target.path);
        let answer = self.begin(url).await?;
        Ok(answer.status() == StatusCode::CREATED)
    }

    /// Sends a blob that is not there.
    pub(super) async fn put_blob(
        &mut self,
        digest: &ImageDigest,
        content: &Content<'_>,
    ) -> Result<(), Error> {
        if self.has_blob(digest).await? {
            return Ok(());
        }
        let answer = self.begin(self.url("blobs/uploads/")?).await?;
        let mut place = self.upload_place(&answer)?;
        place.query_pairs_mut().append_pair("digest", digest.as_str());
        self.tell(Method::PUT, place, (CONTENT_TYPE, BYTES), content).await.map(drop)
    }

    pub(super) async fn put_manifest(
        &mut self,
        tag: &ImageTag,
        media_type: &'static str,
        manifest: &[u8],
    ) -> Result<(), Error> {
        let url = self.url(&format!("manifests/{tag}"))?;
        let header = (CONTENT_TYPE, HeaderValue::from_static(media_type));
        self.tell(Method::PUT, url, header, &Content::Bytes(manifest)).await.map(drop)
    }

    async fn begin(&mut self, url: Url) -> Result<Response, Error> {
        self.tell(Method::POST, url, (CONTENT_LENGTH, HeaderValue::from_static("0")), &Content::Nothing).await
    }

    /// Where the registry wants a blob. The account is for this registry and no other.
    fn upload_place(&self, answer: &Response) -> Result<Url, Error> {
        let wrong = |detail: &str| Error::NoRegistry { image: self.image.clone(), detail: detail.to_owned() };
        let here = self.url("blobs/uploads/")?;
        let said = answer.headers().get(LOCATION).and_then(|place| place.to_str().ok());
        let said = said.ok_or_else(|| wrong("it does not say where a layer is sent to"))?;
        let place = here.join(said).map_err(|_| wrong("a layer is to be sent to no URL"))?;
        if place.origin() == here.origin() {
            Ok(place)
        } else {
            Err(wrong("a layer is to be sent to another host"))
        }
    }
}
