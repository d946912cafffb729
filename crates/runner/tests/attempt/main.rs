//! Whole attempts: a real repository, the real tool, the real datastore over a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod backends;
mod cloud_backends;
mod faulty_tool;
mod full;
mod identity;
mod kaniko;
mod terragrunt;
mod token;
mod undoing;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use api::attempt::{Description, Outcome, PlanSource, Reason};
use api::backend::Backend;
use api::run::{Action, Mode, PlanSummary};
use api::text::{CommitId, GitUrl, Sha256, Span};
use api::tool::Tool;
use bytes::Bytes;
use datastore::client::{Client, LockChange, TokenSource};
use datastore::service::{Keyring, Options, router};
use datastore::{Artefact, Attempt, StateId};
use futures::TryStreamExt;
use jiff::Timestamp;
use runner::{Echo, RunnerOptions, run_until};
use sources::{FileUrls, Git, GitOptions, Source};
use testkit::callers::ByName;

struct World {
    dir: tempfile::TempDir,
    base: String,
    away: Arc<AtomicBool>,
    /// What the datastore has no room for: requests with this method whose path ends so.
    full: Arc<std::sync::Mutex<Option<(&'static str, String)>>>,
    /// Requests for the state that were turned away.
    turned_away: Arc<AtomicUsize>,
    tokens: Arc<token::Tokens>,
    server: tokio::task::JoinHandle<()>,
    git: Git,
    bundle: Sha256,
    revision: CommitId,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn state_id() -> StateId {
    StateId::new(state_identity().as_str()).unwrap()
}

fn state_identity() -> Sha256 {
    Sha256::of(b"layer-state")
}

impl World {
    async fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Arc::new(token::Tokens::default());
        let options = Options {
            objects: Options::local_objects(&dir.path().join("objects")).unwrap(),
            keys: Keyring::load_or_create(&dir.path().join("keys")).unwrap(),
            reviewer: Arc::new(token::ByToken(Arc::clone(&tokens))),
        };
        let away = Arc::new(AtomicBool::new(false));
        let turned_away = Arc::new(AtomicUsize::new(0));
        let full = Arc::new(std::sync::Mutex::new(None::<(&'static str, String)>));
        let (gone, count, no_room) = (Arc::clone(&away), Arc::clone(&turned_away), Arc::clone(&full));
        let app = router(options).layer(axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                let (gone, count) = (Arc::clone(&gone), Arc::clone(&count));
                let no_room = no_room.lock().unwrap().clone();
                async move {
                    let path = request.uri().path().to_owned();
                    if no_room.is_some_and(|(method, end)| request.method() == method && path.ends_with(&end))
                    {
                        count.fetch_add(1, Ordering::SeqCst);
                        let message = "the datastore is full: free some space".to_owned();
                        let refusal = axum::Json(datastore::Refusal { message });
                        return axum::response::IntoResponse::into_response((
                            axum::http::StatusCode::INSUFFICIENT_STORAGE,
                            refusal,
                        ));
                    }
                    if gone.load(Ordering::SeqCst) {
                        let is_state = request.uri().path().starts_with("/v1/state/");
                        count.fetch_add(usize::from(is_state), Ordering::SeqCst);
                        return axum::response::IntoResponse::into_response(
                            axum::http::StatusCode::SERVICE_UNAVAILABLE,
                        );
                    }
                    next.run(request).await
                }
            },
        ));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        #[allow(clippy::disallowed_methods)] // A test's server ends with the test.
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let repo = dir.path().join("repo");
        std::fs::create_dir(&repo).unwrap();
        sh(&repo, "git init -q -b main .");
        let git =
            Git::new(GitOptions { file_urls: FileUrls::Allowed, ..GitOptions::new(dir.path().join("git")) });
        let mut world = Self {
            base,
            away,
            full,
            turned_away,
            tokens,
            server,
            git: git.unwrap(),
            bundle: Sha256::of(b""),
            revision: CommitId::new("0".repeat(40)).unwrap(),
            dir,
        };
        world.commit(files).await;
        world
    }

    /// Commits files and stores the bundle of the new commit, as the controller would.
    async fn commit(&mut self, files: &[(&str, &str)]) {
        let repo = self.dir.path().join("repo");
        for (path, content) in files {
            let path = repo.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        sh(&repo, "git add -A && git -c user.name=a -c user.email=a@example.org commit -q -m change");
        let url = GitUrl::new(format!("file://{}", repo.display())).unwrap();
        let source = Source::anonymous(url);
        let refs = self.git.resolve(&source).await.unwrap();
        self.revision = refs.commit_of(&"main".parse().unwrap()).unwrap().clone();
        let mirror = self.git.mirror(&source, &self.revision).await.unwrap();
        let bundle = self.git.bundle(&mirror, &self.revision).await.unwrap();
        self.bundle = bundle.sha256().clone();
        self.client().bundle_put(&self.bundle, bundle.path()).await.unwrap();
    }

    fn client(&self) -> Client {
        Client::new(&self.base, TokenSource::Fixed("controller".to_owned().into())).unwrap()
    }

    fn description(&self, run: &str, action: Action, fence: u64) -> Description {
        Description {
            namespace: "team".to_owned(),
            layer: "layer".to_owned(),
            layer_uid: "layer-uid".to_owned(),
            run: run.to_owned(),
            run_uid: run.to_owned(),
            attempt: 1,
            fence,
            action,
            mode: Mode::Normal,
            revision: self.revision.clone(),
            bundle: self.bundle.clone(),
            image: None,
            build: None,
            path: "envs/prod".parse().unwrap(),
            workspace: Default::default(),
            tool: None,
            tool_version: None,
            terragrunt: None,
            state: state_identity(),
            backend: None,
            plan: None,
            inputs: None,
            outputs: false,
            script: None,
            kept: None,
            delete_workspace: false,
            timeout: None,
        }
    }

    fn options(&self, run: &str) -> RunnerOptions {
        let token_file = self.dir.path().join(format!("{run}.token"));
        std::fs::write(&token_file, format!("team/{run}/1\n")).unwrap();
        #[allow(clippy::disallowed_methods)] // The tool is wherever the tests find it.
        let path = std::env::var_os("PATH").unwrap();
        RunnerOptions {
            datastore_url: self.base.clone(),
            datastore_authority: None,
            token_file,
            run_uid: run.to_owned(),
            attempt: 1,
            work_dir: self.dir.path().join("work"),
            search_path: std::env::split_paths(&path).chain([tools()]).collect(),
            tools: None,
            provider_mirror: None,
            kaniko: None,
            inputs: Vec::new(),
            environment: Vec::new(),
            secrets: Vec::new(),
            grace: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            plan_limit: Span::from_secs(600),
            echo: Echo::Nowhere,
        }
    }

    async fn describe(&self, description: &Description) -> Attempt {
        let attempt = Attempt::new(description.run_uid.as_str(), 1).unwrap();
        let content = serde_json::to_vec(description).unwrap();
        self.client().artefact_put(&attempt, Artefact::Spec, content.into()).await.unwrap();
        attempt
    }

    async fn run(&self, description: Description) -> Outcome {
        self.describe(&description).await;
        self.run_with(self.options(&description.run_uid), std::future::pending()).await
    }

    /// Runs, and checks that what was returned is what was stored, and that the log has the digest it claims.
    async fn run_with(&self, options: RunnerOptions, stop: impl Future<Output = ()>) -> Outcome {
        let attempt = Attempt::new(options.run_uid.as_str(), 1).unwrap();
        let outcome = run_until(options, stop).await.unwrap();
        let stored = self.client().artefact_get(&attempt, Artefact::Result, 1 << 20).await.unwrap().unwrap();
        assert_eq!(serde_json::from_slice::<Outcome>(&stored).unwrap(), outcome);
        assert_eq!(Sha256::of(self.log(&attempt).await.as_bytes()), outcome.log_sha256);
        assert!(!self.dir.path().join("work/layer-uid").exists(), "nothing stays behind");
        outcome
    }

    async fn plan(&self, run: &str) -> Outcome {
        self.run(self.description(run, Action::Plan, 0)).await
    }

    /// The apply of a plan as the controller would describe it.
    fn apply_after(&self, run: &str, fence: u64, plan: &Outcome) -> Description {
        let backend = plan.plan.as_ref().unwrap().backend.as_ref().map(Backend::sha256);
        Description { backend, ..self.apply_of(run, fence, &plan.run_uid, planned(plan)) }
    }

    fn apply_of(&self, run: &str, fence: u64, plan: &str, sha256: Sha256) -> Description {
        let source = PlanSource { run_uid: plan.to_owned(), attempt: 1, sha256, expires: None };
        Description { plan: Some(source), ..self.description(run, Action::Apply, fence) }
    }

    async fn log(&self, attempt: &Attempt) -> String {
        let pieces: Vec<Bytes> =
            self.client().log_get(attempt, 0).await.unwrap().try_collect().await.unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    }

    async fn log_of(&self, run: &str) -> String {
        self.log(&Attempt::new(run, 1).unwrap()).await
    }

    async fn state(&self) -> Option<serde_json::Value> {
        let mut content = Vec::new();
        self.client().state_get(&state_id(), &mut content).await.unwrap()?;
        Some(serde_json::from_slice(&content).unwrap())
    }
}

/// Where `tools/setup` puts what the machine does not have.
fn tools() -> PathBuf {
    testkit::tools::tool("terragrunt").unwrap().parent().unwrap().to_owned()
}

fn sh(dir: &Path, script: &str) {
    let status = Command::new("sh")
        .args(["-ec", script])
        .current_dir(dir)
        .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .status()
        .unwrap();
    assert!(status.success(), "{script}");
}

fn planned(outcome: &Outcome) -> Sha256 {
    assert_eq!(outcome.reason, Reason::Succeeded, "{}", outcome.message);
    outcome.plan.as_ref().unwrap().sha256.clone()
}

async fn until(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the condition comes true");
}

const SIMPLE: &str =
    "module \"m\" { source = \"../../modules/m\" }\noutput \"where\" { value = abspath(path.root) }\n";
const MODULE: &str = "resource \"terraform_data\" \"x\" { input = \"one\" }\n";

#[tokio::test]
async fn a_commit_becomes_a_plan_an_apply_and_a_state() {
    let mut world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    let plan = world.plan("plan-1").await;
    let sha256 = planned(&plan);
    assert_eq!(plan.message, "Plan: 1 to add, 0 to change, 0 to destroy. 1 output changes.");
    assert_eq!(plan.exit_code, 2);
    let tool = plan.tool.as_ref().unwrap();
    assert!(tool.starts_with("terraform ") || tool.starts_with("tofu "), "{tool}");
    let made_from = plan.plan.as_ref().unwrap();
    assert_eq!((&made_from.lineage, made_from.serial), (&None, None));
    assert!(world.state().await.is_none(), "a plan writes no state");
    let attempt = Attempt::new("plan-1", 1).unwrap();
    let text = world.client().artefact_get(&attempt, Artefact::PlanText, 1 << 20).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&text).contains("module.m.terraform_data.x will be created"));
    let json = world.client().artefact_get(&attempt, Artefact::PlanJson, 1 << 20).await.unwrap().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["resource_changes"][0]["address"], "module.m.terraform_data.x");

