//! The desk over real repositories and a real datastore: what is asked of either, and how often.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use api::template::Declared;
use api::text::{CommitId, GitUrl, ImageDigest, Sha256};
use datastore::service::{Keyring, Options, router};
use engine::repository::Heads;
use engine::{Read, image};
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use sources::oci::{ImageOptions, Images};
use sources::{FileUrls, Git, GitOptions, Interest, Module};
use testkit::callers::{ByName, Served, serve};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::remote::Remote;
use super::{Branch, Desk, Followed, ImageAt, Place, Reader, Waiting};

/// Answers nothing by itself.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Reader for Nobody {
    fn heads<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        Box::pin(std::future::pending())
    }

    fn relevant<'a>(
        &'a self,
        _: &'a Branch,
        _: &'a CommitId,
        _: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>> {
        Box::pin(std::future::pending())
    }

    fn declared<'a>(
        &'a self,
        _: &'a Place,
        _: &'a CommitId,
        _: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
        Box::pin(std::future::pending())
    }

    fn bundle<'a>(&'a self, _: &'a Place, _: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(std::future::pending())
    }

    fn image<'a>(&'a self, _: &'a Followed) -> BoxFuture<'a, Result<image::Found, String>> {
        Box::pin(std::future::pending())
    }

    fn image_bundle<'a>(
        &'a self,
        _: &'a ImageAt,
        _: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(std::future::pending())
    }
}

struct Ground {
    directory: tempfile::TempDir,
    datastore: Served,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Ground {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = router(Options {
            objects: object_store::memory::InMemory::new().into(),
            keys: Keyring::load_or_create(&directory.path().join("keys")).unwrap(),
            reviewer: Arc::new(ByName),
        });
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noting = Arc::clone(&asked);
        let service = service.layer(axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                noting.lock().unwrap().push(request.method().to_string());
                next.run(request)
            },
        ));
        let ground = Self { directory, datastore: serve(service).await.unwrap(), asked };
        std::fs::create_dir(ground.path("code")).unwrap();
        ground.git(&["init", "--quiet", "--initial-branch", "main", "."]);
        // Counts itself, and is git otherwise.
        let program = ground.path("git");
        let log = ground.path("git.log");
        std::fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> {}\nexec git \"$@\"\n", log.display()))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        ground
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn git(&self, args: &[&str]) -> String {
        let output = std::process::Command::new("git")
            .args(args)
            .current_dir(self.path("code"))
            .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")])
            .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.org")])
            .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example.org")])
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn commit(&self, content: &str) -> CommitId {
        std::fs::write(self.path("code/main.tf"), content).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "change"]);
        CommitId::new(self.git(&["rev-parse", "HEAD"])).unwrap()
    }

    fn place(&self) -> Place {
        Place {
            uid: "code".to_owned(),
            name: "code".to_owned(),
            namespace: "default".to_owned(),
            url: GitUrl::new(format!("file://{}", self.path("code").display())).unwrap(),
            secret: None,
            ssh_key: None,
        }
    }

    /// What a controller that has just started reads by. Its cache is empty, too.
    fn remote(&self, cache: &str) -> Remote {
        let no_secrets = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            let list =
                serde_json::json!({ "kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": [] });
            Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(
                list.to_string().into_bytes(),
            )))
        });
        let git = Git::new(GitOptions {
            file_urls: FileUrls::Allowed,
            program: self.path("git"),
            ..GitOptions::new(self.path(cache))
        });
        let images = Images::new(ImageOptions::new(self.path(cache)));
        Remote::new(
            kube::Client::new(no_secrets, "default"),
            git.unwrap(),
            images.unwrap(),
            self.datastore.client.clone(),
        )
    }

    /// The requests to the datastore since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// How often git was told each of these since the last time.
    fn called<const N: usize>(&self, commands: [&str; N]) -> [usize; N] {
        let log = std::fs::read_to_string(self.path("git.log")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path("git.log"));
        commands.map(|command| log.lines().filter(|line| line.split(' ').any(|word| word == command)).count())
    }

    async fn forget(&self, sha256: &Sha256) {
        assert!(self.datastore.client.bundle_delete(sha256, Timestamp::MAX).await.unwrap());
        self.asked();
    }
}

