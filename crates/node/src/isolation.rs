//! What keeps one pod's processes from another pod's files, and from the node's own.
//!
//! As root each pod has a user and group of its own. As an ordinary user the pods share the user's rights, so the
//! kernel's Landlock confines them to their own directory and the system's programs. Where neither works the caller
//! learns it from [`Isolation::None`] and can say so at start. Which files a pod has is decided elsewhere.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope, path_beneath_rules,
};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

/// How this node separates pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// Each pod has a user id of its own out of this range.
    Users(UserRange),
    Landlock,
    /// Pods can read whatever the node can read.
    None {
        because: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRange {
    pub first: u32,
    pub count: u32,
}

/// How one container is confined; entered by the thread of the shim that starts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confinement {
    User { id: u32 },
    Landlock { read: Vec<PathBuf>, write: Vec<PathBuf> },
    None,
}

/// Where programs, libraries and the machine's configuration are; a confined pod reads and executes from here.
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/bin",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/opt",
    "/proc",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sbin",
    "/sys",
    "/usr",
];

/// Devices that hold nothing of anybody's. `/dev/shm` is not among them: it is shared memory.
const DEVICES: &[&str] = &[
    "/dev/full",
    "/dev/null",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

const USERS_OF_A_NODE: u32 = 1 << 16;
const FIRST_USER: u32 = 2_000_000_000;
const NODES_OF_A_MACHINE: u64 = 1024;

impl Isolation {
    /// The strongest separation that works here. `state` is the node's directory: two nodes of one machine get
    /// different users from it.
    pub fn detect(state: &Path) -> Isolation {
        if rustix::process::geteuid().is_root() {
            let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
            if let Some(range) = choose_range(&map, state) {
                return Isolation::Users(range);
            }
        }
        Isolation::detect_without_root()
    }

    /// What an ordinary user gets, also when asked for by root.
    pub fn detect_without_root() -> Isolation {
        let supported = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create);
        match supported {
            Ok(_) => Isolation::Landlock,
            Err(error) => Isolation::None {
                because: format!(
                    "the node does not run as root, and this kernel offers no Landlock: {error}"
                ),
            },
        }
    }
}

/// A block of users that nobody else is likely to use: far above people and services where the whole range is
/// mapped, the upper end of what there is inside a user namespace.
fn choose_range(uid_map: &str, state: &Path) -> Option<UserRange> {
    let mapped = uid_map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().map(|field| field.parse::<u64>().ok());
            let (first, _, count) = (fields.next()??, fields.next()??, fields.next()??);
            Some((first, first.saturating_add(count)))
        })
        .max_by_key(|(first, end)| end - first)?;
    let block = fnv1a(state.as_os_str().as_encoded_bytes()) % NODES_OF_A_MACHINE;
    let first = u64::from(FIRST_USER) + block * u64::from(USERS_OF_A_NODE);
    if mapped.0 <= first && first + u64::from(USERS_OF_A_NODE) <= mapped.1 {
        return Some(UserRange { first: u32::try_from(first).ok()?, count: USERS_OF_A_NODE });
    }
    // 65534 is nobody, and the kernel's answer for users it cannot map: never a pod.
    let end = mapped.1.min(65_534);
    let first = end.checked_sub(4096).filter(|first| *first > mapped.0.max(1000))?;
    Some(UserRange { first: u32::try_from(first).ok()?, count: 4096 })
}

/// A small hash that stays the same over versions and machines; nothing secret rests on it.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl UserRange {
    /// A user that no live pod has. It goes round, so that a user is reused as late as possible and a file that a
    /// past pod left in a shared place rarely meets a new owner. O(live pods).
    pub fn allocate(&self, taken: &BTreeSet<u32>) -> Option<u32> {
        let end = self.first.saturating_add(self.count);
        let after = taken.range(self.first..end).next_back().map_or(self.first, |last| last + 1);
        (after..end).chain(self.first..after).find(|id| !taken.contains(id))
    }
}

