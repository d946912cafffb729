//! Where objects rest: a directory of this machine, or a bucket of S3, Google Cloud Storage or Azure. Here a place is named,
//! opened and proved; what is kept in it, and how it is sealed, is not known here.
//!
//! Everything above rests on one promise: of several that create the same name, one succeeds. Some stores that speak S3
//! ignore the header that asks for it and overwrite, so the promise is tried out before anything is kept.

use std::fmt;
use std::ops::Deref;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut, S3CopyIfNotExists};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, CopyMode, CopyOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig,
};

use super::disk::Disk;

/// Uploads that are not finished stand under this name, and so do the objects that a place is tried out with.
pub(crate) const STAGING: &str = "staging";
/// What has stood there for this long belongs to nobody any more. Clocks may differ; a day is more than any upload takes.
const ABANDONED: i64 = 24 * 60 * 60;
/// How many create the same name at once when a place is tried out.
const RIVALS: usize = 6;

/// Objects, wherever they rest.
#[derive(Clone, Debug)]
pub struct Objects {
    any: Arc<dyn ObjectStore>,
    disk: Option<Disk>,
}

impl Objects {
    /// The directory, where that is where they rest: files are written there in fewer steps than by a store's general way.
    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }
}

impl<T: ObjectStore> From<T> for Objects {
    fn from(store: T) -> Self {
        Self { any: Arc::new(store), disk: None }
    }
}

impl Deref for Objects {
    type Target = dyn ObjectStore;

    fn deref(&self) -> &Self::Target {
        &*self.any
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0:?} names no bucket; say s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
    )]
    NoBucket(String),
    #[error(
        "the URL of a bucket must not hold a password, a query or a fragment: command lines are seen by others; give credentials in the environment"
    )]
    Credentials,
    #[error("{place} cannot be used: {source}{}", advice(.source))]
    Unusable { place: String, source: object_store::Error },
    #[error(
        "{place} does not keep what is there: it was told to create an object only where there is none, and {what}. Two runs could hold the lock of one state there, so it is refused; use a store that honours conditional writes (If-None-Match)"
    )]
    Unconditional { place: String, what: &'static str },
}

/// What a person can do about the failures that come up most.
fn advice(error: &object_store::Error) -> &'static str {
    let text = error.to_string();
    if text.contains("RequestTimeTooSkewed") {
        "; the clock of this machine differs too much from the store's: set it"
    } else if text.contains("builder error") && text.contains(" http://") {
        "; an address without TLS is used only with AWS_ALLOW_HTTP=true, GOOGLE_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true"
    } else if matches!(error, object_store::Error::NotFound { .. }) {
        "; make the bucket first, and check its name and region"
    } else {
        ""
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cloud {
    S3,
    Google,
    Azure,
}

/// A bucket, and where in it the objects begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    cloud: Cloud,
    /// Scheme and authority only.
    url: String,
    prefix: Path,
}

impl FromStr for Bucket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::NoBucket(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let cloud = match scheme {
            "s3" => Cloud::S3,
            "gs" => Cloud::Google,
            "az" | "abfss" => Cloud::Azure,
            _ => return Err(wrong()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains(':') || text.contains(['?', '#']) {
            return Err(Error::Credentials);
        }
        let word = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let named = match authority.split_once('@') {
            Some((container, account)) => cloud == Cloud::Azure && word(container) && word(account),
            None => word(authority),
        };
        if !named {
            return Err(wrong());
        }
        let prefix = Path::parse(path.trim_end_matches('/')).map_err(|_| wrong())?;
        Ok(Self { cloud, url: format!("{scheme}://{authority}"), prefix })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.url, self.prefix)
    }
}

/// Where a datastore keeps its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Directory(PathBuf),
    Bucket(Bucket),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket(bucket) => write!(f, "{bucket}"),
        }
    }
}

