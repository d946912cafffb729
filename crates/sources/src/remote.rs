//! What a repository's URL leads to: which transport, which host, and whether that host may be asked. The check looks
//! at the resolved addresses and hands the very same addresses to git, so that a name that changes its mind between
//! check and use gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::text::GitUrl;

use crate::error::Error;

/// Whether `file://` URLs are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileUrls {
    #[default]
    Refused,
    Allowed,
}

/// Which addresses may be connected to for somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Only those that the whole world could reach: for an administrator whose tenants have no business inside.
    NotPrivate,
    /// Neither this machine nor link-local ones, where clouds serve credentials. Private ranges are, because most forges live there.
    #[default]
    NotOwn,
    /// This machine too, for a forge beside us; link-local ones still not.
    OwnToo,
}

impl Addresses {
    /// For a place that the administrator has named: a mirror may be where nobody else may point.
    pub(crate) fn for_named_place(self) -> Self {
        match self {
            Self::NotPrivate | Self::NotOwn => Self::NotOwn,
            Self::OwnToo => Self::OwnToo,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    Https { url: String, host: String, port: u16, pinned: Vec<IpAddr> },
    Ssh { url: String, host: String, port: u16, pinned: Option<IpAddr> },
    File { url: String },
}

impl Remote {
    pub(crate) fn parse(url: &GitUrl) -> Result<Self, Error> {
        let text = url.as_str();
        let bad = |why: &str| Error::Forbidden { url: text.to_owned(), why: why.to_owned() };
        if text.starts_with("file://") {
            return Ok(Self::File { url: text.to_owned() });
        }
        let (is_https, authority) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest.split(['/', '?', '#']).next().unwrap_or_default())
        } else if let Some(rest) = text.strip_prefix("ssh://") {
            (false, rest.split('/').next().unwrap_or_default())
        } else {
            (false, text.split(':').next().unwrap_or_default())
        };
        let host_port = authority.rsplit('@').next().unwrap_or_default();
        let default_port = if is_https { 443 } else { 22 };
        let (host, port) =
            split_port(host_port, default_port).ok_or_else(|| bad("its port is not a number"))?;
        let plain = |host: &str| {
            !host.is_empty()
                && !host.starts_with('-')
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b))
        };
        if !plain(&host) {
            return Err(bad("its host is not a host name or an address"));
        }
        let url = text.to_owned();
        Ok(if is_https {
            Self::Https { url, host, port, pinned: Vec::new() }
        } else {
            Self::Ssh { url, host, port, pinned: None }
        })
    }

    /// Resolves the host once, refuses it when any of its addresses is not allowed, and remembers the addresses.
    pub(crate) async fn check(mut self, files: FileUrls, addresses: Addresses) -> Result<Self, Error> {
        let (url, host, port) = match &self {
            Self::File { url } => {
                return match files {
                    FileUrls::Allowed => Ok(self),
                    FileUrls::Refused => Err(Error::Forbidden {
                        url: url.clone(),
                        why: "file URLs are not enabled by the administrator of this Terrane".to_owned(),
                    }),
                };
            }
            Self::Https { url, host, port, .. } | Self::Ssh { url, host, port, .. } => {
                (url.clone(), host.clone(), *port)
            }
        };
        let found = resolve(&host, port, addresses).await.map_err(|why| match why {
            NoAddress::Unresolved(error) => Error::Unreachable {
                url: url.clone(),
                detail: format!("the host {host} cannot be resolved ({error})"),
            },
            NoAddress::Refused(refused) => Error::Forbidden {
                url: url.clone(),
                why: format!(
                    "its host {host} has the address {refused}, which is not a place for a repository"
                ),
            },
        })?;
        match &mut self {
            Self::Https { pinned, .. } => *pinned = found,
            Self::Ssh { pinned, .. } => *pinned = found.first().copied(),
            Self::File { .. } => {}
        }
        Ok(self)
    }

    pub(crate) fn protocol(&self) -> &'static str {
        match self {
            Self::Https { .. } => "https",
            Self::Ssh { .. } => "ssh",
            Self::File { .. } => "file",
        }
    }

    /// The pin in the form of git's `http.curloptResolve`.
    pub(crate) fn curl_pin(&self) -> Option<String> {
        let Self::Https { host, port, pinned, .. } = self else { return None };
        if pinned.is_empty() || host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let list: Vec<String> = pinned
            .iter()
            .map(|address| match address {
                IpAddr::V4(v4) => v4.to_string(),
                IpAddr::V6(v6) => format!("[{v6}]"),
            })
            .collect();
        Some(format!("{host}:{port}:{}", list.join(",")))
    }
}

/// Why a host has no address that may be connected to.
#[derive(Debug)]
pub enum NoAddress {
    Unresolved(std::io::Error),
    Refused(IpAddr),
}

/// The addresses of a host, unless one of them is not allowed. Who connects takes these and asks no second time.
pub async fn resolve(host: &str, port: u16, rule: Addresses) -> Result<Vec<IpAddr>, NoAddress> {
    let found = tokio::net::lookup_host((host, port)).await.map_err(NoAddress::Unresolved)?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).take(16).collect();
    match found.iter().find(|address| !may_connect(**address, rule)) {
        Some(refused) => Err(NoAddress::Refused(*refused)),
        None => Ok(found),
    }
}

fn split_port(text: &str, default: u16) -> Option<(String, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) = rest.split_once(']')?;
        let port = match tail.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => default,
        };
        return Some((host.to_ascii_lowercase(), port));
    }
    match text.split_once(':') {
        Some((host, port)) => Some((host.to_ascii_lowercase(), port.parse().ok()?)),
        None => Some((text.to_ascii_lowercase(), default)),
    }
}

