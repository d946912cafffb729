//! The git source against the real `git` command and repositories made on the spot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod declared;
mod hostile;
mod relevance;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use api::text::{CommitId, GitUrl, Sha256};
use sources::{Addresses, Credentials, Error, FileUrls, Git, GitOptions, Limits, Login, Source};

struct Repo {
    dir: tempfile::TempDir,
}

impl Repo {
    fn new() -> Self {
        let repo = Self { dir: tempfile::tempdir().unwrap() };
        repo.git(&["init", "-q", "-b", "main", "."]);
        repo
    }

    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(args)
            .current_dir(self.dir.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.org")])
            .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example.org")])
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, path: &str, content: &str) -> &Self {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn commit(&self) -> CommitId {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", "change"]);
        CommitId::new(self.git(&["rev-parse", "HEAD"])).unwrap()
    }

    /// Makes a history from what `git fast-import` reads.
    fn import(&self, stream: &str) {
        let mut child = Command::new("git")
            .args(["fast-import", "--quiet", "--force"])
            .current_dir(self.dir.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(stream.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn url(&self) -> GitUrl {
        GitUrl::new(format!("file://{}", self.dir.path().display())).unwrap()
    }

    fn source(&self) -> Source {
        Source::anonymous(self.url())
    }
}

fn git_in(cache: &Path) -> Git {
    Git::new(GitOptions { file_urls: FileUrls::Allowed, ..GitOptions::new(cache) }).unwrap()
}

fn entries_of(bundle: sources::Bundle) -> (BTreeMap<String, String>, Vec<u8>) {
    let mut bytes = Vec::new();
    std::fs::File::open(bundle.path()).unwrap().read_to_end(&mut bytes).unwrap();
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let kind = entry.header().entry_type();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        let link = entry.link_name().unwrap().map(|link| format!("-> {}", link.display()));
        let mode = entry.header().mode().unwrap();
        found.insert(path, link.unwrap_or(format!("{kind:?} {mode:o} {content}")));
    }
    (found, bytes)
}

#[tokio::test]
async fn branches_tags_and_default_branch_are_read_in_one_request() {
    let repo = Repo::new();
    let first = repo.write("a.tf", "x").commit();
    repo.git(&["tag", "-a", "v1", "-m", "one"]);
    repo.git(&["branch", "feature/x"]);
    let second = repo.write("a.tf", "y").commit();
    let cache = tempfile::tempdir().unwrap();
    let refs = git_in(cache.path()).resolve(&repo.source()).await.unwrap();
    assert_eq!(refs.default_branch.as_deref(), Some("main"));
    assert_eq!(refs.commit_of(&"main".parse().unwrap()), Some(&second));
    assert_eq!(refs.commit_of(&"feature/x".parse().unwrap()), Some(&first));
    assert_eq!(refs.commit_of(&"refs/tags/v1".parse().unwrap()), Some(&first));
}

#[tokio::test]
async fn an_empty_repository_has_no_refs_and_a_missing_one_is_told() {
    let repo = Repo::new();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    assert!(git.resolve(&repo.source()).await.unwrap().is_empty());
    let missing = GitUrl::new("file:///nonexistent/repository").unwrap();
    let error = git.resolve(&Source::anonymous(missing)).await.unwrap_err();
    assert_eq!(error.reason(), "RepositoryNotFound", "{error}");
}

#[tokio::test]
async fn file_urls_are_refused_unless_allowed() {
    let repo = Repo::new();
    let cache = tempfile::tempdir().unwrap();
    let git = Git::new(GitOptions::new(cache.path())).unwrap();
    let error = git.resolve(&repo.source()).await.unwrap_err();
    assert_eq!(error.reason(), "UrlForbidden");
}

#[tokio::test]
async fn a_bundle_depends_on_the_tree_alone_and_holds_files_modes_and_inner_links() {
    let repo = Repo::new();
    let long = format!("deep/{}/{}.tf", "d".repeat(120), "f".repeat(120));
    repo.write("envs/prod/main.tf", "resource").write("run.sh", "#!/bin/sh").write(&long, "long");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(repo.dir.path().join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("../../run.sh", repo.dir.path().join("envs/prod/link")).unwrap();
    let first = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &first).await.unwrap();
    let bundle = git.bundle(&mirror, &first).await.unwrap();
    let (sha, size) = (bundle.sha256().clone(), bundle.size());
    let (entries, bytes) = entries_of(bundle);
    assert_eq!(Sha256::of(&bytes), sha);
    assert_eq!(u64::try_from(bytes.len()).unwrap(), size);
    assert_eq!(entries["envs/prod/main.tf"], "Regular 644 resource");
    assert_eq!(entries["run.sh"], "Regular 755 #!/bin/sh");
    assert_eq!(entries["envs/prod/link"], "-> ../../run.sh");
    assert_eq!(entries[&long], "Regular 644 long");

    // Another commit with the same tree, read through another mirror, gives the same bytes.
    let second = repo.commit();
    assert_ne!(first, second);
    let other_cache = tempfile::tempdir().unwrap();
    let other = git_in(other_cache.path());
    let mirror = other.mirror(&repo.source(), &second).await.unwrap();
    assert_eq!(other.bundle(&mirror, &second).await.unwrap().sha256(), &sha);
}

#[tokio::test]
async fn links_that_leave_the_repository_are_refused_by_name() {
    let repo = Repo::new();
    std::os::unix::fs::symlink("/etc/passwd", repo.dir.path().join("secrets.tf")).unwrap();
    let commit = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &commit).await.unwrap();
    let error = git.bundle(&mirror, &commit).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "secrets.tf in commit {commit} cannot be bundled: it is a symbolic link to an absolute path; make it relative and inside the repository"
        )
    );
}

