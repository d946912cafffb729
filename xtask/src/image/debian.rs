//! The Debian packages of an image: which ones (`deploy/image/*.lock`), fetched by apt, checked by digest, unpacked without running anything of
//! theirs. What their maintainer scripts would have done and an image needs is done by `root`, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use super::layer::{Entry, Kind, Layer};

/// What the controller, the server and the datastore call: git, by https and ssh, and the shell that git itself calls.
pub(super) const BASE: &[&str] = &["base-files", "ca-certificates", "dash", "git", "openssh-client"];
/// What a runner has besides, for scripts of layers and `local-exec`.
pub(super) const RUNNER: &[&str] = &["bash", "coreutils", "grep", "sed"];

/// Dependencies that are left out. Most serve the package manager, which the image has not; without perl git has no `send-email`, `svn` and
/// interactive `add`, which nobody calls here.
const WITHOUT: &[&str] = &[
    "adduser",
    "awk",
    "mawk",
    "debconf",
    "debconf-2.0",
    "debianutils",
    "dpkg",
    "git-man",
    "install-info",
    "liberror-perl",
    "openssl",
    "passwd",
    "perl",
];

/// Paths that nothing in the image reads or runs: of git the programs that serve others, send mail or push by WebDAV, each 2 MB. Copyright
/// notices stay.
const LEFT_OUT: &[&str] = &[
    "etc/apt",
    "etc/bash_completion.d",
    "etc/cron",
    "etc/dpkg",
    "etc/init.d",
    "etc/update-motd.d",
    "usr/bin/git-shell",
    "usr/bin/scalar",
    "usr/lib/git-core/git-daemon",
    "usr/lib/git-core/git-http-backend",
    "usr/lib/git-core/git-http-fetch",
    "usr/lib/git-core/git-http-push",
    "usr/lib/git-core/git-imap-send",
    "usr/lib/git-core/git-shell",
    "usr/lib/git-core/scalar",
    "usr/lib/systemd",
    "usr/lib/tmpfiles.d",
    "usr/share/apport",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/gitweb",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/menu",
    "usr/share/pam-configs",
    "usr/share/runit",
    "usr/share/zsh",
    "usr/src",
    "var",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// In each image.
    Base,
    /// In the runner's image only.
    Runner,
}

/// One line of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) group: Group,
    pub(super) name: String,
    pub(super) version: String,
    /// Of the `.deb` file.
    pub(super) sha256: String,
}

impl Group {
    fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Runner => "runner",
        }
    }
}

pub(super) fn parse_lock(text: &str) -> Result<Vec<Package>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [group, name, version, sha256] = words.as_slice() else {
                bail!("a line of the lock is not `group name version sha256`: {line}");
            };
            let group = match *group {
                "base" => Group::Base,
                "runner" => Group::Runner,
                other => bail!("the lock has a package of group {other}: there are base and runner"),
            };
            ensure!(sha256.len() == 64, "the digest of {name} in the lock is not a sha256");
            Ok(Package {
                group,
                name: (*name).to_owned(),
                version: (*version).to_owned(),
                sha256: (*sha256).to_owned(),
            })
        })
        .collect()
}

pub(super) fn write_lock(packages: &[Package]) -> String {
    let mut text = "# The Debian packages of the images: group, name, version, sha256 of the .deb.\n\
                    # Written by `cargo xtask image-lock` from what apt offers; that is also how to update it.\n"
        .to_owned();
    for package in packages {
        text.push_str(&format!(
            "{} {} {} {}\n",
            package.group.as_str(),
            package.name,
            package.version,
            package.sha256
        ));
    }
    text
}

/// The newest packages that apt offers, with what they depend on.
pub(super) fn resolve() -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    let mut seen = BTreeSet::new();
    for (group, roots) in [(Group::Base, BASE), (Group::Runner, RUNNER)] {
        for (name, fields) in closure(roots, &mut ask_apt)? {
            if seen.insert(name.clone()) {
                let field = |key: &str| {
                    fields.get(key).cloned().with_context(|| format!("apt tells no {key} of {name}"))
                };
                packages.push(Package {
                    group,
                    version: field("Version")?,
                    sha256: field("SHA256")?,
                    name: name.clone(),
                });
            }
        }
    }
    Ok(packages)
}

