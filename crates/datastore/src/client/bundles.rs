//! The client's side of bundles.

use std::path::Path;

use api::bundle::Bundles;
use api::text::Sha256;
use http::{Method, StatusCode};
use jiff::Timestamp;

use super::{Client, Error, Limited, Request, Upload, escape};

/// More than the names of a million bundles take.
const LIMIT: u64 = 256 * 1024 * 1024;

impl Client {
    pub async fn bundle_exists(&self, sha256: &Sha256) -> Result<bool, Error> {
        let request = Request {
            method: Method::HEAD,
            ..Request::get(format!("/v1/bundles/{sha256}"), "look for a bundle")
        };
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    pub async fn bundle_put(&self, sha256: &Sha256, file: &Path) -> Result<(), Error> {
        self.put(format!("/v1/bundles/{sha256}"), "store a bundle", sha256, Upload::File(file)).await
    }

    /// Writes a bundle to `out`, checked.
    pub async fn bundle_get(&self, sha256: &Sha256, out: &mut tokio::fs::File) -> Result<u64, Error> {
        let doing = "fetch the bundle";
        let (size, _) = self.download(format!("/v1/bundles/{sha256}"), doing, Some(sha256), out).await?;
        Ok(size)
    }

    /// Whether a bundle that is about to be named in a run is known to be there. If so it stays for longer than its name needs (`api::bundle`).
    pub async fn bundle_keep(&self, sha256: &Sha256) -> Result<bool, Error> {
        let doing = "keep a bundle";
        let request =
            Request { method: Method::POST, ..Request::get(format!("/v1/bundles/{sha256}"), doing) };
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            // An earlier version of the service, which deletes none.
            Err(Error::Refused { status: StatusCode::METHOD_NOT_ALLOWED, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Every bundle, and when it was last used.
    pub async fn bundle_list(&self) -> Result<Bundles, Error> {
        let doing = "list the bundles";
        let mut content = Vec::new();
        let mut sink = Limited { inner: &mut content, left: LIMIT };
        self.download("/v1/bundles".to_owned(), doing, None, &mut sink).await?;
        serde_json::from_slice(&content)
            .map_err(|error| Error::Io { doing: doing.to_owned(), source: std::io::Error::other(error) })
    }

    /// Deletes a bundle, unless it was used since then: whether it is gone. Deleting it again is no error.
    pub async fn bundle_delete(&self, sha256: &Sha256, unused_since: Timestamp) -> Result<bool, Error> {
        let since = escape(&unused_since.to_string());
        let path = format!("/v1/bundles/{sha256}?unused_since={since}");
        let request = Request { method: Method::DELETE, ..Request::get(path, "delete a bundle") };
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(Error::Conflict(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }
}