#[tokio::test]
async fn limits_on_files_and_bytes_hold() {
    let repo = Repo::new();
    let commit = repo.write("a", "12345").write("b", "12345").commit();
    let cache = tempfile::tempdir().unwrap();
    for (limits, what) in [
        (Limits { entries: 1, ..Limits::default() }, "has more than 1 files"),
        (Limits { bytes: 9, ..Limits::default() }, "take more than 9 bytes"),
    ] {
        let git =
            Git::new(GitOptions { file_urls: FileUrls::Allowed, limits, ..GitOptions::new(cache.path()) })
                .unwrap();
        let mirror = git.mirror(&repo.source(), &commit).await.unwrap();
        let error = git.bundle(&mirror, &commit).await.unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.reason(), "SourceTooLarge");
    }
}

fn limited_to(mirror: u64, cache: &Path) -> GitOptions {
    let limits = Limits { mirror, ..Limits::default() };
    GitOptions { file_urls: FileUrls::Allowed, limits, ..GitOptions::new(cache) }
}

fn mirrors_in(cache: &Path) -> usize {
    let entries = std::fs::read_dir(cache.join("mirrors")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[tokio::test]
async fn a_repository_past_the_limit_is_refused_and_not_fetched_again_until_it_changes() {
    let repo = Repo::new();
    let noise: String = (0..300_000_u32).map(|n| format!("{:x}", n.wrapping_mul(2_654_435_761))).collect();
    let huge = repo.write("noise", &noise).commit();
    let cache = tempfile::tempdir().unwrap();
    let git = Git::new(limited_to(256 * 1024, cache.path())).unwrap();
    let error = git.mirror(&repo.source(), &huge).await.unwrap_err();
    assert!(error.to_string().contains("takes more than 256 KiB"), "{error}");
    assert_eq!(error.reason(), "SourceTooLarge");
    assert_eq!(mirrors_in(cache.path()), 0, "what was fetched is removed");

    // A fetch would say that nothing is there.
    let hidden = repo.dir.path().join("hidden");
    std::fs::rename(repo.dir.path().join(".git"), &hidden).unwrap();
    let error = git.mirror(&repo.source(), &huge).await.unwrap_err();
    assert!(matches!(error, Error::RepositoryTooLarge { .. }), "{error}");

    std::fs::rename(&hidden, repo.dir.path().join(".git")).unwrap();
    repo.git(&["checkout", "-q", "--orphan", "small"]);
    repo.git(&["rm", "-q", "-r", "-f", "."]);
    repo.git(&["branch", "-q", "-D", "main"]);
    let small = repo.write("a", "1").commit();
    git.mirror(&repo.source(), &small).await.unwrap();
}

#[tokio::test]
async fn a_fetch_is_stopped_when_it_reaches_the_limit_and_not_at_its_end() {
    use std::os::unix::fs::PermissionsExt;
    let repo = Repo::new();
    let commit = repo.write("a", "1").commit();
    let place = tempfile::tempdir().unwrap();
    // A git whose fetch never ends.
    let endless = place.path().join("git");
    let script = "#!/bin/sh\ncase \" $* \" in\n*' fetch '*)\n  mkdir -p objects/pack\n  while :; do head -c 100000 /dev/zero >> objects/pack/tmp_pack_x; sleep 0.01; done;;\nesac\nexec git \"$@\"\n";
    std::fs::write(&endless, script).unwrap();
    std::fs::set_permissions(&endless, std::fs::Permissions::from_mode(0o755)).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = GitOptions { program: endless, ..limited_to(1024 * 1024, cache.path()) };
    let error = Git::new(options).unwrap().mirror(&repo.source(), &commit).await.unwrap_err();
    assert!(matches!(error, Error::RepositoryTooLarge { .. }), "{error}");
    assert_eq!(mirrors_in(cache.path()), 0);
}

#[tokio::test]
async fn a_mirror_follows_force_pushes_and_says_when_a_commit_is_gone() {
    let repo = Repo::new();
    let base = repo.write("a", "1").commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    git.mirror(&repo.source(), &base).await.unwrap();
    repo.git(&["checkout", "-q", "--orphan", "fresh"]);
    let rewritten = repo.write("a", "2").commit();
    repo.git(&["branch", "-q", "-M", "fresh", "main"]);
    git.mirror(&repo.source(), &rewritten).await.unwrap();
    let unknown = CommitId::new("1".repeat(40)).unwrap();
    let error = git.mirror(&repo.source(), &unknown).await.unwrap_err();
    assert_eq!(error.reason(), "CommitMissing", "{error}");
}

#[tokio::test]
async fn a_damaged_mirror_is_rebuilt() {
    let repo = Repo::new();
    let commit = repo.write("a", "1").commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &commit).await.unwrap();
    let mirrors = cache.path().join("mirrors");
    let dir = std::fs::read_dir(&mirrors)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "git"))
        .unwrap();
    std::fs::write(dir.join("config"), "[core\nbroken").unwrap();
    let next = repo.write("a", "2").commit();
    let again = git.mirror(&repo.source(), &next).await.unwrap();
    assert_eq!(again, mirror);
    git.bundle(&again, &next).await.unwrap();
}

