//! What some tests need of the machine. Where it is missing they fail, unless whoever runs them says that it is.

use anyhow::{Result, bail};

/// Words separated by commas: what this machine is known not to have. CONTRIBUTING.md tells of it.
const VARIABLE: &str = "TERRANE_TESTS_WITHOUT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Giving a process another user.
    Root,
    /// A kernel that confines processes without root.
    Landlock,
    /// Mounting file systems.
    Mounts,
}

impl Need {
    const ALL: [Need; 3] = [Need::Root, Need::Landlock, Need::Mounts];

    fn word(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Landlock => "landlock",
            Need::Mounts => "mounts",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Need::Root => "only root can give a process a user of its own",
            Need::Landlock => "this kernel has no Landlock",
            Need::Mounts => "file systems cannot be mounted here",
        }
    }
}

/// What was found of a need, so that the test can begin; `None` if it is missing and that is known. An error if it is missing
/// and nobody said so: a test that does nothing would pass.
pub fn found<T>(need: Need, found: Option<T>) -> Result<Option<T>> {
    if found.is_none() {
        #[expect(clippy::disallowed_methods, reason = "a test has no command line of ours to be told on")]
        let without = std::env::var(VARIABLE).unwrap_or_default();
        excuse(need, &without)?;
        eprintln!("not run, as {VARIABLE} allows: {}", need.sentence());
    }
    Ok(found)
}

fn excuse(need: Need, without: &str) -> Result<()> {
    let words: Vec<&str> = without.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if let Some(unknown) = words.iter().find(|word| !Need::ALL.iter().any(|need| need.word() == **word)) {
        let known = Need::ALL.map(Need::word).join(", ");
        bail!("{VARIABLE} has {unknown:?}, which no test needs; it may have {known}");
    }
    if !words.contains(&need.word()) {
        let (sentence, word) = (need.sentence(), need.word());
        bail!("{sentence}, and this test needs it: set {VARIABLE}={word} to do without it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_missing_need_is_excused_only_by_its_name() {
        assert_eq!(found(Need::Root, Some(1)).unwrap(), Some(1));
        for excused in ["landlock", "root,landlock", " landlock , mounts"] {
            excuse(Need::Landlock, excused).unwrap();
        }
        for (without, complaint) in [
            (
                "root",
                "this kernel has no Landlock, and this test needs it: set TERRANE_TESTS_WITHOUT=landlock to do without it",
            ),
            (
                "landlok",
                "TERRANE_TESTS_WITHOUT has \"landlok\", which no test needs; it may have root, landlock, mounts",
            ),
        ] {
            assert_eq!(excuse(Need::Landlock, without).unwrap_err().to_string(), complaint);
        }
    }
}