type Stanza = BTreeMap<String, String>;

fn ask_apt(names: &BTreeSet<String>) -> Result<Vec<Stanza>> {
    let text = output(Command::new("apt-cache").args(["--no-all-versions", "show"]).args(names))
        .context("apt does not know each of the packages; run `apt-get update`")?;
    Ok(String::from_utf8_lossy(&text)
        .split("\n\n")
        .map(parse_stanza)
        .filter(|stanza| !stanza.is_empty())
        .collect())
}

/// Each package is asked for once, and all that are one step further at once: apt reads its lists anew for each question.
fn closure(
    roots: &[&str],
    ask: &mut impl FnMut(&BTreeSet<String>) -> Result<Vec<Stanza>>,
) -> Result<BTreeMap<String, Stanza>> {
    let mut found: BTreeMap<String, Stanza> = BTreeMap::new();
    let mut open: BTreeSet<String> = roots.iter().map(|name| (*name).to_owned()).collect();
    while !open.is_empty() {
        let stanzas = ask(&open)?;
        for stanza in stanzas {
            let name = stanza.get("Package").context("apt describes a package without a name")?;
            found.insert(name.clone(), stanza);
        }
        if let Some(name) = open.iter().find(|name| !found.contains_key(*name)) {
            bail!("apt offers no package {name}; run `apt-get update`");
        }
        let wanted =
            found.values().flat_map(|stanza| ["Depends", "Pre-Depends"].map(|key| stanza.get(key))).flatten();
        open = wanted
            .flat_map(|depends| first_choices(depends))
            .filter(|name| !WITHOUT.contains(&name.as_str()) && !found.contains_key(name))
            .collect();
    }
    Ok(found)
}

/// `libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0` names libc6 and debconf: apt would take the first choice too.
fn first_choices(depends: &str) -> impl Iterator<Item = String> {
    depends.split(',').filter_map(|choices| {
        let first = choices.split('|').next()?.split_whitespace().next()?;
        Some(first.split(':').next().unwrap_or(first).to_owned())
    })
}