    let apply = world.run(world.apply_of("apply-1", 1, "plan-1", sha256)).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert_eq!(apply.message, "Apply complete! Resources: 1 added, 0 changed, 0 destroyed.");
    let state = world.state().await.unwrap();
    assert_eq!(state["resources"][0]["instances"][0]["attributes"]["input"]["value"], "one");

    // The path is the same in every attempt: the second plan sees no change.
    let again = world.plan("plan-2").await;
    assert_eq!(again.message, "No changes.");
    let made_from = again.plan.unwrap();
    assert_eq!(made_from.summary, PlanSummary::default());
    assert_eq!(made_from.lineage.as_deref(), state["lineage"].as_str());
    assert_eq!(made_from.serial, state["serial"].as_u64());

    // A new commit of the module changes the layer.
    world.commit(&[("modules/m/main.tf", &MODULE.replace("one", "two"))]).await;
    let change = world.plan("plan-3").await;
    assert_eq!(change.message, "Plan: 0 to add, 1 to change, 0 to destroy.");
    let differences = change.plan.unwrap().differences;
    assert_eq!(differences.words(), "module.m.terraform_data.x differs in input");
    let input = &differences.resources[0].attributes[0];
    assert_eq!((input.expected.as_str(), input.found.as_str()), ("\"two\"", "\"one\""));

