//! Fetching from vendors, mirrors and registries, with limits; a file is compared with the checksum that it must have.

use std::path::Path;
use std::time::Duration;

use api::text::Sha256;
use futures::TryStreamExt;
use sha2::Digest;
use tokio::io::AsyncWriteExt;

use super::Error;
use super::release::shown;

const ARCHIVE_LIMIT: u64 = 512 * 1024 * 1024;

/// Told how many bytes have arrived, and of how many if the server said so.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, Option<u64>) + Send);

/// What is spoken to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Schemes {
    /// What arrives is believed by a signature or a checksum alone, so that it may travel in clear.
    ClearToo,
    /// Who answers matters: never in clear, also where a server points elsewhere.
    HttpsAlone,
}

#[derive(Debug, Clone)]
pub(super) struct Http(reqwest::Client);

impl Http {
    pub(super) fn new(schemes: Schemes, authority: Option<&Path>) -> Result<Self, Error> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(20))
            .read_timeout(Duration::from_secs(60))
            .redirect(reqwest::redirect::Policy::limited(5))
            .user_agent(concat!("terrane/", env!("CARGO_PKG_VERSION")));
        match schemes {
            Schemes::ClearToo => {}
            Schemes::HttpsAlone => builder = builder.https_only(true),
        }
        if let Some(path) = authority {
            let pem = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
            let bad = |detail: String| Error::Authority { path: path.to_owned(), detail };
            let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| bad(chain(&error)))?;
            if found.is_empty() {
                return Err(bad("it holds no certificate in PEM".to_owned()));
            }
            builder = builder.tls_certs_merge(found);
        }
        builder.build().map(Self).map_err(|error| Error::Client(chain(&error)))
    }

    /// Fetches into a new file and compares the checksum.
    pub(super) async fn fetch_file(
        &self,
        url: &str,
        expected: &Sha256,
        to: &Path,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let io = |source| Error::Io { path: to.to_owned(), source };
        let response = self.get(url).await?;
        let announced = response.content_length();
        let mut file = tokio::fs::File::create_new(to).await.map_err(io)?;
        let mut stream = response.bytes_stream();
        let mut hasher = sha2::Sha256::new();
        let mut size = 0u64;
        while let Some(piece) = stream.try_next().await.map_err(|error| broken(url, error))? {
            size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if size > ARCHIVE_LIMIT {
                return Err(Error::TooLarge { url: shown(url), limit: ARCHIVE_LIMIT });
            }
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(io)?;
            progress(size, announced);
        }
        file.flush().await.map_err(io)?;
        let found = hex::encode(hasher.finalize());
        if found != expected.as_str() {
            return Err(Error::Checksum { url: shown(url), expected: expected.clone(), found });
        }
        Ok(())
    }

    pub(super) async fn fetch_small(&self, url: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut stream = self.get(url).await?.bytes_stream();
        let mut content = Vec::new();
        while let Some(piece) = stream.try_next().await.map_err(|error| broken(url, error))? {
            content.extend_from_slice(&piece);
            if u64::try_from(content.len()).unwrap_or(u64::MAX) > limit {
                return Err(Error::TooLarge { url: shown(url), limit });
            }
        }
        Ok(content)
    }

    async fn get(&self, url: &str) -> Result<reqwest::Response, Error> {
        let response = self.0.get(url).send().await.map_err(|error| broken(url, error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            reqwest::StatusCode::NOT_FOUND => Err(Error::NotThere { url: shown(url) }),
            status => Err(Error::Answer { url: shown(url), status: status.as_u16() }),
        }
    }
}

fn broken(url: &str, error: reqwest::Error) -> Error {
    // The library repeats the URL, password and all.
    Error::Broken { url: shown(url), detail: chain(&error.without_url()) }
}

/// An error with its causes, which the library leaves to whoever prints it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
