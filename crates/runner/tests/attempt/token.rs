//! The runner's token, which the node renews in its file while the attempt goes on.

use std::collections::BTreeSet;
use std::sync::Mutex;

use datastore::service::{Caller, ReviewError, Reviewer};
use futures::future::BoxFuture;

use super::*;

/// Tokens and when they count.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// These did, and do not any more.
    pub(super) expired: Mutex<BTreeSet<String>>,
    /// These were used while they counted.
    used: Mutex<BTreeSet<String>>,
}

/// Believes names, but none that has expired.
#[derive(Debug)]
pub(super) struct ByToken(pub(super) Arc<Tokens>);

impl Reviewer for ByToken {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Caller, ReviewError>> {
        if self.0.expired.lock().unwrap().contains(token) {
            return Box::pin(async { Err(ReviewError::Unauthenticated("the token has expired".to_owned())) });
        }
        self.0.used.lock().unwrap().insert(token.to_owned());
        ByName.review(token)
    }
}

/// The tool asks for the lock before and for the state and the log after, so both tokens are needed for it.
#[tokio::test]
async fn a_token_that_is_renewed_in_mid_apply_is_read_again() {
    let signals = tempfile::tempdir().unwrap();
    let world = World::new(&[("envs/prod/main.tf", &waiting_code(signals.path()))]).await;
    let plan = planned(&world.plan("plan-1").await);
    world.describe(&world.apply_of("apply-1", 1, "plan-1", plan)).await;
    let (began, go) = (signals.path().join("began"), signals.path().join("go"));
    let options = world.options("apply-1");
    // The same attempt, in other words.
    let (first, second) = ("team/apply-1/1", "team/apply-1/01");
    let token_file = options.token_file.clone();
    let director = async {
        until(|| began.exists()).await;
        assert!(world.tokens.used.lock().unwrap().contains(first));
        // As a kubelet does it: the new content is there at once and whole.
        let beside = token_file.with_extension("new");
        std::fs::write(&beside, second).unwrap();
        std::fs::rename(&beside, &token_file).unwrap();
        world.tokens.expired.lock().unwrap().insert(first.to_owned());
        assert!(!world.tokens.used.lock().unwrap().contains(second));
        std::fs::write(&go, "").unwrap();
    };
    let (apply, ()) = tokio::join!(world.run_with(options, std::future::pending()), director);
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert!(world.tokens.used.lock().unwrap().contains(second));
    let old = Client::new(&world.base, TokenSource::Fixed(first.to_owned().into())).unwrap();
    let old = old.with_patience(Duration::ZERO);
    let attempt = Attempt::new("apply-1", 1).unwrap();
    let refused = old.artefact_get(&attempt, Artefact::Spec, 1 << 20).await.unwrap_err();
    assert!(refused.to_string().contains("the token has expired"), "{refused}");
    assert_eq!(world.state().await.unwrap()["resources"].as_array().unwrap().len(), 2);
    assert_eq!(reqwest_get(&world, &format!("/v1/state/{}/lock", state_id())).await, 204, "no lock stays");
    assert!(world.log_of("apply-1").await.contains("Apply complete!"));
}