/// What a Landlock domain lets a pod read: the system, the given places, and nothing that contains `private`.
pub fn readable(places: impl IntoIterator<Item = PathBuf>, private: &[&Path]) -> Vec<PathBuf> {
    let mut read: Vec<PathBuf> = SYSTEM_DIRECTORIES.iter().map(PathBuf::from).collect();
    read.extend(places);
    read.retain(|place| !private.iter().any(|path| path.starts_with(place)));
    read
}

impl Confinement {
    /// Binds the calling thread and every process that it starts from now on. There is no way back.
    ///
    /// The user is not changed here but by the child between fork and exec, where the standard library also drops
    /// all supplementary groups of a root parent.
    pub fn enter(&self) -> io::Result<()> {
        // Set-user-id programs would lead out of every confinement.
        rustix::thread::set_no_new_privs(true)?;
        drop_capabilities()?;
        match self {
            Confinement::User { .. } | Confinement::None => Ok(()),
            Confinement::Landlock { read, write } => restrict(read, write).map_err(io::Error::other),
        }
    }
}

/// What a program that is executed by root could gain. Without it even root's processes are held by Landlock, where
/// one capability opens the memory of every process.
fn drop_capabilities() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) => rustix::thread::remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel knows no more of them.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the kernel refused the Landlock rules: {0}")]
    Ruleset(#[from] landlock::RulesetError),
    #[error("the kernel did not enforce the Landlock rules")]
    NotEnforced,
}

fn restrict(read: &[PathBuf], write: &[PathBuf]) -> Result<(), Error> {
    let abi = ABI::V6;
    let all = AccessFs::from_all(abi);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::ReadDir;
    // Older kernels know fewer rights; what they know is enforced. Scoping keeps a pod from signalling its shim,
    // its node or another pod, which all have the same user.
    let status = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(abi)))?
        .add_rules(path_beneath_rules(DEVICES, devices))?
        .add_rules(path_beneath_rules(write, all))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(Error::NotEnforced),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_range_is_taken_where_the_namespace_has_users_for_it() {
        let state = Path::new("/srv/terrane");
        let whole = choose_range("         0          0 4294967295\n", state).unwrap();
        assert!(whole.first >= FIRST_USER && whole.count == USERS_OF_A_NODE);
        assert!(whole.first.checked_add(whole.count).is_some_and(|end| end < 1 << 31));
        let other = choose_range("0 0 4294967295", Path::new("/srv/other")).unwrap();
        assert_ne!(whole.first, other.first);
        let namespace = choose_range("0 100000 65536", state).unwrap();
        assert_eq!(namespace, UserRange { first: 61_438, count: 4096 });
        assert_eq!(choose_range("0 1000 1", state), None);
        assert_eq!(choose_range("", state), None);
    }

    #[test]
    fn users_are_unique_among_live_pods_and_reused_late() {
        let range = UserRange { first: 10, count: 3 };
        let mut taken = BTreeSet::new();
        for expected in [Some(10), Some(11), Some(12), None] {
            let got = range.allocate(&taken);
            assert_eq!(got, expected);
            taken.extend(got);
        }
        taken.remove(&10);
        taken.remove(&11);
        assert_eq!(range.allocate(&taken), Some(10));
        taken.remove(&12);
        taken.insert(10);
        assert_eq!(range.allocate(&taken), Some(11), "10 was given last, so 11 is next");
    }

    #[test]
    fn nothing_that_contains_the_nodes_directory_is_readable() {
        let private = [Path::new("/usr/local/share/terrane/state")];
        let read = readable([PathBuf::from("/home/ann/bin")], &private);
        assert!(!read.contains(&PathBuf::from("/usr")));
        assert!(read.contains(&PathBuf::from("/home/ann/bin")));
        assert!(read.contains(&PathBuf::from("/etc")));
    }
}
