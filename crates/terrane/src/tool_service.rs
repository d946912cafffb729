//! Programs for runners: what the store holds, and what it does not hold is downloaded, checked and kept. Runners ask with the same
//! token as for everything else of their attempt; none of them can write here, so none can change what another one runs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::text::Sha256;
use api::tool::{Answer, Offer, Request};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use datastore::Refusal;
use datastore::service::{ReviewError, Reviewer};
use futures::stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tofu::store::{Installed, Source, Store};
use tofu::versions::Constraint;
use tokio::sync::Semaphore;

/// While somebody waits for a download, a blank goes out this often: whoever hears nothing gives up.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// How many programs are downloaded at a time.
const DOWNLOADS: usize = 4;

#[derive(Debug)]
struct ToolService {
    store: Store,
    source: Source,
    reviewer: Arc<dyn Reviewer>,
    downloads: Semaphore,
}

pub(crate) fn router(store: Store, source: Source, reviewer: Arc<dyn Reviewer>) -> Router {
    let service = ToolService { store, source, reviewer, downloads: Semaphore::new(DOWNLOADS) };
    Router::new()
        .route("/v1/tools", post(ensure))
        .route("/v1/tools/{name}", get(fetch))
        .with_state(Arc::new(service))
}

impl ToolService {
    async fn answer(&self, request: Request) -> Answer {
        let constraint = match request.constraint.as_deref().map(str::parse::<Constraint>) {
            None => Constraint::default(),
            Some(Ok(constraint)) => constraint,
            Some(Err(error)) => return Answer::Unavailable { message: error.to_string() },
        };
        // It is never closed; if it were, more downloads at a time would be the only harm.
        let _turn = self.downloads.acquire().await;
        let ensured = self.store.ensure(request.program, &constraint, &self.source, &mut |_, _| {}).await;
        let installed = match ensured {
            Ok(installed) => installed,
            Err(error) => {
                tracing::warn!(program = %request.program, %constraint, %error, "a runner's tool could not be had");
                let message = error.to_string();
                return if error.is_distrust() {
                    Answer::Untrusted { message }
                } else {
                    Answer::Unavailable { message }
                };
            }
        };
        match self.offer(&installed) {
            Some(offer) => Answer::Ready(offer),
            None => Answer::Unavailable {
                message: format!("{} has no record in the store; install it again", installed.name()),
            },
        }
    }

    fn offer(&self, installed: &Installed) -> Option<Offer> {
        let record = self.store.record(installed)?;
        let version = installed.version.to_string();
        Some(Offer { name: installed.name(), version, sha256: record.sha256 })
    }
}

async fn ensure(State(service): State<Arc<ToolService>>, headers: HeaderMap, content: Bytes) -> Response {
    match asked(service.reviewer.as_ref(), &headers, &content).await {
        Ok(request) => when_ready(async move { service.answer(request).await }),
        Err(refused) => *refused,
    }
}

/// What somebody asks for whom the datastore knows.
pub(crate) async fn asked<T: DeserializeOwned>(
    reviewer: &dyn Reviewer,
    headers: &HeaderMap,
    content: &[u8],
) -> Result<T, Box<Response>> {
    admit(reviewer, headers).await?;
    serde_json::from_slice(content).map_err(|error| {
        Box::new(refusal(StatusCode::BAD_REQUEST, &format!("the request cannot be read: {error}")))
    })
}