    // Nothing moved in the world, so a plan that only refreshes has nothing to say.
    let refresh = Description { mode: Mode::RefreshOnly, ..world.description("refresh", Action::Plan, 0) };
    let refresh = world.run(refresh).await;
    assert_eq!(refresh.message, "No changes.");
    assert!(refresh.plan.unwrap().differences.is_empty());

    // What was made can be destroyed, by a plan like any other.
    let destroy = Description { mode: Mode::Destroy, ..world.description("destroy", Action::Plan, 0) };
    let destroy = world.run(destroy).await;
    assert_eq!(destroy.plan.as_ref().unwrap().summary.destroy, 1, "{}", destroy.message);
    let apply =
        Description { mode: Mode::Destroy, ..world.apply_of("destroyed", 2, "destroy", planned(&destroy)) };
    let apply = world.run(apply).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert_eq!(world.state().await.unwrap()["resources"], serde_json::json!([]));
}

#[tokio::test]
async fn a_plan_that_was_tampered_with_is_not_applied() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    planned(&world.plan("plan-1").await);
    let approved = Sha256::of(b"the plan that was approved");
    let apply = world.run(world.apply_of("apply-1", 1, "plan-1", approved)).await;
    assert_eq!(apply.reason, Reason::BadInput);
    assert!(apply.message.contains("sha256"), "{}", apply.message);
    assert!(world.state().await.is_none());
    assert!(!world.log_of("apply-1").await.contains("Apply complete"));
}

