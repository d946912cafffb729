//! Logging in to real Git servers: https with a password and a private authority, ssh with a key and a known host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::text::{CommitId, GitUrl};
use sources::{Addresses, Credentials, Error, Git, GitOptions, Login, Source};
use testkit::forge::{HttpsForge, SshForge};

const CANARY: &str = "canary-5f2c";

struct Repositories {
    dir: tempfile::TempDir,
    commit: CommitId,
}

impl Repositories {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = "git init -q -b main work && cd work && echo 'a = 1' >a.tf && git add -A && \
                      git -c user.name=a -c user.email=a@example.org commit -q -m one && git tag v1 && \
                      git clone -q --bare . ../app.git && git rev-parse HEAD";
        let output = std::process::Command::new("sh")
            .args(["-ec", script])
            .current_dir(dir.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let commit = CommitId::new(String::from_utf8(output.stdout).unwrap().trim()).unwrap();
        Self { dir, commit }
    }

    fn bare(&self) -> PathBuf {
        self.dir.path().join("app.git")
    }
}

fn git_in(cache: &Path) -> Git {
    Git::new(GitOptions { addresses: Addresses::OwnToo, ..GitOptions::new(cache) }).unwrap()
}

fn source(url: &str, secret: &[(&str, &str)]) -> Source {
    let data: BTreeMap<String, Vec<u8>> =
        secret.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let credentials = Credentials::from_secret(&data).unwrap();
    Source { url: GitUrl::new(url).unwrap(), tenant: "default".to_owned(), credentials }
}

async fn reads(git: &Git, source: &Source, wanted: &CommitId) {
    let refs = git.resolve(source).await.unwrap();
    assert_eq!(refs.commit_of(&"main".parse().unwrap()), Some(wanted));
    assert_eq!(refs.commit_of(&"refs/tags/v1".parse().unwrap()), Some(wanted));
    let mirror = git.mirror(source, wanted).await.unwrap();
    assert!(git.bundle(&mirror, wanted).await.is_ok());
}

async fn refused(git: &Git, source: &Source, reason: &str) -> Error {
    let error = git.resolve(source).await.unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    error
}

#[tokio::test]
async fn https_takes_a_password_and_a_private_authority_and_nothing_less() {
    let repositories = Repositories::new();
    let forge = HttpsForge::start(repositories.dir.path(), "git", CANARY).await.unwrap();
    let (url, authority) = (forge.url("app.git"), forge.authority());
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());

    let basic = source(&url, &[("username", "git"), ("password", CANARY), ("ca.crt", authority)]);
    reads(&git, &basic, &repositories.commit).await;
    // A forge takes any user name beside a token; this one takes ours.
    let token = source(&url, &[("token", CANARY), ("ca.crt", authority)]);
    reads(&git, &token, &repositories.commit).await;

    refused(&git, &source(&url, &[("ca.crt", authority)]), "AuthenticationFailed").await;
    let wrong = format!("{CANARY}-wrong");
    refused(&git, &source(&url, &[("token", &wrong), ("ca.crt", authority)]), "AuthenticationFailed").await;
    // Without the authority nothing is sent, so the password is safe from whoever answers at that address.
    let error = refused(&git, &source(&url, &[("token", CANARY)]), "RepositoryUnreachable").await;
    assert!(error.to_string().contains("certificate"), "{error}");
    nothing_of_the_secret_is_left(cache.path());
}

#[tokio::test]
async fn a_mirror_is_not_shared_with_a_tenant_who_cannot_log_in() {
    let repositories = Repositories::new();
    let forge = HttpsForge::start(repositories.dir.path(), "git", CANARY).await.unwrap();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let owner = source(&forge.url("app.git"), &[("token", CANARY), ("ca.crt", forge.authority())]);
    reads(&git, &owner, &repositories.commit).await;

    let credentials =
        Credentials { login: Login::Anonymous, authorities: Some(forge.authority().to_owned()) };
    let stranger = Source { tenant: "other".to_owned(), credentials, ..owner };
    let error = git.mirror(&stranger, &repositories.commit).await.unwrap_err();
    assert_eq!(error.reason(), "AuthenticationFailed", "{error}");
}

#[tokio::test]
async fn ssh_takes_a_key_and_only_the_known_host() {
    let repositories = Repositories::new();
    let forge = SshForge::start().await.unwrap();
    let url = forge.url(&repositories.bare());
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let known = forge.known_hosts();

    // Web forms cut off the last line's end, which OpenSSH alone would not forgive.
    let key = forge.private_key().trim_end();
    reads(&git, &source(&url, &[("ssh-privatekey", key), ("known_hosts", &known)]), &repositories.commit)
        .await;

    // The keys that we ship are those of the large forges; this server is none of them.
    refused(&git, &source(&url, &[("ssh-privatekey", key)]), "HostKeyMismatch").await;
    let stranger = SshForge::start().await.unwrap();
    let foreign = stranger.private_key();
    let with_foreign_key = source(&url, &[("ssh-privatekey", foreign), ("known_hosts", &known)]);
    refused(&git, &with_foreign_key, "AuthenticationFailed").await;
    refused(&git, &source(&url, &[("token", CANARY)]), "UrlForbidden").await;
    nothing_of_the_secret_is_left(cache.path());
}

/// Keys and passwords live in private directories that go with each request.
fn nothing_of_the_secret_is_left(cache: &Path) {
    let left: Vec<_> = std::fs::read_dir(cache.join("private")).unwrap().collect();
    assert_eq!(left.len(), 1, "only the directory for local reads is left: {left:?}");
}
