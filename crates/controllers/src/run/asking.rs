//! The datastore, asked for the sake of one run. Nobody waits for it long: the few places for reconciles are for all layers.

use std::time::Duration;

use datastore::client::{Client, Error};

/// How long failures that pass are retried: long enough for a datastore that is started again.
const PATIENCE: Duration = Duration::from_secs(3);
/// For one that takes a request and then says nothing.
const LIMIT: Duration = Duration::from_secs(10);

/// What is asked may be asked again, whatever became of it.
pub(super) async fn ask<T>(
    datastore: &Client,
    doing: &str,
    asking: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<T, Error> {
    within(LIMIT, doing, asking(datastore.clone().with_patience_at_most(PATIENCE))).await
}

async fn within<T>(
    limit: Duration,
    doing: &str,
    asking: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
        Err(Error::Unreachable { doing: doing.to_owned(), detail: format!("no answer within {limit:?}") })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datastore::client::TokenSource;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn one_that_takes_a_request_and_says_nothing_is_given_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let datastore = Client::new(&base, TokenSource::Fixed("word".to_owned().into())).unwrap();
        let sha256 = api::text::Sha256::of(b"nothing");
        let asking = datastore.bundle_exists(&sha256);
        let error = within(Duration::from_millis(50), "look", asking).await.unwrap_err();
        assert!(error.is_transient());
        assert_eq!(error.to_string(), "the datastore could not be reached to look: no answer within 50ms");
    }
}
