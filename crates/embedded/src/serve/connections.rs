//! Connections of the port: accepted up to a number, each served by the router, all ended together.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::listen::is_loopback;
use super::stall::Impatient;
use super::tls::{Came, Encryption, Spoken};

/// What one client, or many, may take of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; further ones wait to be accepted.
    pub connections: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
    /// For the TLS handshake, and for the head of the first request.
    pub patience: Duration,
    /// For a caller that keeps its connection and asks nothing, or is slow with the head of a further request. Longer than clients keep one,
    /// so that none is closed under a request that is on its way.
    pub idle: Duration,
    /// For a client that reads nothing of what it is sent: then its connection is ended.
    pub stall: Duration,
    /// Watches at a time; further ones are told to come back.
    pub watches: usize,
    /// For requests under way when the server stops.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 2_000,
            streams: 1_000,
            header_bytes: 64 * 1024,
            patience: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            stall: Duration::from_secs(60),
            watches: 10_000,
            farewell: Duration::from_secs(3),
        }
    }
}

/// Accepts and serves until `stop`, then lets each connection finish what it is doing.
pub(super) async fn serve<E: Encryption>(
    listener: TcpListener,
    tls: Arc<E>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        // A closed semaphore cannot happen, nobody closes it; stopping is then the right thing to do.
        let accepted = async {
            let place = Arc::clone(&room).acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        tokio::select! {
            () = stop.cancelled() => break,
            // Ended connections are taken away as they end, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            accepted = accepted => {
                let Some((place, accepted)) = accepted else { break };
                match accepted {
                    Ok((stream, _peer)) => {
                        let connection = serve_one(stream, Arc::clone(&tls), router.clone(), limits.clone(), stop.clone());
                        connections.spawn(async move {
                            connection.await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: others will be freed.
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.farewell, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// This machine calls itself by loopback, or by an address of its own that is then at both ends.
fn came(local: IpAddr, peer: IpAddr) -> Came {
    if is_loopback(local) || local == peer { Came::FromHere } else { Came::FromElsewhere }
}

async fn serve_one<E: Encryption>(
    stream: TcpStream,
    tls: Arc<E>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let came = match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => came(local.ip(), peer.ip()),
        (Err(_), _) | (_, Err(_)) => Came::FromElsewhere,
    };
    // Small answers must not wait for the acknowledgement of the ones before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    let (stream, spoken) = match timeout(limits.patience, tls.wrap(came, stream)).await {
        Ok(Ok(wrapped)) => wrapped,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!("a TLS handshake took too long"),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(usize::try_from(limits.header_bytes).unwrap_or(64 * 1024).max(16 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes)
        .keep_alive_interval(Duration::from_secs(30));
    // Whoever says nothing is waited for by the timers of these; finding out what is spoken would have none.
    let builder = match spoken {
        Spoken::Http1 => builder.http1_only(),
        Spoken::Http2 => builder.http2_only(),
    };
    let (asked, router) = (Notify::new(), TowerToHyperService::new(router));
    let service = service_fn(|request: http::Request<Incoming>| {
        asked.notify_one();
        router.call(request)
    });
    let stream = TokioIo::new(Impatient::new(stream, limits.stall));
    let connection = builder.serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = silence(&asked, limits.patience) => return tracing::debug!("a connection asked for nothing"),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Ends when nothing was asked for so long, and never once something was.
async fn silence(asked: &Notify, patience: Duration) {
    if timeout(patience, asked.notified()).await.is_ok() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn this_machine_is_told_from_others() {
        for (local, peer, here) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("::1", "::1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("2001:db8::1", "2001:db8::2", false),
        ] {
            let came = came(local.parse().unwrap(), peer.parse().unwrap());
            assert_eq!(matches!(came, Came::FromHere), here, "{local} {peer}");
        }
    }
}