#[tokio::test]
async fn a_plan_that_has_expired_is_not_applied() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    let plan = world.plan("plan-1").await;
    let expiring = |run: &str, fence: u64, expires: Timestamp| {
        let mut apply = world.apply_after(run, fence, &plan);
        apply.plan.as_mut().unwrap().expires = Some(expires);
        apply
    };
    let late = world.run(expiring("apply-1", 1, plan.finished_at)).await;
    assert_eq!(late.reason, Reason::Stale);
    let expected =
        format!("the plan expired at {}; nothing was applied, a new plan is needed", plan.finished_at);
    assert_eq!(late.message, expected);
    assert!(world.state().await.is_none());
    assert_eq!(world.run(expiring("apply-2", 2, Timestamp::MAX)).await.reason, Reason::Succeeded);
}

#[tokio::test]
async fn a_plan_made_from_an_older_state_is_stale_and_nothing_is_applied() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    let first = planned(&world.plan("plan-1").await);
    let second = planned(&world.plan("plan-2").await);
    assert_eq!(world.run(world.apply_of("apply-1", 1, "plan-1", first)).await.reason, Reason::Succeeded);
    let before = world.state().await.unwrap();
    let stale = world.run(world.apply_of("apply-2", 2, "plan-2", second)).await;
    assert_eq!(stale.reason, Reason::Stale);
    assert_eq!(
        stale.message,
        format!(
            "the state has changed since the plan was made (the plan was made from no state, now there is serial {}); nothing was applied, a new plan is needed",
            before["serial"]
        )
    );
    assert_eq!(world.state().await.unwrap(), before);
}

#[tokio::test]
async fn mistakes_in_the_code_are_told_with_their_place() {
    let broken = "resource \"terraform_data\" \"x\" {\n  input = var.nope\n}\n";
    let world = World::new(&[("envs/prod/main.tf", broken)]).await;
    let failed = world.plan("plan-1").await;
    assert_eq!(failed.reason, Reason::ToolFailed);
    assert!(
        failed.message.starts_with("Reference to undeclared input variable (main.tf:2): "),
        "{}",
        failed.message
    );
    assert_eq!(failed.exit_code, 1);

    let elsewhere =
        Description { path: "envs/dev".parse().unwrap(), ..world.description("plan-2", Action::Plan, 0) };
    let missing = world.run(elsewhere).await;
    assert_eq!(missing.reason, Reason::BadInput);
    assert!(missing.message.starts_with("envs/dev is not a directory at commit "), "{}", missing.message);

    let future = Description {
        tool_version: Some(">= 99".to_owned()),
        ..world.description("plan-3", Action::Plan, 0)
    };
    let missing = world.run(future).await;
    assert_eq!(missing.reason, Reason::ToolMissing);
    assert!(
        missing.message.contains(">= 99 (asked for by the layer or its repository)"),
        "{}",
        missing.message
    );
    assert!(missing.message.contains("installed: "), "{}", missing.message);
}

