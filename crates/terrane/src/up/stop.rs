//! Ctrl-C once: no new work, and what runs is waited for by name. Twice: it is left running, and the next start adopts it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often running attempts are looked for while they are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// The two ways to ask for the end. One that comes before somebody waits for it is kept.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on a signal does not end the process by itself.
    pub(super) fn catch() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Returns when the process may end.
pub(super) async fn wished(mut signals: Signals, stop_work: &CancellationToken, client: &Client) {
    signals.next().await;
    stop_work.cancel();
    tokio::select! {
        () = running_attempts_ended(client) => {}
        () = signals.next() => eprintln!("left running; the next start takes them up again"),
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