impl Place {
    /// The objects of this place, proved to be kept as they must be. `environment` is where credentials, region and endpoint of a
    /// bucket come from, by the names that the clouds' own tools use.
    pub async fn open(
        &self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Objects, Error> {
        let unusable = |source| Error::Unusable { place: self.to_string(), source };
        let objects = match self {
            Self::Directory(path) => local(path).map_err(unusable)?,
            Self::Bucket(bucket) => {
                let objects = bucket.connect(environment).map_err(unusable)?;
                self.prove(&objects).await?;
                objects
            }
        };
        if let Err(error) = sweep(&objects).await {
            tracing::warn!(place = %self, %error, "what unfinished uploads left could not be removed");
        }
        Ok(objects)
    }

    /// Whether the place answers now.
    pub async fn check(&self, objects: &Objects) -> Result<(), Error> {
        let unusable = |source| Error::Unusable { place: self.to_string(), source };
        match self {
            // A missing directory looks like an empty store to whoever asks for an object.
            Self::Directory(path) => {
                tokio::fs::read_dir(path).await.map(drop).map_err(|error| unusable(io(error)))
            }
            Self::Bucket(_) => match objects.head(&Path::from(format!("{STAGING}/is-anybody-there"))).await {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(source) => Err(unusable(source)),
            },
        }
    }

    /// Creates the same name several times at once, in both ways that are used, and sees that one of them won.
    async fn prove(&self, objects: &Objects) -> Result<(), Error> {
        let unusable = |source| Error::Unusable { place: self.to_string(), source };
        let name = |part: &str| Path::from(format!("{STAGING}/trial-{:032x}-{part}", rand::random::<u128>()));
        let (put, source, copied) = (name("put"), name("source"), name("copy"));
        let outcome = async {
            let creations = (0..RIVALS).map(|rival| {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                objects.put_opts(&put, format!("rival {rival}").into_bytes().into(), options)
            });
            self.one_won(futures::future::join_all(creations).await, "it was written more than once")?;
            objects.put(&source, b"a large object".to_vec().into()).await.map_err(unusable)?;
            let copies = (0..RIVALS).map(|_| {
                let options = CopyOptions { mode: CopyMode::Create, ..CopyOptions::default() };
                objects.copy_opts(&source, &copied, options)
            });
            let what = "it was replaced by the copy of another";
            self.one_won(futures::future::join_all(copies).await, what)
        }
        .await;
        for path in [put, source, copied] {
            // What stays is swept with the rest of staging.
            let _ = objects.delete(&path).await;
        }
        outcome
    }

    fn one_won<T>(
        &self,
        results: Vec<Result<T, object_store::Error>>,
        what: &'static str,
    ) -> Result<(), Error> {
        let mut winners = 0;
        let mut failure = None;
        for result in results {
            match result {
                Ok(_) => winners += 1,
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => failure = Some(error),
            }
        }
        match (winners, failure) {
            (0 | 1, Some(source)) => Err(Error::Unusable { place: self.to_string(), source }),
            (1, None) => Ok(()),
            (0, None) => Err(Error::Unconditional {
                place: self.to_string(),
                what: "it refused although there was none",
            }),
            (_, _) => Err(Error::Unconditional { place: self.to_string(), what }),
        }
    }
}

impl Bucket {
    fn connect(
        &self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Objects, object_store::Error> {
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(2),
                base: 2.0,
            },
            // Callers repeat their requests too, and want to know soon that the store is away.
            max_retries: 4,
            retry_timeout: Duration::from_secs(15),
        };
        // A large object takes as long as it takes; what must not happen is that nothing moves.
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_read_timeout(Duration::from_secs(60))
            .with_connect_timeout(Duration::from_secs(5));
        let settings = environment
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name.to_ascii_lowercase(), value));
        let objects = match self.cloud {
            Cloud::S3 => {
                let start = AmazonS3Builder::new()
                    .with_client_options(client)
                    .with_retry(retry)
                    .with_copy_if_not_exists(S3CopyIfNotExists::Multipart);
                let builder = settings.filter(|(name, _)| name.starts_with("aws_")).fold(
                    start,
                    |builder, (name, value)| match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                );
                let builder = builder.with_conditional_put(S3ConditionalPut::ETagMatch);
                PrefixStore::new(builder.with_url(&self.url).build()?, self.prefix.clone()).into()
            }
            Cloud::Google => {
                let start = GoogleCloudStorageBuilder::new().with_client_options(client).with_retry(retry);
                let builder = settings.filter(|(name, _)| name.starts_with("google_")).fold(
                    start,
                    |builder, (name, value)| match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                );
                PrefixStore::new(builder.with_url(&self.url).build()?, self.prefix.clone()).into()
            }
            Cloud::Azure => {
                let start = MicrosoftAzureBuilder::new().with_client_options(client).with_retry(retry);
                let builder = settings.fold(start, |builder, (name, value)| match name.as_str() {
                    "identity_endpoint" => builder.with_msi_endpoint(value),
                    _ if !name.starts_with("azure_") => builder,
                    _ => match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                });
                PrefixStore::new(builder.with_url(&self.url).build()?, self.prefix.clone()).into()
            }
        };
        Ok(objects)
    }
}