/// It is built only where terraform is not.
#[tokio::test]
async fn opentofu_is_used_where_it_is_asked_for_and_there() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    let is_there = world.options("tofu").search_path.iter().any(|dir| dir.join("tofu").is_file());
    let with_tofu = |description: Description| Description { tool: Some(Tool::Opentofu), ..description };
    let plan = world.run(with_tofu(world.description("plan-1", Action::Plan, 0))).await;
    if !is_there {
        assert_eq!(plan.reason, Reason::ToolMissing);
        assert!(plan.message.starts_with("tofu is not installed; none is installed. "), "{}", plan.message);
        return;
    }
    assert!(plan.tool.as_ref().unwrap().starts_with("tofu "), "{:?}", plan.tool);
    assert_eq!(plan.message, "Plan: 1 to add, 0 to change, 0 to destroy. 1 output changes.");
    let apply = world.run(with_tofu(world.apply_after("apply-1", 1, &plan))).await;
    assert_eq!(apply.message, "Apply complete! Resources: 1 added, 0 changed, 0 destroyed.");
}

#[tokio::test]
async fn secrets_do_not_reach_log_plan_or_result() {
    let code = "variable \"password\" {}\nresource \"terraform_data\" \"x\" {\n  input = var.password\n  provisioner \"local-exec\" { command = \"echo got $CANARY\" }\n}\n";
    let world = World::new(&[("envs/prod/main.tf", code)]).await;
    let canary = "canary-5f3a9c7e1b";
    let options = |run: &str| {
        let mut options = world.options(run);
        options.environment =
            vec![("TF_VAR_password".into(), canary.into()), ("CANARY".into(), canary.into())];
        options.secrets = vec![canary.to_owned().into()];
        options
    };
    world.describe(&world.description("plan-1", Action::Plan, 0)).await;
    let plan = world.run_with(options("plan-1"), std::future::pending()).await;
    world.describe(&world.apply_of("apply-1", 1, "plan-1", planned(&plan))).await;
    let apply = world.run_with(options("apply-1"), std::future::pending()).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    let log = world.log_of("apply-1").await;
    assert!(log.contains("got ***"), "{log}");
    let attempt = Attempt::new("plan-1", 1).unwrap();
    let text = world.client().artefact_get(&attempt, Artefact::PlanText, 1 << 20).await.unwrap().unwrap();
    let json = world.client().artefact_get(&attempt, Artefact::PlanJson, 1 << 20).await.unwrap().unwrap();
    for (sink, content) in [
        ("log of the plan", world.log_of("plan-1").await),
        ("log of the apply", log),
        ("plan in JSON", String::from_utf8(json.to_vec()).unwrap()),
        ("readable plan", String::from_utf8(text.to_vec()).unwrap()),
        ("result", serde_json::to_string(&plan).unwrap()),
    ] {
        assert!(!content.contains(canary), "{sink}");
    }
}

/// Code whose apply says that it began, then waits for a file.
fn waiting_code(world: &Path) -> String {
    format!(
        "resource \"terraform_data\" \"first\" {{ input = \"kept\" }}\nresource \"terraform_data\" \"slow\" {{\n  depends_on = [terraform_data.first]\n  provisioner \"local-exec\" {{ command = \"touch {0}/began; while [ ! -e {0}/go ]; do sleep 0.05; done\" }}\n}}\n",
        world.display()
    )
}

