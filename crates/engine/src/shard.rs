//! The fleet in parts: a namespace belongs to one of several shards by the hash of its name, and each shard has a leader of its own.
//! Whoever holds two more than another gives one away when asked.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use api::text::Sha256;
use k8s_openapi::api::coordination::v1::Lease;

use crate::leader::LEASE;

/// On a Lease: into how many shards its holder divides the fleet. Without it, one.
pub const SHARDS: &str = "terrane.dev/shards";
/// On a Lease: who holds fewer shards and would have this one.
pub const ASKED_BY: &str = "terrane.dev/asked-by";

/// One of several parts of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u16,
    of: NonZeroU16,
}

impl Shard {
    /// The fleet in one part.
    pub const WHOLE: Self = Self { index: 0, of: NonZeroU16::MIN };

    pub fn all(of: NonZeroU16) -> impl Iterator<Item = Self> {
        (0..of.get()).map(move |index| Self { index, of })
    }

    pub const fn index(self) -> u16 {
        self.index
    }

    pub const fn of(self) -> u16 {
        self.of.get()
    }

    /// Whether the namespace is of this shard: of one shard exactly, whoever asks.
    pub fn holds(self, namespace: &str) -> bool {
        if self.of == NonZeroU16::MIN {
            return true;
        }
        let hash = Sha256::of(namespace.as_bytes());
        let start = hash.as_str().get(..15).unwrap_or_default();
        // Fifteen hex digits fit, and a digest is nothing else.
        let number = u64::from_str_radix(start, 16).unwrap_or_default();
        number % u64::from(self.of.get()) == u64::from(self.index)
    }

    /// The name of its Lease. The first one has the name that a fleet in one part has: there is always one that both want.
    pub fn lease(self) -> String {
        match self.index {
            0 => LEASE.to_owned(),
            index => format!("{LEASE}-{index}"),
        }
    }
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

/// Into how many shards the holder of a Lease divides the fleet.
pub fn divided_by(lease: &Lease) -> u16 {
    annotation(lease, SHARDS).and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub fn asked_by(lease: &Lease) -> Option<&str> {
    annotation(lease, ASKED_BY)
}

/// Whether a Lease is one of an election of controllers.
pub fn is_of_controllers(lease: &Lease) -> bool {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    let rest = name.strip_prefix(LEASE);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|index| index.parse::<u16>().is_ok())
    })
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The Lease that this candidate should ask for: one of whoever holds the most, if that is at least two more than its own. It asks for
/// one at a time. O(shards).
pub fn wish<'a>(leases: &'a [Lease], identity: &str) -> Option<&'a Lease> {
    let ours: Vec<&Lease> = leases.iter().filter(|lease| is_of_controllers(lease)).collect();
    if ours.iter().any(|lease| asked_by(lease) == Some(identity)) {
        return None;
    }
    let mut held: BTreeMap<&str, Vec<&Lease>> = BTreeMap::new();
    for lease in ours {
        if let Some(holder) = holder(lease) {
            held.entry(holder).or_default().push(lease);
        }
    }
    let own = held.remove(identity).map_or(0, |own| own.len());
    let richest = held.into_values().max_by_key(Vec::len)?;
    if richest.len() < own + 2 {
        return None;
    }
    richest.into_iter().rfind(|lease| asked_by(lease).is_none())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use kube::core::ObjectMeta;

    use super::*;

    fn lease(name: &str, holder: &str, asked: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: Some([(ASKED_BY.to_owned(), asked.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec { holder_identity: Some(holder.to_owned()), ..LeaseSpec::default() }),
        }
    }

    #[test]
    fn a_namespace_is_of_one_shard_and_shards_are_alike_in_size() {
        let of = NonZeroU16::new(4).unwrap();
        let mut sizes = [0_u32; 4];
        for number in 0..1000 {
            let namespace = format!("team-{number}");
            let of_it: Vec<u16> =
                Shard::all(of).filter(|shard| shard.holds(&namespace)).map(Shard::index).collect();
            assert_eq!(of_it.len(), 1, "{namespace}");
            *sizes.get_mut(usize::from(*of_it.first().unwrap())).unwrap() += 1;
        }
        assert!(sizes.iter().all(|size| (200..300).contains(size)), "{sizes:?}");
        assert!(Shard::WHOLE.holds("anything"));
        // A later version must put it where this one does.
        assert!(Shard::all(of).find(|shard| shard.holds("default")).is_some_and(|shard| shard.index() == 3));
    }

    #[test]
    fn the_leases_of_shards_have_names_that_are_known_again() {
        let names: Vec<String> = Shard::all(NonZeroU16::new(3).unwrap()).map(Shard::lease).collect();
        assert_eq!(names, ["terrane-controller", "terrane-controller-1", "terrane-controller-2"]);
        for name in names {
            assert!(is_of_controllers(&lease(&name, "", "")), "{name}");
        }
        assert!(!is_of_controllers(&lease("terrane-controller-x", "", "")));
        assert!(!is_of_controllers(&lease("terrane-runners", "", "")));
    }

    #[test]
    fn whoever_holds_two_less_asks_for_one_and_for_one_at_a_time() {
        let names =
            ["terrane-controller", "terrane-controller-1", "terrane-controller-2", "terrane-controller-3"];
        let leases = |holders: [(&str, &str); 4]| -> Vec<Lease> {
            names.iter().zip(holders).map(|(name, (holder, asked))| lease(name, holder, asked)).collect()
        };
        let wished = |holders| {
            let leases = leases(holders);
            wish(&leases, "me").and_then(|lease| lease.metadata.name.clone())
        };
        let rich = ("rich", "");
        assert_eq!(wished([rich, rich, rich, rich]).as_deref(), Some("terrane-controller-3"));
        assert_eq!(wished([rich, rich, rich, ("rich", "other")]).as_deref(), Some("terrane-controller-2"));
        assert_eq!(wished([rich, rich, rich, ("rich", "me")]), None, "it has asked");
        assert_eq!(wished([rich, rich, rich, ("me", "")]).as_deref(), Some("terrane-controller-2"));
        assert_eq!(wished([rich, rich, ("me", ""), ("me", "")]), None, "both have two");
        assert_eq!(wished([("me", ""), ("me", ""), ("me", ""), rich]), None, "it is the rich one");
        assert_eq!(wished([("", ""), ("", ""), ("", ""), ("", "")]), None, "nobody holds any");
    }
}
