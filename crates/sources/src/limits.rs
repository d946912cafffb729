//! How large a repository may be: its mirror here, and the files of one commit. A mirror is watched while git fills it, because git has no
//! limit of its own for what it fetches.

use std::path::Path;
use std::time::Duration;

use crate::error::Error;

const MIB: u64 = 1024 * 1024;
/// How often a mirror that is being filled is measured. A fast network brings some 30 MB in this time.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files of a bundle.
    pub entries: u64,
    /// Bytes of a bundle's files.
    pub bytes: u64,
    /// Bytes of a mirror: all branches and tags with their history, as git packs them.
    pub mirror: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 1024 * MIB, mirror: 4096 * MIB }
    }
}

/// Ends when what is being fetched, together with what was there before, takes more than the limit; else never. What git repacks
/// meanwhile does not count, since it takes the place of what is there. O(files of the mirror) once, then O(packs) a look.
pub(crate) async fn grows_past(mirror: &Path, limit: u64) {
    // A mirror that cannot be measured is measured after the fetch, where that is an error.
    let before = size_of(mirror).await.unwrap_or_default();
    let packs = mirror.join("objects/pack");
    loop {
        tokio::time::sleep(LOOK).await;
        let arriving = arriving(packs.clone()).await.unwrap_or_default();
        if before.saturating_add(arriving) > limit {
            return;
        }
    }
}

/// The bytes of all files below a directory.
pub(crate) async fn size_of(dir: &Path) -> Result<u64, Error> {
    let dir = dir.to_owned();
    measured(move || {
        let mut total = 0_u64;
        let mut open = vec![dir];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                match entry.metadata() {
                    Ok(found) if found.is_dir() => open.push(entry.path()),
                    Ok(found) => total = total.saturating_add(found.len()),
                    // Git removes its temporary files while we look.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(total)
    })
    .await
}

/// The bytes of packs that are not complete yet, by the name that git gives them.
async fn arriving(packs: std::path::PathBuf) -> Result<u64, Error> {
    measured(move || {
        let mut total = 0_u64;
        for entry in std::fs::read_dir(packs)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b"tmp_pack_") {
                total = total.saturating_add(entry.metadata().map_or(0, |found| found.len()));
            }
        }
        Ok(total)
    })
    .await
}

async fn measured(measure: impl FnOnce() -> std::io::Result<u64> + Send + 'static) -> Result<u64, Error> {
    let doing = "measure a mirror";
    let result = tokio::task::spawn_blocking(measure).await;
    result
        .map_err(|stopped| Error::Io { doing, source: std::io::Error::other(stopped) })?
        .map_err(Error::io(doing))
}

/// A number of bytes for people: whole units where they fit.
pub(crate) fn readable(bytes: u64) -> String {
    let units = [(1024 * MIB, "GiB"), (MIB, "MiB"), (1024, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_whole_units() {
        for (bytes, told) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (2048, "2 KiB"),
            (4096 * MIB, "4 GiB"),
            (1500 * MIB, "1500 MiB"),
        ] {
            assert_eq!(readable(bytes), told);
        }
    }
}
