//! A datastore that is told to stop: it says so to whoever asks whether it is ready, and what is under way comes to its end.

use std::net::SocketAddr;
use std::time::Duration;

use api::text::Sha256;
use bytes::Bytes;
use futures::SinkExt;
use futures::channel::mpsc;
use rustix::process::{Pid, Signal, kill_process};
use testkit::process::Guarded;
use tokio::task::JoinSet;

use crate::harness::{Terrane, free_address, until};
use crate::{page, ready_page};

/// An upload of which one half was sent.
struct Upload {
    body: mpsc::Sender<Result<Bytes, std::io::Error>>,
    answer: JoinSet<reqwest::Result<reqwest::Response>>,
}

impl Upload {
    async fn begin(datastore: SocketAddr, token: &str, halves: [&'static str; 2]) -> Self {
        let (mut body, stream) = mpsc::channel(1);
        body.send(Ok(Bytes::from_static(halves[0].as_bytes()))).await.unwrap();
        let sha256 = Sha256::of(halves.concat().as_bytes());
        let request = reqwest::Client::builder()
            .no_proxy()
            .build()
            .unwrap()
            .put(format!("http://{datastore}/v1/bundles/{sha256}"))
            .bearer_auth(token)
            .header("terrane-sha256", sha256.as_str())
            .body(reqwest::Body::wrap_stream(stream));
        let mut answer = JoinSet::new();
        answer.spawn(request.send());
        Self { body, answer }
    }

    async fn finish(mut self, half: &'static str) -> u16 {
        self.body.send(Ok(Bytes::from_static(half.as_bytes()))).await.unwrap();
        drop(self.body);
        self.answer.join_next().await.unwrap().unwrap().unwrap().status().as_u16()
    }
}

fn terminate(process: &Guarded) {
    let pid = i32::try_from(process.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}

async fn ends_in_order(mut process: Guarded) {
    let status = until("it has ended", || std::future::ready(process.exited().unwrap())).await;
    assert_eq!(status.code(), Some(0), "{}", process.log_tail());
}

/// Until the datastore counts a request as under way.
async fn is_under_way(datastore: SocketAddr) {
    until("the upload has begun", || async move {
        let (_, text) = page(datastore, "/metrics").await?;
        text.lines().any(|line| line == "terrane_http_requests_under_way 1").then_some(())
    })
    .await;
}

pub(crate) async fn a_datastore_that_is_told_to_stop_says_so_and_finishes_what_is_under_way(
    terrane: &Terrane,
) {
    let token = std::fs::read_to_string(terrane.data().join("controller-token")).unwrap();
    let place = |name: &str| terrane.root().join(name).display().to_string();
    let start = |linger: Duration, listen: SocketAddr| {
        let more = vec![
            format!("--directory={}", place("objects")),
            format!("--keys={}", place("keys")),
            format!("--linger={}", linger.as_secs()),
        ];
        terrane.role("datastore", listen, more)
    };

    // New callers are served for longer than this test takes, and told to go elsewhere.
    let listen = free_address();
    let mut lingering = start(Duration::from_secs(3600), listen);
    ready_page(&mut lingering, listen).await;
    let upload = Upload::begin(listen, &token, ["one ", "half"]).await;
    is_under_way(listen).await;
    terminate(&lingering);
    let text = until("it is not ready any more", || async move {
        page(listen, "/readyz").await.filter(|(code, _)| *code == 503).map(|(_, text)| text)
    })
    .await;
    assert!(text.contains("[-]shutdown failed: told to stop") && text.contains("[+]artefacts ok"), "{text}");
    assert_eq!(page(listen, "/healthz").await.unwrap().0, 200);
    assert_eq!(upload.finish("half").await, 201);
    let (_, text) = page(listen, "/metrics").await.unwrap();
    assert!(text.contains("terrane_http_requests_total{method=\"PUT\",code=\"201\"} 1"), "{text}");
    terminate(&lingering);
    ends_in_order(lingering).await;

    // Nobody new is served, and what is under way is.
    let listen = free_address();
    let mut brief = start(Duration::ZERO, listen);
    ready_page(&mut brief, listen).await;
    let upload = Upload::begin(listen, &token, ["another ", "half"]).await;
    is_under_way(listen).await;
    terminate(&brief);
    until(
        "it takes no more callers",
        || async move { page(listen, "/healthz").await.is_none().then_some(()) },
    )
    .await;
    assert_eq!(upload.finish("half").await, 201);
    ends_in_order(brief).await;
}
