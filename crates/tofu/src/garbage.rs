//! How often a tool collects its garbage. Both tools are Go programs, which begin to collect at a few megabytes: of a command that lives for
//! a tenth of a second, a quarter of the processor's work is that. Where the tool works alone it may let more gather first, up to a share of
//! the memory that there is, from where on it collects as eagerly as it must.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Collect when what is in use has grown fivefold; Go's own choice is twofold.
const SELDOM: &str = "400";

/// Commands that start no program of the code's: an apply may, by its provisioners, and would hand these variables on to it.
const ALONE: [&str; 3] = ["init", "plan", "show"];

/// What is added to the environment of this command in this directory. Nothing where somebody has said how to collect, and nothing where
/// providers are at work beside the tool: each would take that much more memory, and who knows how many there are.
pub(crate) fn variables(
    arguments: &[OsString],
    directory: &Path,
    environment: &[(OsString, OsString)],
) -> Vec<(OsString, OsString)> {
    let command = arguments.first().map(OsString::as_os_str).unwrap_or_default();
    let is_said = environment.iter().any(|(name, _)| name == "GOGC" || name == "GOMEMLIMIT");
    if is_said || !ALONE.iter().any(|alone| command == OsStr::new(alone)) {
        return Vec::new();
    }
    // `init` installs providers and starts none.
    if command != OsStr::new("init") && has_providers(directory, environment) {
        return Vec::new();
    }
    match limit() {
        Some(limit) => vec![
            (OsString::from("GOGC"), OsString::from(SELDOM)),
            (OsString::from("GOMEMLIMIT"), OsString::from(limit.to_string())),
        ],
        None => Vec::new(),
    }
}

/// Whether `init` has put providers where the tool takes them from. What cannot be looked at counts as if it had.
fn has_providers(directory: &Path, environment: &[(OsString, OsString)]) -> bool {
    let data = environment.iter().rev().find(|(name, _)| name == "TF_DATA_DIR").map(|(_, value)| value);
    let data = data.map_or(OsStr::new(".terraform"), OsString::as_os_str);
    // Before version 0.14 they were kept elsewhere.
    ["providers", "plugins"].iter().any(|kept| directory.join(data).join(kept).try_exists().unwrap_or(true))
}

/// How many bytes the tool may let gather: three quarters of what its container may use, else a quarter of the machine's memory, which
/// others use as well.
fn limit() -> Option<u64> {
    let machine = machine_memory(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let places = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let container = places
        .iter()
        .filter_map(|place| std::fs::read_to_string(place).ok())
        // "max", and a number beyond all memory, mean that there is no limit.
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .find(|limit| *limit < machine);
    Some(container.map_or(machine / 4, |limit| limit / 4 * 3))
}

fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(command: &str, directory: &Path, environment: &[(&str, &str)]) -> Vec<OsString> {
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        let added = variables(&[OsString::from(command)], directory, &environment);
        added.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn only_a_tool_that_works_alone_lets_garbage_gather() {
        let both = ["GOGC", "GOMEMLIMIT"].map(OsString::from);
        let nothing: [OsString; 0] = [];
        let root = tempfile::tempdir().unwrap();
        let here = root.path();
        assert_eq!(names("init", here, &[]), both);
        assert_eq!(names("plan", here, &[]), both);
        assert_eq!(names("apply", here, &[]), nothing, "a provisioner's program would be told as well");
        assert_eq!(names("plan", here, &[("GOGC", "50")]), nothing, "somebody chose");
        assert_eq!(names("plan", here, &[("GOMEMLIMIT", "1GiB")]), nothing);

        std::fs::create_dir_all(here.join(".terraform/providers")).unwrap();
        assert_eq!(names("plan", here, &[]), nothing, "its providers would take more memory too");
        assert_eq!(names("init", here, &[]), both, "which starts none of them");
        std::fs::create_dir_all(here.join("data/plugins")).unwrap();
        assert_eq!(names("plan", here, &[("TF_DATA_DIR", "data")]), nothing);
        assert_eq!(names("plan", here, &[("TF_DATA_DIR", "empty")]), both);
    }

    #[test]
    fn what_gathers_stays_below_the_memory_of_the_machine() {
        let machine = machine_memory(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        let limit = limit().unwrap();
        assert!(limit > 0 && limit <= machine / 4 * 3, "{limit} of {machine}");
        assert_eq!(machine_memory("MemTotal:       24630172 kB\nMemFree: 1 kB\n"), Some(24_630_172 * 1024));
        assert_eq!(machine_memory("MemFree: 1 kB\n"), None);
    }
}
