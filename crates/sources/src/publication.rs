//! A directory of files as a Git repository that others read: one branch, whose only commit is what the files are now. This is how a
//! ConfigMap becomes a repository (`terrane git-server`). No HTTP here, and no way to write.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::text::Sha256;
use tokio::sync::Mutex;

use crate::error::Error;
use crate::git::find_program;
use crate::process::{Invocation, Network, Surroundings};

/// What is published fits a few ConfigMaps; more than that belongs into a real repository.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
const MOST_FILES: usize = 4_096;
const DEEPEST: usize = 32;
/// A pack is hardly larger than the files.
const MOST_ANSWERED: u64 = 2 * MOST_BYTES;
const PATIENCE: Duration = Duration::from_secs(60);
/// Of each commit, in seconds: the same files make the same commit, whenever and wherever they are published.
const MOMENT: u64 = 1_767_225_600;

/// Which words a client and upload-pack speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Original,
    Second,
}

impl Protocol {
    /// By the header `Git-Protocol` of a request.
    pub fn of_header(value: Option<&str>) -> Self {
        let is_second = value.is_some_and(|value| value.split(':').any(|part| part == "version=2"));
        if is_second { Self::Second } else { Self::Original }
    }
}

/// Files by their path in the repository.
type Files = BTreeMap<String, File>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    content: Vec<u8>,
    is_program: bool,
}

#[derive(Debug)]
pub struct Publication {
    files: PathBuf,
    repository: PathBuf,
    program: PathBuf,
    original: Surroundings,
    second: Surroundings,
    /// Of the files that the branch holds; held while it is moved.
    published: Mutex<Option<Sha256>>,
}

impl Publication {
    /// `directory` is for the repository, and for nothing else.
    pub async fn new(files: &Path, directory: &Path, search_path: &OsStr) -> Result<Self, Error> {
        let program = find_program(Path::new("git"), search_path).ok_or_else(|| Error::Io {
            doing: "find git (install it, or put it on the PATH)",
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        })?;
        let surroundings = || Surroundings::new(directory, search_path, Network::default());
        let mut second = surroundings()?;
        second.set("GIT_PROTOCOL", "version=2");
        let publication = Self {
            files: files.to_owned(),
            repository: directory.join("repository.git"),
            program,
            original: surroundings()?,
            second,
            published: Mutex::default(),
        };
        let place = publication.repository.as_os_str();
        let words =
            ["init", "--quiet", "--bare", "--initial-branch=main", "--end-of-options"].map(OsStr::new);
        publication
            .git(Protocol::Original, None, "make a repository for")
            .output(words.into_iter().chain([place]), MOST_ANSWERED)
            .await?;
        publication.refresh().await?;
        Ok(publication)
    }

    /// What a client is told first: the branch, as the files are at this moment, or what this server can do.
    pub async fn advertise(&self, protocol: Protocol) -> Result<Vec<u8>, Error> {
        self.refresh().await?;
        let told = self.upload_pack(protocol, &["--http-backend-info-refs"], &[]).await?;
        Ok(match protocol {
            // As in the description of the protocol: a line that names the service, and the end of that part.
            Protocol::Original => [b"001e# service=git-upload-pack\n0000".as_slice(), &told].concat(),
            Protocol::Second => told,
        })
    }

    /// The answer to one request of a fetch.
    pub async fn answer(&self, protocol: Protocol, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.upload_pack(protocol, &[], request).await
    }

    async fn upload_pack(&self, protocol: Protocol, how: &[&str], input: &[u8]) -> Result<Vec<u8>, Error> {
        let words = ["upload-pack", "--strict", "--stateless-rpc"].into_iter().chain(how.iter().copied());
        let invocation = self.git(protocol, Some(&self.repository), "serve");
        invocation.answer(words.chain(["."]), input, MOST_ANSWERED).await
    }

    /// Moves the branch if the files have changed. O(bytes of the files), which are few.
    async fn refresh(&self) -> Result<(), Error> {
        let mut published = self.published.lock().await;
        let directory = self.files.clone();
        let read = tokio::task::spawn_blocking(move || read_files(&directory)).await;
        let files = read.map_err(|error| Error::io("read the files")(error.into()))??;
        let import = import(&files);
        let digest = Sha256::of(&import);
        if published.as_ref() == Some(&digest) {
            return Ok(());
        }
        // A branch that goes elsewhere than on is what `--force` allows: each commit stands alone.
        self.git(Protocol::Original, Some(&self.repository), "import")
            .answer(["fast-import", "--quiet", "--force", "--done"], &import, MOST_ANSWERED)
            .await?;
        *published = Some(digest);
        Ok(())
    }

    fn git<'a>(
        &'a self,
        protocol: Protocol,
        repository: Option<&'a Path>,
        doing: &'static str,
    ) -> Invocation<'a> {
        let surroundings = match protocol {
            Protocol::Original => &self.original,
            Protocol::Second => &self.second,
        };
        let subject = "the published files";
        Invocation { program: &self.program, surroundings, repository, subject, doing, timeout: PATIENCE }
    }
}

