//! Where runners reach the datastore: a port of loopback that a data directory keeps for life.
//!
//! A runner is told its address once and outlives `terrane up`; `--listen` is for people and may be another at every start. So the
//! port is chosen at the first start and written down. `docs/adr/0004-an-address-that-outlives-up.md` has the reasons.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use node::records::Records;
use tokio::net::TcpListener;

const FILE: &str = "runner-address";
/// Below the ports that the kernel gives to outgoing connections: nobody is handed ours while we are away.
const FIRST_PORT: u16 = 21_000;
const PORTS: u16 = 9_000;
const TRIES: u16 = 256;

/// The caller holds the data directory's lock.
pub(super) async fn listen(data: &Path, node_state: &Path) -> anyhow::Result<TcpListener> {
    let file = data.join(FILE);
    if let Some(address) = recorded(&file)? {
        match bind_patiently(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse && !runners_may_use(node_state)? => {
                tracing::info!(%address, "the port for runners is taken; no runner is left, so another is chosen");
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "listen on {address}, where runners of an earlier start report; stop what else listens there, \
                         or give those runners up by removing {}",
                        file.display()
                    )
                });
            }
        }
    }
    let listener = choose(data).await?;
    let address = listener.local_addr().context("find the address for runners")?;
    write(&file, address).with_context(|| format!("write {}", file.display()))?;
    Ok(listener)
}

/// A process that has just ended, or is just being started, may hold a port for a moment more.
async fn bind_patiently(address: SocketAddr) -> std::io::Result<TcpListener> {
    const TRIES: u32 = 10;
    const PAUSE: Duration = Duration::from_millis(30);
    for _ in 1..TRIES {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::time::sleep(PAUSE).await,
            other => return other,
        }
    }
    TcpListener::bind(address).await
}

fn recorded(file: &Path) -> anyhow::Result<Option<SocketAddr>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    let address: SocketAddr = text.trim().parse().with_context(|| {
        format!("{} does not hold an address; remove it, and another is chosen", file.display())
    })?;
    if !address.ip().is_loopback() {
        bail!("{} holds {address}, which is not loopback; remove it, and another is chosen", file.display());
    }
    Ok(Some(address))
}

/// Whether something that an earlier start has told the address may still run. O(pods on record).
fn runners_may_use(node_state: &Path) -> anyhow::Result<bool> {
    let pods = Records::open(node_state)?.pod_list()?;
    Ok(pods.iter().any(|pod| !pod.released))
}

/// Begins at a port that follows from the directory, so that two of them rarely try the same ones.
async fn choose(data: &Path) -> anyhow::Result<TcpListener> {
    let seed = data.as_os_str().as_encoded_bytes().iter();
    let seed = seed.fold(0_u16, |hash, byte| hash.wrapping_mul(31).wrapping_add(u16::from(*byte)));
    for offset in 0..TRIES {
        let port = FIRST_PORT + seed.wrapping_add(offset) % PORTS;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context("listen on loopback for runners"),
        }
    }
    bail!("{TRIES} ports of loopback above {FIRST_PORT} were tried for runners, and all are taken")
}

/// Whole or not at all, and on disk before a runner is told.
fn write(file: &Path, address: SocketAddr) -> std::io::Result<()> {
    let next = file.with_extension("next");
    let mut out = std::fs::File::create(&next)?;
    std::io::Write::write_all(&mut out, format!("{address}\n").as_bytes())?;
    out.sync_all()?;
    std::fs::rename(next, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use node::records::PodRecord;

    use super::*;

    #[tokio::test]
    async fn the_port_stays_unless_it_is_taken_and_nobody_needs_it() {
        let data = tempfile::tempdir().unwrap();
        let state = data.path().join("node");
        let first = listen(data.path(), &state).await.unwrap();
        let address = first.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        drop(first);
        let taken = listen(data.path(), &state).await.unwrap();
        assert_eq!(taken.local_addr().unwrap(), address, "the same after a restart");

        let records = Records::open(&state).unwrap();
        let mut pod = PodRecord {
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            directory: state.join("run/u"),
            owner: None,
            stop: None,
            released: false,
        };
        records.pod_put(&pod).unwrap();
        let refused = format!("{:#}", listen(data.path(), &state).await.unwrap_err());
        assert!(refused.contains("where runners of an earlier start report"), "{refused}");
        assert!(refused.contains("runner-address"), "{refused}");

        pod.released = true;
        records.pod_put(&pod).unwrap();
        let other = listen(data.path(), &state).await.unwrap().local_addr().unwrap();
        assert_ne!(other, address);
        assert_eq!(recorded(&data.path().join(FILE)).unwrap(), Some(other));
    }

    #[tokio::test]
    async fn a_file_that_holds_something_else_is_named() {
        let data = tempfile::tempdir().unwrap();
        for text in ["", "nonsense", "0.0.0.0:80"] {
            std::fs::write(data.path().join(FILE), text).unwrap();
            let error = format!("{:#}", listen(data.path(), &data.path().join("node")).await.unwrap_err());
            assert!(error.contains("remove it, and another is chosen"), "{error}");
        }
    }
}
