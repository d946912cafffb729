//! A datastore that believes names: for tests and measures of the datastore itself, where who calls is a matter of the words in the
//! token. It stands in for the review of tokens by a Kubernetes API and nothing else.

use datastore::Attempt;
use datastore::service::{Caller, ReviewError, Reviewer, Runner};
use futures::future::BoxFuture;

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