#[tokio::test]
async fn a_stop_in_mid_apply_saves_the_state_and_releases_the_lock() {
    let signals = tempfile::tempdir().unwrap();
    let world = World::new(&[("envs/prod/main.tf", &waiting_code(signals.path()))]).await;
    let plan = planned(&world.plan("plan-1").await);
    world.describe(&world.apply_of("apply-1", 1, "plan-1", plan)).await;
    let began = signals.path().join("began");
    let apply = world.run_with(world.options("apply-1"), until(|| began.exists())).await;
    assert_eq!(apply.reason, Reason::Interrupted, "{}", apply.message);
    let state = world.state().await.expect("the state was saved");
    let first =
        state["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == "first").unwrap();
    assert_eq!(first["instances"][0]["attributes"]["input"]["value"], "kept");
    let lock = reqwest_get(&world, &format!("/v1/state/{}/lock", state_id())).await;
    assert_eq!(lock, 204, "the lock was released");
}

#[tokio::test]
async fn a_datastore_that_is_away_in_mid_apply_gets_state_and_log_when_it_is_back() {
    let signals = tempfile::tempdir().unwrap();
    let world = World::new(&[("envs/prod/main.tf", &waiting_code(signals.path()))]).await;
    let plan = planned(&world.plan("plan-1").await);
    world.describe(&world.apply_of("apply-1", 1, "plan-1", plan)).await;
    let (began, go) = (signals.path().join("began"), signals.path().join("go"));
    let director = async {
        until(|| began.exists()).await;
        world.away.store(true, Ordering::SeqCst);
        std::fs::write(&go, "").unwrap();
        // The tool wants its state saved, and is kept waiting through several tries.
        until(|| world.turned_away.load(Ordering::SeqCst) > 3).await;
        world.away.store(false, Ordering::SeqCst);
    };
    let (apply, ()) =
        tokio::join!(world.run_with(world.options("apply-1"), std::future::pending()), director);
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    let names: Vec<_> = world.state().await.unwrap()["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].clone())
        .collect();
    assert_eq!(names, ["first", "slow"]);
    let log = world.log_of("apply-1").await;
    assert_eq!(log.matches("Apply complete!").count(), 1, "said once: {log}");
}

#[tokio::test]
async fn a_state_that_the_tool_could_not_save_is_rescued() {
    let signals = tempfile::tempdir().unwrap();
    let world = World::new(&[("envs/prod/main.tf", &waiting_code(signals.path()))]).await;
    let plan = planned(&world.plan("plan-1").await);
    world.describe(&world.apply_of("apply-1", 1, "plan-1", plan)).await;
    let (began, go) = (signals.path().join("began"), signals.path().join("go"));
    let errored = world.dir.path().join("work/layer-uid/source/envs/prod/errored.tfstate");
    let director = async {
        until(|| began.exists()).await;
        world.away.store(true, Ordering::SeqCst);
        std::fs::write(&go, "").unwrap();
        until(|| errored.exists()).await;
        world.away.store(false, Ordering::SeqCst);
    };
    let mut options = world.options("apply-1");
    // The tool loses patience with us because we lose it with the datastore.
    options.patience = Duration::from_millis(300);
    let (apply, ()) = tokio::join!(world.run_with(options, std::future::pending()), director);
    assert_eq!(apply.reason, Reason::ToolFailed);
    assert!(
        apply.message.ends_with("The state that the tool could not save was saved afterwards"),
        "{}",
        apply.message
    );
    let state = world.state().await.expect("the state was rescued");
    let names: Vec<_> = state["resources"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["first", "slow"]);
    assert_eq!(reqwest_get(&world, &format!("/v1/state/{}/lock", state_id())).await, 204, "no lock stays");
}

#[tokio::test]
async fn a_state_locked_by_a_person_is_left_alone() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    let first = planned(&world.plan("plan-1").await);
    assert_eq!(world.run(world.apply_of("apply-1", 1, "plan-1", first)).await.reason, Reason::Succeeded);
    let second = planned(&world.plan("plan-2").await);
    let info = Bytes::from_static(b"{\"ID\":\"by-hand\",\"Operation\":\"maintenance\",\"Who\":\"alice\",\"Version\":\"1\",\"Created\":\"2026-01-01T00:00:00Z\",\"Info\":\"\",\"Path\":\"\"}");
    world.client().state_lock(&state_id(), LockChange::Take, info, None).await.unwrap();
    let before = world.state().await;
    let locked = world.run(world.apply_of("apply-2", 2, "plan-2", second)).await;
    assert_eq!(locked.reason, Reason::StateLocked, "{}", locked.message);
    assert!(
        locked
            .message
            .starts_with("the state is locked by alice (operation maintenance, held by controller since "),
        "{}",
        locked.message
    );
    assert_eq!(world.state().await, before);
}

async fn reqwest_get(world: &World, path: &str) -> u16 {
    reqwest::Client::new()
        .get(format!("{}{path}", world.base))
        .bearer_auth("controller")
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}