#[tokio::test]
async fn a_bundle_is_made_once_and_stored_once_and_again_only_where_it_is_gone() {
    let ground = Ground::new().await;
    let (place, commit) = (ground.place(), ground.commit("one"));
    let remote = ground.remote("cache");
    let sha256 = remote.bundle(&place, &commit).await.unwrap();
    assert_eq!(
        (ground.asked(), ground.called(["cat-file"])),
        (vec!["POST".to_owned(), "PUT".to_owned()], [1])
    );
    assert_eq!(remote.bundle(&place, &commit).await.unwrap(), sha256);
    assert_eq!((ground.asked(), ground.called(["cat-file"])), (vec!["POST".to_owned()], [0]));

    // A process that has just started must make it to know its name. What is there is not sent again.
    let restarted = ground.remote("other-cache");
    assert_eq!(restarted.bundle(&place, &commit).await.unwrap(), sha256);
    assert_eq!(ground.asked(), ["POST"]);
    // The same files by another commit.
    let same = ground.commit("one");
    assert_eq!(restarted.bundle(&place, &same).await.unwrap(), sha256);
    assert_eq!(ground.asked(), ["POST"]);

    // What is not there any more is made again.
    ground.forget(&sha256).await;
    assert_eq!(remote.bundle(&place, &commit).await.unwrap(), sha256);
    assert_eq!(ground.asked(), ["POST", "POST", "PUT"]);
    assert!(ground.datastore.client.bundle_exists(&sha256).await.unwrap());
}

#[tokio::test]
async fn one_poll_is_one_question_whatever_the_number_of_layers_and_branches() {
    let ground = Ground::new().await;
    let head = ground.commit("one");
    let branches: BTreeSet<String> = (0..40).map(|number| format!("branch-{number}")).collect();
    branches.iter().for_each(|branch| drop(ground.git(&["branch", branch])));
    let place = ground.place();
    let desk = Arc::new(Desk::over(Arc::new(ground.remote("cache")), Timestamp::now));
    let mut news = desk.news().unwrap();
    let stop = CancellationToken::new();
    let mut working = JoinSet::new();
    working.spawn(Arc::clone(&desk).work(stop.clone()));
    // Whoever else wants it while it is under way has the same one.
    (0..3).for_each(|_| desk.look_again(&place, None, None));
    news.repositories.next().await.unwrap();
    let found = desk.look(&place).0.unwrap().found.unwrap();
    for branch in &branches {
        assert_eq!(found.refs.get(&format!("refs/heads/{branch}")), Some(&head), "{branch}");
    }
    // Three layers of each branch want to know what the new commit means to them.
    let mut left = BTreeSet::new();
    let ask = |branch: &String, number: usize| {
        let branch = Branch { place: place.clone(), name: branch.parse().unwrap() };
        let interest = Interest { path: ".".parse().unwrap(), trigger_paths: Vec::new() };
        let layer = format!("{}-{number}", branch.name);
        desk.relevant(
            branch,
            &head,
            interest,
            Waiting::Layer { namespace: "default".to_owned(), name: layer },
        )
    };
    for branch in &branches {
        for number in 0..3 {
            assert_eq!(ask(branch, number), Read::Unknown);
            left.insert(format!("{branch}-{number}"));
        }
    }
    while !left.is_empty() {
        left.remove(&news.layers.next().await.unwrap().name);
    }
    for branch in &branches {
        assert_eq!(ask(branch, 0), Read::Present(Ok(head.clone())));
    }
    stop.cancel();
    working.join_next().await.unwrap().unwrap();
    assert_eq!(ground.called(["ls-remote", "fetch"]), [1, 1]);
}
