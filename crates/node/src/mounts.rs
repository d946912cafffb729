//! Where a container finds its volumes: mount paths in what the pod says are replaced by real directories.
//!
//! A process has no file system of its own here, so a mount path is a name that the node translates in command,
//! arguments, working directory and literal environment values. docs/adr/0002-mount-paths-of-process-pods.md says
//! why. Nothing here touches a disk.

use std::path::{Path, PathBuf};

/// The translation of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts {
    /// Longest mount path first, so that a mount inside another one wins.
    pairs: Vec<(String, PathBuf)>,
}

impl Mounts {
    pub fn new(pairs: impl IntoIterator<Item = (String, PathBuf)>) -> Mounts {
        let mut pairs: Vec<(String, PathBuf)> = pairs
            .into_iter()
            .map(|(path, real)| (path.trim_end_matches('/').to_owned(), real))
            .filter(|(path, _)| path.starts_with('/'))
            .collect();
        pairs.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        Mounts { pairs }
    }

    /// Replaces each mount path that stands as a path of its own: not the middle of a longer word, not a prefix of
    /// another name. What is put in is not looked at again. O(length x mounts).
    pub fn rewrite(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut before: Option<char> = None;
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if next == '/' && before.is_none_or(begins_a_path) {
                let found = self.pairs.iter().find_map(|(path, real)| {
                    let after = rest.strip_prefix(path.as_str())?;
                    after.chars().next().is_none_or(ends_a_name).then_some((path, real, after))
                });
                if let Some((path, real, after)) = found {
                    out.push_str(&real.to_string_lossy());
                    before = path.chars().next_back();
                    rest = after;
                    continue;
                }
            }
            out.push(next);
            before = Some(next);
            rest = rest.get(next.len_utf8()..).unwrap_or_default();
        }
        out
    }

    /// The real place of a path and the mount it lies in, if it lies in one.
    pub fn locate(&self, path: &str) -> Option<(&Path, PathBuf)> {
        self.pairs.iter().find_map(|(mount, real)| {
            let below = Path::new(path).strip_prefix(mount).ok()?;
            Some((real.as_path(), below.to_path_buf()))
        })
    }
}

/// After these a slash goes on with a word: `a/data`, `../data`, `$HOME/data`, `${HOME}/data`, `$(pwd)/data`, `*/data`.
fn begins_a_path(before: char) -> bool {
    !(before.is_alphanumeric() || "._-~/})]*?%+@".contains(before))
}

fn ends_a_name(after: char) -> bool {
    !(after.is_alphanumeric() || "._-~%+@".contains(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths_are_replaced_where_they_are_paths_and_nowhere_else() {
        let mounts = Mounts::new([
            ("/data".to_owned(), PathBuf::from("/pods/1/volumes/data")),
            ("/data/cache/".to_owned(), PathBuf::from("/pods/1/volumes/cache")),
            ("/var/run/token".to_owned(), PathBuf::from("/pods/1/volumes/token")),
        ]);
        let cases = [
            ("/data", "/pods/1/volumes/data"),
            ("/data/", "/pods/1/volumes/data/"),
            ("/data/a/b", "/pods/1/volumes/data/a/b"),
            ("/data/cache/x", "/pods/1/volumes/cache/x"),
            ("/data/cached", "/pods/1/volumes/data/cached"),
            ("--dir=/data", "--dir=/pods/1/volumes/data"),
            ("/data:/data/cache", "/pods/1/volumes/data:/pods/1/volumes/cache"),
            ("file:///data/x", "file:///data/x"),
            (
                "cat </var/run/token/t >\"/data/o\"",
                "cat </pods/1/volumes/token/t >\"/pods/1/volumes/data/o\"",
            ),
            ("cd '/data' && ls", "cd '/pods/1/volumes/data' && ls"),
            ("/data2 /data.d /my/data x/data ../data", "/data2 /data.d /my/data x/data ../data"),
            ("$HOME/data ${HOME}/data $(pwd)/data */data", "$HOME/data ${HOME}/data $(pwd)/data */data"),
            ("https://example.org/data", "https://example.org/data"),
            ("größe=/data/ü", "größe=/pods/1/volumes/data/ü"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(mounts.rewrite(text), expected, "{text}");
        }
    }

    #[test]
    fn a_path_is_located_in_the_innermost_mount() {
        let mounts = Mounts::new([
            ("/work".to_owned(), PathBuf::from("/p/work")),
            ("/work/cache".to_owned(), PathBuf::from("/p/cache")),
        ]);
        assert_eq!(mounts.locate("/work/cache/a"), Some((Path::new("/p/cache"), PathBuf::from("a"))));
        assert_eq!(mounts.locate("/work"), Some((Path::new("/p/work"), PathBuf::new())));
        assert_eq!(mounts.locate("/worker"), None);
    }
}