pub(crate) fn may_connect(address: IpAddr, rule: Addresses) -> bool {
    let v4 = match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(v6) => embedded_v4(v6),
    };
    let never = match v4 {
        Some(v4) => v4.is_link_local() || v4.is_unspecified() || v4.is_broadcast() || v4.is_multicast(),
        None => false,
    } || match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => {
            let [first, ..] = v6.segments();
            // fe80::/10 is link-local; fd00:ec2::254 is where one cloud serves credentials.
            first & 0xffc0 == 0xfe80
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        }
    };
    let own =
        address.is_loopback() || v4.is_some_and(|v4| v4.is_loopback() || v4.octets().first() == Some(&0));
    match rule {
        Addresses::NotPrivate => !never && !own && !is_private(address, v4),
        Addresses::NotOwn => !never && !own,
        Addresses::OwnToo => !never,
    }
}

/// Whether it lies in a range that is used inside of networks only. `v4` is the address itself, or the one inside of it.
fn is_private(address: IpAddr, v4: Option<Ipv4Addr>) -> bool {
    let inside_v4 = v4.is_some_and(|v4| {
        let [first, second, third, _] = v4.octets();
        v4.is_private()
            // Behind a carrier's NAT, which clouds use for nodes and services too.
            || (first == 100 && second & 0xc0 == 64)
            // Of protocols, and of benchmarks.
            || (first == 192 && second == 0 && third == 0)
            || (first == 198 && second & 0xfe == 18)
            // Reserved; some networks use it inside.
            || first >= 240
    });
    let inside_v6 = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => {
            let [first, second, third, ..] = v6.segments();
            // fc00::/7 is unique local, fec0::/10 was site-local, and 64:ff9b:1::/48 translates to addresses of a network's own choice.
            first & 0xfe00 == 0xfc00
                || first & 0xffc0 == 0xfec0
                || (first, second, third) == (0x64, 0xff9b, 1)
        }
    };
    inside_v4 || inside_v6
}

/// The IPv4 address inside a mapped, compatible, 6to4 or NAT64 one: the usual ways around an address filter.
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let low = |high: u16, low: u16| {
        let ([p, q], [r, s]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(p, q, r, s)
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) => Some(low(g, h)),
        (0, 0, 0, 0, 0, 0) if (g, h) > (0, 1) => Some(low(g, h)),
        (0x2002, _, _, _, _, _) => Some(low(b, c)),
        (0x64, 0xff9b, 0, 0, 0, 0) => Some(low(g, h)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(url: &str) -> Remote {
        Remote::parse(&GitUrl::new(url).unwrap()).unwrap()
    }

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(
            parse("https://Host.example:8443/a.git"),
            Remote::Https {
                url: "https://Host.example:8443/a.git".to_owned(),
                host: "host.example".to_owned(),
                port: 8443,
                pinned: Vec::new()
            }
        );
        assert!(matches!(parse("git@host:a/b"), Remote::Ssh { host, port: 22, .. } if host == "host"));
        assert!(
            matches!(parse("ssh://git@[::1]:2222/a"), Remote::Ssh { host, port: 2222, .. } if host == "::1")
        );
        assert!(matches!(parse("file:///srv/a"), Remote::File { .. }));
    }

    #[test]
    fn addresses_that_lead_inside_are_refused_in_every_disguise() {
        let never = [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "0.0.0.0",
            "::",
            "224.0.0.1",
        ];
        for text in never {
            assert!(!may_connect(text.parse().unwrap(), Addresses::OwnToo), "{text}");
        }
        for text in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.8.8.8"] {
            assert!(!may_connect(text.parse().unwrap(), Addresses::NotOwn), "{text}");
            assert!(may_connect(text.parse().unwrap(), Addresses::OwnToo), "{text}");
        }
        for text in ["10.0.0.1", "192.0.2.7", "2001:db8::1", "fd12::1"] {
            assert!(may_connect(text.parse().unwrap(), Addresses::NotOwn), "{text}");
        }
    }

    #[test]
    fn private_ranges_are_refused_where_the_administrator_says_so() {
        let private = [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "198.18.77.1",
            "198.19.255.255",
            "240.0.0.1",
            "fd12::1",
            "fc00::1",
            "fec0::1",
            "64:ff9b:1::1",
            "::ffff:10.0.0.1",
            "::a00:1",
            "2002:c0a8:101::",
            "64:ff9b::6440:1",
        ];
        for text in private {
            let address: IpAddr = text.parse().unwrap();
            assert!(!may_connect(address, Addresses::NotPrivate), "{text}");
            assert!(may_connect(address, Addresses::NotOwn), "{text}");
        }
        for text in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0"] {
            assert!(!may_connect(text.parse().unwrap(), Addresses::NotPrivate), "{text}");
        }
        let public = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "100.63.255.255",
            "100.128.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "2001:4860::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ];
        for text in public {
            assert!(may_connect(text.parse().unwrap(), Addresses::NotPrivate), "{text}");
        }
    }

    #[tokio::test]
    async fn a_file_url_needs_permission() {
        let refused = parse("file:///srv/a").check(FileUrls::Refused, Addresses::NotOwn).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "file:///srv/a is not allowed here: file URLs are not enabled by the administrator of this Terrane"
        );
    }

    #[test]
    fn the_checked_addresses_are_pinned() {
        let remote = Remote::Https {
            url: String::new(),
            host: "forge.example".to_owned(),
            port: 443,
            pinned: vec!["192.0.2.7".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        };
        assert_eq!(remote.curl_pin().unwrap(), "forge.example:443:192.0.2.7,[2001:db8::1]");
    }
}