/// What apt prints of one package. Continued lines are of no use here.
fn parse_stanza(text: &str) -> Stanza {
    text.lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Sees to it that each package lies in the directory, under its digest.
pub(super) fn fetch(packages: &[Package], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let is_missing = |package: &&Package| {
        let kept = fs::read(directory.join(format!("{}.deb", package.sha256)));
        kept.map_or(true, |bytes| hex::encode(Sha256::digest(&bytes)) != package.sha256)
    };
    let missing: Vec<&Package> = packages.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let wanted: Vec<String> =
        missing.iter().map(|package| format!("{}={}", package.name, package.version)).collect();
    eprintln!("fetching {} packages by apt", wanted.len());
    let draft = directory.join(format!("draft-{}", std::process::id()));
    if download(&wanted, &draft).is_err() {
        // Its lists may be older than the mirror, or missing. Where they cannot be read anew, the second try says why.
        let _ = output(Command::new("apt-get").args(["--quiet", "update"]));
        download(&wanted, &draft).context(
            "apt could not fetch what the lock names; where it offers newer versions, run `cargo xtask image-lock` and commit the result",
        )?;
    }
    for file in fs::read_dir(&draft)? {
        let path = file?.path();
        let digest = hex::encode(Sha256::digest(fs::read(&path)?));
        ensure!(
            missing.iter().any(|package| package.sha256 == digest),
            "{} has digest {digest}, which the lock does not name; nothing is made of it",
            path.display()
        );
        fs::rename(&path, directory.join(format!("{digest}.deb")))?;
    }
    fs::remove_dir(&draft)?;
    ensure!(packages.iter().all(|package| !is_missing(&package)), "apt fetched less than was asked for");
    Ok(())
}

/// Packages, each as `name=version`, into an empty directory.
fn download(wanted: &[String], draft: &Path) -> Result<()> {
    if draft.exists() {
        fs::remove_dir_all(draft)?;
    }
    fs::create_dir_all(draft)?;
    // As root apt fetches as another user, who may not write here.
    let mut apt = Command::new("apt-get");
    apt.args(["--quiet", "--option", "APT::Sandbox::User=root", "download"]).args(wanted).current_dir(draft);
    output(&mut apt).map(drop)
}

/// The files of the packages, as they are in the image.
pub(super) fn unpack(packages: &[&Package], directory: &Path) -> Result<Layer> {
    let mut layer = Layer::default();
    for package in packages {
        let file = directory.join(format!("{}.deb", package.sha256));
        let mut child = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .context("dpkg-deb cannot be run; install dpkg")?;
        let stdout = child.stdout.take().context("dpkg-deb has no output")?;
        add_archive(&mut layer, stdout).with_context(|| format!("read the files of {}", package.name))?;
        ensure!(child.wait()?.success(), "dpkg-deb cannot read {}", file.display());
        let control = output(Command::new("dpkg-deb").arg("--field").arg(&file))?;
        // Where scanners look for the packages of an image that has no package manager.
        layer.put(&format!("var/lib/dpkg/status.d/{}", package.name), Entry::file(control));
    }
    Ok(layer)
}

fn add_archive(layer: &mut Layer, archive: impl std::io::Read) -> Result<()> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = image_path(&entry.path()?.to_string_lossy());
        if path.is_empty() || is_left_out(&path) {
            continue;
        }
        let header = entry.header();
        // No program of the image may give its caller another user's rights.
        let mode = header.mode()? & 0o777;
        let target = entry.link_name()?.map(|target| target.to_string_lossy().into_owned());
        let kind = match header.entry_type() {
            tar::EntryType::Directory => Kind::Directory,
            tar::EntryType::Regular => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                Kind::File(content)
            }
            tar::EntryType::Symlink => Kind::Symlink(target.context("a symlink without a target")?),
            tar::EntryType::Link => {
                Kind::HardLink(image_path(&target.context("a hard link without a target")?))
            }
            other => bail!("{path} is of a kind that images do not have: {other:?}"),
        };
        // Two packages may have the same directory.
        if kind != Kind::Directory || !layer.contains(&path) {
            layer.put(&path, Entry { kind, mode, owner: 0 });
        }
    }
    Ok(())
}

/// Packages still name /bin and /lib; in the image those are links into /usr, as on an installed Debian.
fn image_path(path: &str) -> String {
    let path = path.trim_start_matches("./").trim_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    match first {
        "bin" | "sbin" | "lib" | "lib32" | "lib64" | "libx32" => format!("usr/{path}"),
        _ => path.to_owned(),
    }
}