/// An object store on local disk that has written what it says it has written.
pub(crate) fn local(directory: &FilePath) -> Result<Objects, object_store::Error> {
    std::fs::create_dir_all(directory).map_err(io)?;
    let local = object_store::local::LocalFileSystem::new_with_prefix(directory)?
        .with_fsync(true)
        // What a run left goes with its directories.
        .with_automatic_cleanup(true);
    Ok(Objects { any: Arc::new(local), disk: Some(Disk::new(directory)) })
}

pub(super) fn io(source: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "local disk", source: Box::new(source) }
}

/// Removes what uploads that broke off left behind. O(what is there, which is as many as uploads run at once).
async fn sweep(objects: &Objects) -> Result<(), object_store::Error> {
    let now = Timestamp::now().as_second();
    let mut found = objects.list(Some(&Path::from(STAGING)));
    while let Some(meta) = found.try_next().await? {
        if now.saturating_sub(meta.last_modified.timestamp()) > ABANDONED {
            match objects.delete(&meta.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bucket_is_named_by_its_url_and_never_holds_credentials() {
        for (text, shown) in [
            ("s3://artefacts", "s3://artefacts/"),
            ("s3://artefacts/", "s3://artefacts/"),
            ("s3://artefacts/terrane/one/", "s3://artefacts/terrane/one"),
            ("gs://artefacts/x", "gs://artefacts/x"),
            ("az://container/x", "az://container/x"),
            (
                "abfss://container@account.dfs.core.windows.net/x",
                "abfss://container@account.dfs.core.windows.net/x",
            ),
        ] {
            assert_eq!(text.parse::<Bucket>().unwrap().to_string(), shown);
        }
        for wrong in ["", "artefacts", "/var/lib", "http://x/y", "s3://", "s3:///x", "s3://a b", "s3://me@b"]
        {
            assert!(matches!(wrong.parse::<Bucket>(), Err(Error::NoBucket(_))), "{wrong}");
        }
        for secret in ["s3://key:secret@bucket/x", "az://c/x?sig=secret", "s3://b/x#secret"] {
            let error = secret.parse::<Bucket>().unwrap_err();
            assert!(matches!(error, Error::Credentials), "{secret}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    /// Builders look at nothing but what they are given, so each cloud can be set up here without its network.
    #[test]
    fn each_cloud_is_set_up_from_the_environment_that_its_own_tools_read() {
        let connect = |url: &str, environment: &[(&str, &str)]| {
            let environment =
                environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            url.parse::<Bucket>().unwrap().connect(environment).map(|objects| format!("{objects:?}"))
        };
        let s3 = connect(
            "s3://b/p",
            &[
                ("AWS_REGION", "eu-north-1"),
                ("AWS_ENDPOINT_URL", "https://s3.example.org"),
                ("AWS_ACCESS_KEY_ID", "id"),
                ("AWS_SECRET_ACCESS_KEY", "hush"),
                ("AWS_SOMETHING_ELSE", "ignored"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert!(s3.contains("eu-north-1") && s3.contains("s3.example.org"), "{s3}");
        let key = "a2V5";
        let azure = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", key)];
        assert!(connect("az://c/p", &azure).unwrap().contains("account"));
        assert!(connect("az://c/p", &[]).is_err(), "an account must be named");
        let missing = [("GOOGLE_SERVICE_ACCOUNT", "/does/not/exist.json")];
        assert!(connect("gs://b/p", &missing).is_err(), "the file is looked at");
        assert!(connect("gs://b/p", &[("GOOGLE_BEARER_TOKEN", "token")]).is_ok());
    }
}
