//! Where the API listens: loopback, or wider with certificates that others trust. Whoever holds a taken port is named.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::TcpListener;

pub const DEFAULT_PORT: u16 = 7443;
/// By which the API's address is chosen.
pub(super) const FLAG: &str = "--api-listen";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} can be reached by others, and the certificate made here is trusted on this machine only: give --api-tls-cert and --api-tls-key too, or listen on 127.0.0.1"
    )]
    NoCertificates(SocketAddr),
    #[error("--api-tls-cert needs --api-tls-key: a certificate without its key cannot be served")]
    NoKey,
    #[error("--api-tls-key needs --api-tls-cert: a key without its certificate cannot be served")]
    NoCertificate,
    #[error("port {address} is taken by {holder}; choose another with {flag}")]
    Taken { address: SocketAddr, holder: String, flag: &'static str },
    #[error("{address} cannot be listened on: {source}; choose another with {flag}")]
    Bind { address: SocketAddr, source: io::Error, flag: &'static str },
}

/// An address, and certificates where others can reach it. Cannot hold one without the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    address: SocketAddr,
    certificates: Option<Certificates>,
}

/// PEM files of a certificate chain, leaf first, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    pub chain: PathBuf,
    pub key: PathBuf,
}

impl Default for Listen {
    fn default() -> Self {
        Listen { address: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)), certificates: None }
    }
}

impl Listen {
    /// From the flags as they were given.
    pub fn new(address: SocketAddr, chain: Option<PathBuf>, key: Option<PathBuf>) -> Result<Self, Error> {
        let certificates = match (chain, key) {
            (Some(chain), Some(key)) => Some(Certificates { chain, key }),
            (Some(_), None) => return Err(Error::NoKey),
            (None, Some(_)) => return Err(Error::NoCertificate),
            (None, None) if is_loopback(address.ip()) => None,
            (None, None) => return Err(Error::NoCertificates(address)),
        };
        Ok(Listen { address, certificates })
    }

    /// Loopback, at a port that is free: for tests and for tools that read the kubeconfig.
    pub fn on_any_port() -> Self {
        Listen { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), certificates: None }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    pub(super) async fn bind(&self) -> Result<TcpListener, Error> {
        bind(self.address, FLAG).await
    }
}

/// Listens on an address that was given by `flag`; whoever has it already is named.
pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => Error::Taken { address, holder: holder(address), flag },
        _ => Error::Bind { address, source, flag },
    })
}

pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Who listens on `address`, as far as /proc tells: processes of other users can be seen by root only.
fn holder(address: SocketAddr) -> String {
    let inodes: Vec<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, address))
        .collect();
    match find_process(&inodes) {
        Some((pid, name)) => format!("process {pid} ({name})"),
        None => "another process".to_owned(),
    }
}

/// Inodes of the sockets in a table of /proc/net that listen where `address` would.
fn listening(table: &str, address: SocketAddr) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let socket = |line: &str| -> Option<(IpAddr, u16, u64)> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (*fields.get(1)?, *fields.get(3)?, *fields.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTEN).then_some((parse_address(ip)?, port, inode.parse().ok()?))
    };
    table
        .lines()
        .filter_map(socket)
        .filter(|(ip, port, _)| {
            let overlaps = ip.is_unspecified() || address.ip().is_unspecified();
            *port == address.port() && (overlaps || ip.to_canonical() == address.ip().to_canonical())
        })
        .map(|(_, _, inode)| inode)
        .collect()
}

/// The kernel prints an address as 32-bit words in the machine's own order.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..hex.len())
        .step_by(8)
        .map(|start| u32::from_str_radix(hex.get(start..start + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    match words?.as_slice() {
        [word] => Some(IpAddr::from(*word)),
        [a, b, c, d] => {
            let octets: Vec<u8> = [a, b, c, d].into_iter().flatten().copied().collect();
            Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?))
        }
        _ => None,
    }
}

/// The process that has one of these sockets open. O(open files of all processes); only on the way to an error.
fn find_process(inodes: &[u64]) -> Option<(u32, String)> {
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Processes come and go, and others' are closed to us: skip what cannot be read.
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|target| wanted.iter().any(|wanted| target.as_os_str() == wanted.as_str()));
        if holds {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn nothing_but_loopback_without_certificates() {
        let check = |address: &str, cert: Option<&str>, key: Option<&str>, expected: Result<(), &str>| {
            let answer = Listen::new(address.parse().unwrap(), cert.map(Into::into), key.map(Into::into));
            let answer = answer.map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(answer, expected.map_err(str::to_owned), "{address} {cert:?} {key:?}");
        };
        let loopback = ["127.0.0.1:7443", "127.9.9.9:1", "[::1]:7443", "[::ffff:127.0.0.1]:7443"];
        let wider =
            ["0.0.0.0:7443", "[::]:7443", "192.0.2.7:7443", "[2001:db8::1]:7443", "[::ffff:192.0.2.7]:7443"];
        let (cert, key) = (Some("cert.pem"), Some("key.pem"));
        let no_key =
            Err("--api-tls-cert needs --api-tls-key: a certificate without its key cannot be served");
        let no_cert =
            Err("--api-tls-key needs --api-tls-cert: a key without its certificate cannot be served");
        for address in loopback {
            check(address, None, None, Ok(()));
        }
        for address in wider {
            let why = format!(
                "{address} can be reached by others, and the certificate made here is trusted on this machine only: give --api-tls-cert and --api-tls-key too, or listen on 127.0.0.1"
            );
            check(address, None, None, Err(&why));
        }
        for address in loopback.into_iter().chain(wider) {
            check(address, cert, key, Ok(()));
            check(address, cert, None, no_key);
            check(address, None, key, no_cert);
        }
        assert_eq!(Listen::default().address(), "127.0.0.1:7443".parse().unwrap());
    }

    #[tokio::test]
    async fn whoever_holds_the_port_is_named() {
        let first = Listen::on_any_port().bind().await.unwrap();
        let address = first.local_addr().unwrap();
        let error = Listen::new(address, None, None).unwrap().bind().await.unwrap_err().to_string();
        let pid = std::process::id();
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            error,
            format!(
                "port {address} is taken by process {pid} ({}); choose another with --api-listen",
                name.trim()
            )
        );
    }

    #[test]
    fn kernel_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1D13 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n   1: 0100007F:1D13 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4343 1\n   2: 00000000:1D14 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4444 1\n";
        let check = |address: &str, expected: &[u64]| {
            assert_eq!(listening(table, address.parse().unwrap()), expected, "{address}");
        };
        check("127.0.0.1:7443", &[4242]);
        check("0.0.0.0:7443", &[4242]);
        check("127.0.0.2:7443", &[]);
        check("127.0.0.1:7444", &[4444]);
        assert_eq!(
            parse_address("00000000000000000000000001000000"),
            Some("::1".parse().unwrap()),
            "the loopback of IPv6, on a little-endian machine"
        );
    }
}