/// Whoever the datastore knows may have what vendors publish to everybody.
pub(crate) async fn admit(reviewer: &dyn Reviewer, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    if token.is_empty() {
        return Err(Box::new(refusal(StatusCode::UNAUTHORIZED, "the request has no bearer token")));
    }
    reviewer.review(token).await.map(drop).map_err(|error| {
        let status = match &error {
            ReviewError::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            ReviewError::Stranger(_) => StatusCode::FORBIDDEN,
            ReviewError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Box::new(refusal(status, &error.to_string()))
    })
}

/// An answer that may take as long as a download, with signs of life until then.
pub(crate) fn when_ready<A: Serialize>(answer: impl Future<Output = A> + Send + 'static) -> Response {
    let answering =
        Box::pin(async move { Bytes::from(serde_json::to_vec(&answer.await).unwrap_or_default()) });
    // Dropped together with the connection: a download that nobody waits for ends.
    let pieces = stream::unfold(Some(answering), |waiting| async move {
        let mut waiting = waiting?;
        match tokio::time::timeout(SIGN_OF_LIFE, waiting.as_mut()).await {
            Ok(answer) => Some((Ok::<_, std::convert::Infallible>(answer), None)),
            Err(_) => Some((Ok(Bytes::from_static(b"\n")), Some(waiting))),
        }
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response()
}

/// The program itself, for runners that do not see the store.
async fn fetch(
    State(service): State<Arc<ToolService>>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    if let Err(refused) = admit(service.reviewer.as_ref(), &headers).await {
        return *refused;
    }
    // Only what is listed is opened: a name can lead nowhere else.
    let listed = service.store.list().unwrap_or_default();
    let found = listed.into_iter().find(|installed| installed.name() == name);
    let Some((installed, offer)) = found.and_then(|found| service.offer(&found).map(|offer| (found, offer)))
    else {
        return refusal(StatusCode::NOT_FOUND, &format!("the store does not hold {name}"));
    };
    file(&installed.path, &offer.sha256).await
}

/// A file of a store, with its digest.
pub(crate) async fn file(path: &std::path::Path, sha256: &Sha256) -> Response {
    let opened = async {
        let file = tokio::fs::File::open(path).await?;
        let length = file.metadata().await?.len();
        Ok::<_, std::io::Error>((file, length))
    };
    match opened.await {
        Ok((file, length)) => {
            let content = Body::from_stream(tokio_util::io::ReaderStream::with_capacity(file, 256 * 1024));
            let headers = [
                (header::CONTENT_LENGTH.as_str(), length.to_string()),
                (datastore::header::SHA256, sha256.to_string()),
            ];
            (headers, content).into_response()
        }
        Err(error) => {
            let message = format!("{} cannot be read: {error}", path.display());
            refusal(StatusCode::INTERNAL_SERVER_ERROR, &message)
        }
    }
}

pub(crate) fn refusal(status: StatusCode, message: &str) -> Response {
    (status, Json(Refusal { message: message.to_owned() })).into_response()
}

/// A store of our own, and where it is filled from.
pub(crate) fn open(
    root: &std::path::Path,
    downloads: &crate::commands::tools::Downloads,
    default_keys: &std::path::Path,
) -> anyhow::Result<(Store, Source)> {
    let store = Store::open(root).with_context(|| format!("open the store of tools {}", root.display()))?;
    let source = Source::new(downloads.source(default_keys)).context("prepare downloads of tools")?;
    Ok((store, source))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use api::tool::Program;
    use datastore::client::TokenSource;
    use datastore::service::Caller;
    use futures::future::BoxFuture;
    use testkit::release::{Mirror, Vendor};
    use tofu::store::SourceOptions;

    /// Knows one token.
    #[derive(Debug)]
    struct Doorman;

    impl Reviewer for Doorman {
        fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Caller, ReviewError>> {
            Box::pin(async move {
                match token {
                    "good" => Ok(Caller::Controller),
                    _ => Err(ReviewError::Stranger("nobody".to_owned())),
                }
            })
        }
    }

    #[tokio::test]
    async fn a_runner_without_the_store_gets_the_program_itself_and_strangers_get_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let (mirror, vendor) = (Mirror::start().await.unwrap(), Vendor::new().unwrap());
        mirror.publish_terraform("1.2.3", b"the program", &vendor);
        std::fs::write(scratch.path().join("terraform.gpg"), vendor.certificate()).unwrap();
        let source = Source::new(SourceOptions {
            mirror: Some(mirror.url()),
            keys: Some(scratch.path().to_owned()),
            checksums: None,
            authority: None,
        });
        let store = Store::open(scratch.path().join("store")).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let service = router(store, source.unwrap(), Arc::new(Doorman));
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { axum::serve(listener, service).await });
        let client = |token: &str| {
            let token = TokenSource::Fixed(token.to_owned().into());
            datastore::Client::new(&base, token).unwrap().with_patience(Duration::ZERO)
        };
        let wish = |constraint: &str| Request {
            program: Program::Terraform,
            constraint: Some(constraint.to_owned()),
        };

        let answer = client("good").tool_ensure(&wish("1.2.3")).await.unwrap();
        let Answer::Ready(offer) = answer else { panic!("{answer:?}") };
        assert_eq!((offer.name.as_str(), offer.version.as_str()), ("terraform-1.2.3", "1.2.3"));
        let path = scratch.path().join("fetched");
        let mut file = tokio::fs::File::create(&path).await.unwrap();
        client("good").tool_get(&offer, &mut file).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"the program");

        let missing = client("good").tool_ensure(&wish("7.7.7")).await.unwrap();
        assert!(matches!(&missing, Answer::Unavailable { message } if message.contains("there is no")));
        mirror.publish_terraform("1.2.4", b"evil", &Vendor::new().unwrap());
        let refused = client("good").tool_ensure(&wish("1.2.4")).await.unwrap();
        assert!(matches!(&refused, Answer::Untrusted { message } if message.contains("trusted keys")));
        let nonsense = client("good").tool_ensure(&wish("newest")).await.unwrap();
        assert!(matches!(nonsense, Answer::Unavailable { .. }));

        assert!(client("bad").tool_ensure(&wish("1.2.3")).await.is_err());
        assert!(client("bad").tool_get(&offer, &mut file).await.is_err());
        let elsewhere = Offer { name: "..%2F..%2Fetc%2Fpasswd".to_owned(), ..offer };
        let nothing = client("good").tool_get(&elsewhere, &mut file).await.unwrap_err();
        assert!(matches!(nothing, datastore::client::Error::NotFound(_)), "{nothing}");
    }
}