fn is_left_out(path: &str) -> bool {
    if let Some(document) = path.strip_prefix("usr/share/doc/") {
        return document.contains('/') && !document.ends_with("/copyright");
    }
    // The character sets that libc converts from; everything here is UTF-8.
    path.contains("/gconv")
        || LEFT_OUT
            .iter()
            .any(|out| path.strip_prefix(out).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// What an installed Debian has beside its packages' files, made by maintainer scripts there.
pub(super) fn add_root(layer: &mut Layer, user: u64) {
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        layer.put(link, Entry::symlink(target));
    }
    layer.put("usr/bin/sh", Entry::symlink("dash"));
    // The package has the same program twice.
    layer.put("usr/lib/git-core/git", Entry::symlink("../../bin/git"));
    layer.put("usr/lib64", Entry::directory());
    layer.put("tmp", Entry { mode: 0o1777, ..Entry::directory() });
    layer.put("home/terrane", Entry { owner: user, mode: 0o750, ..Entry::directory() });
    layer.put(
        "etc/passwd",
        Entry::file(format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\nterrane:x:{user}:{user}:Terrane:/home/terrane:/usr/sbin/nologin\n"
        )),
    );
    layer.put("etc/group", Entry::file(format!("root:x:0:\nterrane:x:{user}:\n")));
    layer.put("etc/nsswitch.conf", Entry::file("passwd: files\ngroup: files\nhosts: files dns\n"));
    let mut authorities = Vec::new();
    for (_, entry) in layer.below("usr/share/ca-certificates/mozilla/") {
        if let Kind::File(content) = &entry.kind {
            authorities.extend_from_slice(content);
            if content.last() != Some(&b'\n') {
                authorities.push(b'\n');
            }
        }
    }
    layer.put("etc/ssl/certs/ca-certificates.crt", Entry::file(authorities));
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().with_context(|| format!("{program} cannot be run; images are made on Debian"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_read_as_it_is_written() {
        let package = |group, name: &str| Package {
            group,
            name: name.to_owned(),
            version: "1:2.39.5-0+deb12u3".to_owned(),
            sha256: "a".repeat(64),
        };
        let packages = vec![package(Group::Base, "git"), package(Group::Runner, "bash")];
        assert_eq!(parse_lock(&write_lock(&packages)).unwrap(), packages);
        for (wrong, why) in [
            ("base git 1", "is not `group name version sha256`"),
            ("other git 1 aa", "of group other"),
            ("base git 1 aa", "not a sha256"),
        ] {
            let error = parse_lock(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn dependencies_are_followed_once_and_some_not_at_all() {
        let mut asked = Vec::new();
        let found = closure(&["git"], &mut |names| {
            asked.extend(names.iter().cloned());
            let text = |name: &String| match name.as_str() {
                "git" => {
                    "Package: git\nDepends: libc6 (>= 2.34), perl, libcurl:any | other\nDescription: x\n more: y\n"
                }
                "libcurl" => "Package: libcurl\nPre-Depends: libc6, git\n",
                _ => "Package: libc6\n",
            };
            Ok(names.iter().map(|name| parse_stanza(text(name))).collect())
        });
        let names: Vec<String> = found.unwrap().into_keys().collect();
        assert_eq!(names, ["git", "libc6", "libcurl"]);
        asked.sort();
        assert_eq!(asked, names);
        let error = closure(&["gone"], &mut |_| Ok(vec![])).unwrap_err().to_string();
        assert_eq!(error, "apt offers no package gone; run `apt-get update`");
    }

    #[test]
    fn files_of_packages_find_their_place() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, mode: u32, content: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_mode(mode);
            header.set_uid(12);
            header.set_mtime(1_700_000_000);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_bytes()).unwrap();
        };
        add("./bin/dash", 0o755, "dash");
        add("./usr/lib/openssh/ssh-keysign", 0o4755, "keysign");
        add("./usr/share/doc/git/copyright", 0o644, "GPL");
        add("./usr/share/doc/git/README", 0o644, "left out");
        add("./usr/share/man/man1/git.1.gz", 0o644, "left out");
        add("./usr/share/manual", 0o644, "kept");
        add("./usr/share/ca-certificates/mozilla/B.crt", 0o644, "B");
        add("./usr/share/ca-certificates/mozilla/A.crt", 0o644, "A\n");
        let mut layer = Layer::default();
        add_archive(&mut layer, archive.into_inner().unwrap().as_slice()).unwrap();
        add_root(&mut layer, 65_532);
        let entry = |path: &str| {
            layer.below(path).next().filter(|(found, _)| *found == path).map(|(_, entry)| entry.clone())
        };
        assert_eq!(entry("usr/bin/dash"), Some(Entry::program("dash")));
        assert_eq!(entry("bin"), Some(Entry::symlink("usr/bin")));
        assert_eq!(entry("usr/lib/openssh/ssh-keysign").map(|entry| entry.mode), Some(0o755));
        assert_eq!(entry("usr/share/doc/git/copyright"), Some(Entry::file("GPL")));
        assert_eq!(entry("usr/share/doc/git/README"), None);
        assert_eq!(entry("usr/share/man/man1/git.1.gz"), None);
        assert_eq!(entry("usr/share/manual"), Some(Entry::file("kept")));
        assert_eq!(entry("etc/ssl/certs/ca-certificates.crt"), Some(Entry::file("A\nB\n")));
    }
}
