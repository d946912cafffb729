//! Ctrl-C once: no new work, and what runs is waited for by name. Twice: it is left running, and the next start adopts it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often running attempts are looked for while they are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Returns when the process may end.
pub(super) async fn wished(stop_work: &CancellationToken, client: &Client) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers a signal ends the process at once, which is safe too.
        return std::future::pending().await;
    };
    either(&mut interrupt, &mut terminate).await;
    stop_work.cancel();
    tokio::select! {
        () = running_attempts_ended(client) => {}
        () = either(&mut interrupt, &mut terminate) => {
            eprintln!("left running; the next start takes them up again");
        }
    }
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn running_attempts_ended(client: &Client) {
    let api = Api::<Pod>::all(client.clone());
    let ours = ListParams::default().labels(&format!("{}=terrane", api::label::MANAGED_BY));
    let mut told = false;
    // An API that no longer answers has nothing to wait for.
    while let Ok(pods) = api.list(&ours).await {
        let running: Vec<String> =
            pods.items.iter().filter(|pod| is_running(pod)).map(|pod| pod.name_any()).collect();
        if running.is_empty() {
            return;
        }
        if !told {
            eprintln!("waiting for {}; Ctrl-C again leaves them running", running.join(", "));
            told = true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}
