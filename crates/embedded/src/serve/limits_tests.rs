//! What clients that take too much, or nothing, meet at the port: places are limited and come back, and nobody else is held up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use futures::{FutureExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tests::options;
use super::*;

/// Much longer than anything takes; it only ends a wait for something broken.
const PATIENCE: Duration = Duration::from_secs(60);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// HTTP/1.1 by hand, with a small window: what is not read stays with the server.
async fn connect(server: &Server) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(server.authority_pem().as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let stream = socket.connect(server.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

fn token(server: &Server) -> String {
    let kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    line.expect("the kubeconfig has a token").to_owned()
}

/// Sends a request and reads the head of its answer.
async fn ask(connection: &mut TlsStream<TcpStream>, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn healthy(connection: &mut TlsStream<TcpStream>) {
    let head = ask(connection, "/healthz", "").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut body = [0; 2];
    connection.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"ok");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_for_a_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.connections = 2;
    let server = Server::start(options).await.unwrap();
    let (mut first, mut second) = (connect(&server).await, connect(&server).await);
    healthy(&mut first).await;
    healthy(&mut second).await;
    let mut third = Box::pin(connect(&server));
    for _ in 0..50 {
        assert!((&mut third).now_or_never().is_none(), "there are only two places");
        healthy(&mut first).await;
        healthy(&mut second).await;
    }
    drop(first);
    let mut third = tokio::time::timeout(PATIENCE, third).await.expect("a freed place is taken");
    healthy(&mut third).await;
    healthy(&mut second).await;
    server.stop().await;
}

async fn ask_in_clear(connection: &mut TcpStream) {
    connection.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        answer.push(connection.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn in_clear_whoever_says_nothing_or_never_ends_gives_its_place_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", axum::routing::get(async || "ok"));
    let limits = Limits { connections: 3, patience: Duration::from_millis(200), ..Limits::default() };
    let stop = CancellationToken::new();
    let serving = connections::serve(listener, Arc::new(tls::InClear), router, limits, stop.clone());
    let calling = async {
        let mut kept = TcpStream::connect(address).await.unwrap();
        ask_in_clear(&mut kept).await;
        let silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: local").await.unwrap();
        // All places are taken.
        ask_in_clear(&mut TcpStream::connect(address).await.unwrap()).await;
        for mut held in [silent, slow] {
            let mut rest = Vec::new();
            // However it ends: with an answer, nothing, or the connection reset.
            let _ = held.read_to_end(&mut rest).await;
        }
        // Who has asked may ask again later.
        ask_in_clear(&mut kept).await;
        stop.cancel();
    };
    let both = async { tokio::join!(serving, calling) };
    tokio::time::timeout(PATIENCE, both).await.expect("it is held for ever");
}

#[tokio::test]
async fn a_watcher_that_stops_reading_is_cut_off_and_holds_up_nobody() {
    const COUNT: usize = 80;
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.stall = Duration::from_secs(3);
    options.limits.connections = 2;
    let server = Server::start(options).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(Identity::administrator()), "default");
    let start = maps.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();

    let mut stalled = connect(&server).await;
    let credentials = format!("Authorization: Bearer {}\r\n", token(&server));
    let head = ask(&mut stalled, &format!("{MAPS}?watch=1&resourceVersion={start}"), &credentials).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");

    let fast = async {
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = kube::Client::try_from(config.unwrap()).unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let params = WatchParams::default().disable_bookmarks();
        let mut events = std::pin::pin!(maps.watch(&params, &start).await.unwrap());
        let mut seen = Vec::new();
        while seen.len() < COUNT {
            match events.try_next().await.unwrap().unwrap() {
                WatchEvent::Added(map) => seen.push(map.metadata.name.unwrap_or_default()),
                other => panic!("{other:?}"),
            }
        }
        seen
    };
    let name = |number: usize| format!("map-{number:03}");
    let write = async {
        for number in 0..COUNT {
            let map = json!({"metadata": {"name": name(number)}, "data": {"text": "x".repeat(100_000)}});
            maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        }
    };
    let both = async { tokio::join!(fast, write).0 };
    let seen = tokio::time::timeout(PATIENCE, both).await.expect("one that does not read holds up others");
    assert_eq!(seen, (0..COUNT).map(name).collect::<Vec<_>>());

    // There are two places, and both are free.
    let others = async { tokio::join!(connect(&server), connect(&server)) };
    let (mut one, mut other) = tokio::time::timeout(PATIENCE, others).await.expect("it keeps its place");
    healthy(&mut one).await;
    healthy(&mut other).await;
    let mut rest = Vec::new();
    // However it ends: without the end of TLS, or with the connection reset.
    let end = tokio::time::timeout(PATIENCE, stalled.read_to_end(&mut rest)).await;
    let _ = end.expect("the connection is over");
    let last = name(COUNT - 1);
    assert!(!String::from_utf8_lossy(&rest).contains(&last), "it was cut off before the end");
    server.stop().await;
}
