//! Whether the cluster's definitions are those that the controllers need. As long as they are not, the controllers wait and say so:
//! what they wrote would be dropped. Whoever works on the cluster with an older version goes on meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::definitions::{lacking, words};
use serde_json::Value;

/// How often they are looked at while something is missing, and while nothing is.
const SOON: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(20);

/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Definitions {
    client: kube::Client,
    /// What is missing, in words; nothing before the first look.
    missing: Arc<Mutex<Option<String>>>,
}

impl Definitions {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { client, missing: Arc::default() }
    }

    pub(crate) fn check(&self) -> Result<String, String> {
        match &*self.missing.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok("nothing is known to be missing".to_owned()),
            Some(why) => Err(why.clone()),
        }
    }

    /// Returns once they are whole, or nobody can tell.
    pub(crate) async fn await_whole(&self) {
        while !self.are_whole().await {
            tokio::time::sleep(SOON).await;
        }
    }

    /// Returns once they were replaced by some that are not.
    pub(crate) async fn await_lack(&self) {
        loop {
            tokio::time::sleep(LATER).await;
            if !self.are_whole().await {
                return;
            }
        }
    }

    async fn are_whole(&self) -> bool {
        let missing = match self.look().await {
            Ok(lacking) if lacking.is_empty() => None,
            Ok(lacking) => Some(words(&lacking)),
            // An API that is away, or does not tell: what is known stays.
            Err(error) => {
                tracing::debug!(%error, "the cluster's definitions could not be looked at");
                return self.check().is_ok();
            }
        };
        let mut known = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*known, &missing) {
            (Some(before), Some(now)) if before == now => {}
            (None | Some(_), Some(why)) => tracing::error!("nothing is done for now: {why}"),
            (Some(_), None) => tracing::info!("the cluster's definitions are complete now; work goes on"),
            (None, None) => {}
        }
        *known = missing;
        known.is_none()
    }

    /// As the API describes its kinds to anybody who is logged in.
    async fn look(&self) -> Result<Vec<String>, kube::Error> {
        let mut found = Vec::new();
        for group in api::GROUPS {
            let path = format!("/openapi/v3/apis/{group}/{}", api::VERSION);
            let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            match self.client.request::<Value>(request).await {
                Ok(served) => found.extend(lacking(group, &served)),
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    found.extend(lacking(group, &Value::Null));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
