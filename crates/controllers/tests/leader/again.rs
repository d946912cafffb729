//! A leader that lost its term and cannot begin the next one, for want of room on its disk, say, stands again. One that cannot begin its
//! first ends, and says why.

use std::sync::Arc;
use std::time::Duration;

use api::SYSTEM_NAMESPACE;
use controllers::{Context, Desk};
use datastore::client::TokenSource;
use engine::Settings;
use engine::leader::{LEASE, Terms};
use engine::manifests::{RunnerSecrets, RunnerSettings};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::shards::Code;
use crate::{Ground, within};

const TERMS: Terms = Terms {
    duration: Duration::from_secs(1),
    trust: Duration::from_millis(900),
    period: Duration::from_millis(50),
};

/// What cannot be made.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("no room is left")]
    NoRoom,
    #[error(transparent)]
    Controllers(#[from] controllers::Error),
}

/// Controllers of whom nothing is wanted.
fn context(client: kube::Client) -> Context {
    let token = TokenSource::Fixed("controller".to_owned().into());
    let datastore = datastore::Client::new("http://127.0.0.1:9", token).unwrap();
    let code = Code { datastore: datastore.clone(), file: "/nonexistent".into() };
    let desk = Arc::new(Desk::over(Arc::new(code), Timestamp::now));
    let settings = Settings::new(RunnerSettings {
        image: api::LOCAL_IMAGE.to_owned(),
        service_account: "default".to_owned(),
        datastore_url: "http://127.0.0.1:9".to_owned(),
        path: None,
        environment: Vec::new(),
        secrets: RunnerSecrets::default(),
    });
    Context::new(client, datastore, desk, Arc::new(settings), Timestamp::now)
}

/// Somebody else takes the Lease, and never renews it.
async fn take_over(ground: &Ground) {
    let leases = Api::<Lease>::namespaced(ground.client(), SYSTEM_NAMESPACE);
    let taken = json!({ "spec": { "holderIdentity": "somebody-else" } });
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
}

#[tokio::test]
async fn a_term_that_cannot_be_begun_is_no_end_unless_it_is_the_first() {
    let ground = Ground::new().await;
    // Each in a task of its own: the controllers are too large for the stack of a test.
    let mut tasks = JoinSet::new();
    let never = || Err::<Context, _>(Trouble::NoRoom);
    let first = ground.candidate("empty", TERMS);
    tasks.spawn(async move { controllers::lead(first, never, CancellationToken::new()).await });
    let ended = within("the process is told", tasks.join_next()).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Trouble::NoRoom)), "{ended:?}");

    let (begin, mut begun) = watch::channel(0);
    let (stop, client) = (CancellationToken::new(), ground.client());
    let stopped = stop.clone();
    // The first term and the last can be begun.
    let make = move || {
        begin.send_modify(|terms| *terms += 1);
        match *begin.borrow() {
            2 | 3 => Err(Trouble::NoRoom),
            _ => Ok(context(client.clone())),
        }
    };
    let tenacious = ground.candidate("tenacious", TERMS);
    tasks.spawn(async move { controllers::lead(tenacious, make, stopped).await });
    within("the first term", begun.wait_for(|terms| *terms == 1)).await.unwrap();
    take_over(&ground).await;
    within("one that can be begun again", begun.wait_for(|terms| *terms == 4)).await.unwrap();
    stop.cancel();
    within("it stops when it is told to", tasks.join_next()).await.unwrap().unwrap().unwrap();
    ground.server.stop().await;
}
