//! The client's side of the stores of programs and providers that the datastore keeps for runners.

use api::provider;
use api::tool::{Answer, Offer, Request as Wish};
use futures::TryStreamExt;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, Error, Request, Retry, Upload, chain};

/// An answer is a sentence or a name.
const LIMIT: usize = 64 * 1024;

impl Client {
    /// Asks for a program. The answer may take as long as a download does; meanwhile something arrives every few seconds.
    pub async fn tool_ensure(&self, wish: &Wish) -> Result<Answer, Error> {
        self.ensure("/v1/tools", &format!("ask for {}", wish.program), wish).await
    }

    /// Asks for a provider, in the same way.
    pub async fn provider_ensure(&self, wish: &provider::Request) -> Result<provider::Answer, Error> {
        self.ensure("/v1/providers", &format!("ask for {} {}", wish.address, wish.version), wish).await
    }

    async fn ensure<A: DeserializeOwned>(
        &self,
        path: &str,
        doing: &str,
        wish: &impl Serialize,
    ) -> Result<A, Error> {
        let content = serde_json::to_vec(wish)
            .map_err(|error| Error::Io { doing: doing.to_owned(), source: std::io::Error::other(error) })?;
        let request = Request {
            method: Method::POST,
            upload: Upload::Bytes(content.into()),
            ..Request::get(path.to_owned(), doing)
        };
        let mut retry = Retry::new(self.patience);
        loop {
            match self.answer(&request).await {
                Err(error) if error.is_transient() => retry.pause(error).await?,
                other => return other,
            }
        }
    }

    async fn answer<A: DeserializeOwned>(&self, request: &Request<'_>) -> Result<A, Error> {
        let doing = || request.doing.to_owned();
        let mut stream = self.try_send(request).await?.bytes_stream();
        let mut content = Vec::new();
        while let Some(piece) = stream
            .try_next()
            .await
            .map_err(|error| Error::Unreachable { doing: doing(), detail: chain(&error) })?
        {
            content.extend_from_slice(&piece);
            if content.len() > LIMIT {
                return Err(Error::TooLarge { doing: doing(), limit: LIMIT as u64 });
            }
        }
        serde_json::from_slice(&content)
            .map_err(|error| Error::Io { doing: doing(), source: std::io::Error::other(error) })
    }

    /// Writes a program that was offered to `out`, checked.
    pub async fn tool_get(&self, offer: &Offer, out: &mut tokio::fs::File) -> Result<u64, Error> {
        let doing = format!("fetch {}", offer.name);
        let path = format!("/v1/tools/{}", offer.name);
        let (size, _) = self.download(path, &doing, Some(&offer.sha256), out).await?;
        Ok(size)
    }

    /// Writes the archive of a provider that was offered to `out`, checked.
    pub async fn provider_get(
        &self,
        wish: &provider::Request,
        package: &provider::Package,
        out: &mut tokio::fs::File,
    ) -> Result<u64, Error> {
        let doing = format!("fetch {} {}", wish.address, wish.version);
        let path = format!("/v1/providers/{}/{}/{}", wish.address, wish.version, wish.platform);
        let (size, _) = self.download(path, &doing, Some(&package.sha256), out).await?;
        Ok(size)
    }
}
