//! A datastore that believes names: for tests and measures of the datastore itself, where who calls is a matter of the words in the
//! token. It stands in for the review of tokens by a Kubernetes API and nothing else.

use anyhow::{Context, Result};
use datastore::client::TokenSource;
use datastore::service::{Caller, ReviewError, Reviewer, Runner};
use datastore::{Attempt, Client};
use futures::future::BoxFuture;
use tokio::task::JoinSet;

/// The token `controller` is Terrane itself, `NAMESPACE/RUN/ATTEMPT` a runner, every other one nobody's.
#[derive(Debug)]
pub struct ByName;

impl Reviewer for ByName {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Caller, ReviewError>> {
        let caller = if token == "controller" { Some(Caller::Controller) } else { runner(token) };
        let caller = caller.ok_or_else(|| ReviewError::Unauthenticated("unknown".to_owned()));
        Box::pin(async { caller })
    }
}

fn runner(token: &str) -> Option<Caller> {
    let mut parts = token.split('/');
    let (namespace, run, attempt) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Caller::Runner(Runner {
        namespace: namespace.to_owned(),
        pod: "pod".to_owned(),
        pod_uid: "uid".to_owned(),
        attempt: Attempt::new(run, attempt.parse().ok()?).ok()?,
    }))
}

/// A datastore on loopback, as the controllers reach it. It ends when this is dropped.
#[derive(Debug)]
pub struct Served {
    pub url: String,
    pub client: Client,
    _serving: JoinSet<()>,
}

/// Serves a datastore that believes names.
pub async fn serve(service: axum::Router) -> Result<Served> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening as a datastore")?;
    let url = format!("http://{}", listener.local_addr().context("reading the datastore's address")?);
    let client = Client::new(&url, TokenSource::Fixed("controller".to_owned().into()))?;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        // It ends with the test, and whoever asks it then learns that.
        let _ = axum::serve(listener, service).await;
    });
    Ok(Served { url, client, _serving: serving })
}