#[tokio::test]
async fn hooks_filters_and_helpers_of_a_hostile_repository_do_not_run() {
    let repo = Repo::new();
    let canary = repo.dir.path().join("canary");
    let touch = format!("#!/bin/sh\ntouch {}\n", canary.display());
    for hook in ["post-checkout", "pre-auto-gc", "post-update", "reference-transaction", "post-receive"] {
        let path = repo.dir.path().join(".git/hooks").join(hook);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &touch).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    repo.git(&["config", "uploadpack.packObjectsHook", &format!("touch {}", canary.display())]);
    repo.git(&["config", "core.fsmonitor", &format!("touch {}", canary.display())]);
    repo.git(&["config", "filter.evil.smudge", &format!("touch {}", canary.display())]);
    repo.write(".gitattributes", "* filter=evil export-subst\n").write("a.tf", "$Format:%H$");
    repo.git(&["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "add", "-A"]);
    repo.git(&["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "commit", "-q", "-m", "x"]);
    let commit = CommitId::new(repo.git(&["-c", "core.fsmonitor=false", "rev-parse", "HEAD"])).unwrap();
    assert!(!canary.exists(), "the fixture itself must not run the canary");
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &commit).await.unwrap();
    let (entries, _) = entries_of(git.bundle(&mirror, &commit).await.unwrap());
    assert_eq!(entries["a.tf"], "Regular 644 $Format:%H$");
    assert!(!canary.exists());
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_nothing_of_git_stays() {
    // The socket accepts and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let cache = tempfile::tempdir().unwrap();
    let git = Git::new(GitOptions {
        addresses: Addresses::OwnToo,
        timeout: std::time::Duration::from_millis(700),
        ..GitOptions::new(cache.path())
    })
    .unwrap();
    let url = GitUrl::new(format!("https://127.0.0.1:{port}/x.git")).unwrap();
    let login = Login::Token("canary-token-value".to_owned().into());
    let credentials = Credentials { login, authorities: None };
    let error = git.resolve(&Source { credentials, ..Source::anonymous(url) }).await.unwrap_err();
    assert_eq!(error.reason(), "GitTimeout", "{error}");
    assert!(!error.to_string().contains("canary-token-value"));
    // Credentials are gone with the request: only the directory for local reads is left.
    let left: Vec<_> = std::fs::read_dir(cache.path().join("private")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn this_machine_is_not_a_forge_by_default() {
    let cache = tempfile::tempdir().unwrap();
    let git = Git::new(GitOptions::new(cache.path())).unwrap();
    for host in ["localhost", "127.0.0.1", "[::1]", "169.254.169.254"] {
        let url = GitUrl::new(format!("https://{host}/x.git")).unwrap();
        let error = git.resolve(&Source::anonymous(url)).await.unwrap_err();
        assert_eq!(error.reason(), "UrlForbidden", "{host}: {error}");
    }
}

#[tokio::test]
async fn private_addresses_are_no_forge_where_they_are_denied() {
    let cache = tempfile::tempdir().unwrap();
    let options = GitOptions { addresses: Addresses::NotPrivate, ..GitOptions::new(cache.path()) };
    let git = Git::new(options).unwrap();
    for place in ["https://10.0.0.1/x.git", "https://[fd12::1]/x.git", "ssh://git@192.168.1.1/x.git"] {
        let source = Source::anonymous(GitUrl::new(place).unwrap());
        let error = git.resolve(&source).await.unwrap_err();
        assert_eq!(error.reason(), "UrlForbidden", "{place}: {error}");
        assert!(error.to_string().contains("which is not a place for a repository"), "{error}");
    }
}
