//! Shards spread over the processes that are there: whoever holds two fewer than another asks for one, on that one's Lease, and the
//! holder gives it away in order. Nobody is told how many processes there are, and nobody decides for another.

use std::time::Duration;

use api::{SYSTEM_NAMESPACE, label};
use engine::leader::Terms;
use engine::shard::{self, ASKED_BY};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

/// How often it is looked at, in periods of an election: after a shard was given away it must have been taken.
const EVERY: u32 = 3;

/// Asks for shards as `identity` until told to stop. A wish that fails is had again.
pub async fn balance(client: Client, identity: &str, terms: Terms, stop: CancellationToken) {
    let leases = Api::<Lease>::namespaced(client, SYSTEM_NAMESPACE);
    let pause: Duration = terms.period * EVERY;
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        if let Err(error) = ask(&leases, identity).await {
            tracing::debug!(%error, "no shard was asked for");
        }
    }
}

/// O(shards).
async fn ask(leases: &Api<Lease>, identity: &str) -> Result<(), kube::Error> {
    let ours = ListParams::default().labels(&format!("{}=controller", label::COMPONENT));
    let all = leases.list(&ours).await?.items;
    let Some(wish) = shard::wish(&all, identity) else { return Ok(()) };
    let mut lease = wish.clone();
    lease.annotations_mut().insert(ASKED_BY.to_owned(), identity.to_owned());
    // Against the version that was read: a holder that renews meanwhile wins, and is asked again.
    leases.replace(&wish.name_any(), &PostParams::default(), &lease).await?;
    tracing::info!(lease = wish.name_any(), "asked another controller for one of its shards");
    Ok(())
}