/// A ConfigMap or a Secret is shown as links into a hidden directory that is replaced as a whole, so links are followed and what
/// Kubernetes keeps for itself (`..data`) is left out.
fn read_files(root: &Path) -> Result<Files, Error> {
    let mut files = Files::new();
    let mut bytes = 0;
    let mut open = vec![(root.to_owned(), String::new(), 0)];
    while let Some((directory, prefix, depth)) = open.pop() {
        let failed = Error::io("read the files to publish");
        for entry in std::fs::read_dir(&directory).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name();
            let name = name.to_str().filter(|name| is_plain(name)).ok_or_else(|| {
                refused(format!("{} has a name that is not published", entry.path().display()))
            })?;
            if name.starts_with("..") || name == ".git" {
                continue;
            }
            let path = format!("{prefix}{name}");
            let found = std::fs::metadata(entry.path()).map_err(&failed)?;
            if found.is_dir() {
                // A link that leads back up would go on for ever.
                if depth == DEEPEST {
                    return Err(refused(format!("{path} lies deeper than {DEEPEST} directories")));
                }
                open.push((entry.path(), format!("{path}/"), depth + 1));
            } else if found.is_file() {
                bytes += found.len();
                if bytes > MOST_BYTES || files.len() == MOST_FILES {
                    let most = MOST_BYTES / 1024 / 1024;
                    return Err(refused(format!(
                        "{} holds more than {MOST_FILES} files or {most} MiB",
                        root.display()
                    )));
                }
                let content = std::fs::read(entry.path()).map_err(&failed)?;
                files.insert(path, File { content, is_program: found.permissions().mode() & 0o111 != 0 });
            }
        }
    }
    Ok(files)
}

fn is_plain(name: &str) -> bool {
    !name.chars().any(|letter| letter.is_control() || letter == '"' || letter == '\\')
}

fn refused(detail: String) -> Error {
    Error::Git { url: "the files".to_owned(), doing: "publish", detail }
}

/// The files as one commit without a parent, in the language of `git fast-import`.
fn import(files: &Files) -> Vec<u8> {
    let message = "The files as they are\n";
    let mut stream = format!(
        "commit refs/heads/main\ncommitter Terrane <terrane@localhost> {MOMENT} +0000\ndata {}\n{message}",
        message.len()
    )
    .into_bytes();
    for (path, file) in files {
        let mode = if file.is_program { "100755" } else { "100644" };
        let head = format!("M {mode} inline \"{path}\"\ndata {}\n", file.content.len());
        stream.extend_from_slice(head.as_bytes());
        stream.extend_from_slice(&file.content);
        stream.push(b'\n');
    }
    stream.extend_from_slice(b"done\n");
    stream
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// What a kubelet makes of a ConfigMap with the key `main.tf` at the path `net/main.tf`.
    fn as_config_map(root: &Path, version: &str, text: &str) {
        std::fs::create_dir_all(root.join(version).join("net")).unwrap();
        std::fs::write(root.join(version).join("net/main.tf"), text).unwrap();
        let draft = root.join("..data_tmp");
        symlink(version, &draft).unwrap();
        std::fs::rename(&draft, root.join("..data")).unwrap();
        if !root.join("net").exists() {
            symlink("..data/net", root.join("net")).unwrap();
        }
    }

    fn git(repository: &Path, words: &[&str]) -> String {
        let output = Command::new("git")
            .arg("--git-dir")
            .arg(repository)
            .args(["-c", "safe.directory=*"])
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[tokio::test]
    async fn the_same_files_are_the_same_commit_and_other_files_another() {
        let (files, one, two) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = std::env::split_paths("/usr/local/bin:/usr/bin:/bin").collect::<Vec<_>>();
        let path = std::env::join_paths(path).unwrap();
        as_config_map(files.path(), "..1", "a = 1\n");
        let first = Publication::new(files.path(), one.path(), &path).await.unwrap();
        let head = |publication: &Publication| git(&publication.repository, &["rev-parse", "main"]);
        let before = head(&first);
        assert_eq!(git(&first.repository, &["ls-tree", "-r", "--name-only", "main"]), "net/main.tf\n");
        assert_eq!(git(&first.repository, &["show", "main:net/main.tf"]), "a = 1\n");

        as_config_map(files.path(), "..2", "a = 2\n");
        let told = first.advertise(Protocol::Original).await.unwrap();
        let after = head(&first);
        assert_ne!(after, before);
        assert!(String::from_utf8_lossy(&told).contains(after.trim()), "the newest is what is told");
        let second = Publication::new(files.path(), two.path(), &path).await.unwrap();
        assert_eq!(head(&second), after, "a restarted server changes nothing");
        as_config_map(files.path(), "..3", "a = 1\n");
        second.advertise(Protocol::Second).await.unwrap();
        assert_eq!(head(&second), before);
    }

    #[test]
    fn what_cannot_be_published_is_refused_and_not_left_out() {
        let files = tempfile::tempdir().unwrap();
        symlink(".", files.path().join("again")).unwrap();
        let error = read_files(files.path()).unwrap_err().to_string();
        assert!(error.contains("lies deeper than 32 directories"), "{error}");
        std::fs::remove_file(files.path().join("again")).unwrap();
        std::fs::write(files.path().join("a\nM 100644"), "").unwrap();
        let error = read_files(files.path()).unwrap_err().to_string();
        assert!(error.ends_with("has a name that is not published"), "{error}");
    }

    #[test]
    fn the_protocol_is_the_one_that_a_client_asks_for() {
        for (header, expected) in [
            (None, Protocol::Original),
            (Some("version=1"), Protocol::Original),
            (Some("version=2"), Protocol::Second),
            (Some("agent=x:version=2"), Protocol::Second),
        ] {
            assert_eq!(Protocol::of_header(header), expected, "{header:?}");
        }
    }
}
