//! Backends that a layer asks for, by the real tool: on a real S3 server, a real PostgreSQL, a server of states and in a file; what the
//! tool logs in with is in nothing that comes out.

use std::sync::Mutex;

use api::attempt::GivenInputs;
use api::backends::{BackendSpec, Backends, Facts};
use api::inputs::{DigestKey, Inputs};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use serde_json::{Value, json};
use testkit::canary::Canary;
use testkit::postgres::Postgres;
use testkit::s3::S3Server;

use super::*;

pub(crate) const CODE: &str = "resource \"terraform_data\" \"x\" { input = 1 }\n";
/// Names another place, to see whose word counts.
const CODE_ELSEWHERE: &str = "terraform {\n  backend \"local\" { path = \"/nowhere/at/all\" }\n}\nresource \"terraform_data\" \"x\" { input = 1 }\n";

/// What a layer gives to its attempts, with its Secret as a kubelet mounts it.
pub(crate) struct Layer {
    inputs: GivenInputs,
    secret: tempfile::TempDir,
    backends: Backends,
}

impl Layer {
    pub(crate) fn new(backend: Value, secret: &[(&str, &str)]) -> Self {
        Self::among(Backends::default(), backend, secret, json!({}))
    }

    pub(crate) fn among(backends: Backends, backend: Value, secret: &[(&str, &str)], more: Value) -> Self {
        let facts = Facts { namespace: "team", name: "layer", path: "envs/prod", workspace: "default" };
        let asked: BackendSpec = serde_json::from_value(backend).unwrap();
        let backend = Some(backends.generate(&asked, facts).unwrap());
        let inputs = Inputs { backend, ..serde_json::from_value(more).unwrap() };
        let key = DigestKey::new([5; DigestKey::LENGTH]);
        let data: std::collections::BTreeMap<String, Vec<u8>> =
            secret.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        let contents = inputs.objects().into_keys().map(|object| (object, data.clone())).collect();
        let digest = inputs.digest(&key, &contents).unwrap();
        let mounted = tempfile::tempdir().unwrap();
        for (key, value) in secret {
            std::fs::write(mounted.path().join(key), value).unwrap();
        }
        Self { inputs: GivenInputs { inputs, key, digest }, secret: mounted, backends }
    }

    async fn run(&self, world: &World, description: Description) -> Outcome {
        let description = Description { inputs: Some(self.inputs.clone()), ..description };
        world.describe(&description).await;
        let options = RunnerOptions {
            inputs: self.inputs.inputs.objects().keys().map(|_| self.secret.path().to_owned()).collect(),
            ..world.options(&description.run_uid)
        };
        world.run_with(options, std::future::pending()).await
    }

    pub(crate) async fn plan(&self, world: &World, run: &str) -> Outcome {
        self.run(world, world.description(run, Action::Plan, 0)).await
    }

    /// Plans, applies and plans again: the state is found where it was put.
    pub(crate) async fn live(&self, world: &World) -> Outcome {
        let plan = self.plan(world, "plan-1").await;
        assert_eq!(plan.message, "Plan: 1 to add, 0 to change, 0 to destroy.");
        let apply = self.run(world, world.apply_after("apply-1", 1, &plan)).await;
        assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
        let again = self.plan(world, "plan-2").await;
        assert_eq!(again.message, "No changes.");
        assert!(again.plan.as_ref().unwrap().lineage.is_some());
        assert!(world.state().await.is_none(), "nothing is kept in the datastore");
        again
    }
}

/// Nothing that a run left holds the secret.
pub(crate) async fn leaves_no_trace(world: &World, runs: &[&str], secret: &str) {
    let canary = Canary::known("what the backend logs in with", secret);
    let mut looked_at = 0;
    for run in runs {
        let attempt = Attempt::new(*run, 1).unwrap();
        let artefacts =
            [Artefact::Spec, Artefact::Plan, Artefact::PlanText, Artefact::PlanJson, Artefact::Result];
        for artefact in artefacts {
            let content = world.client().artefact_get(&attempt, artefact, 1 << 24).await.unwrap();
            looked_at += usize::from(content.is_some());
            let found = content.and_then(|content| canary.found_in(&content));
            assert_eq!(found, None, "{artefact:?} of {run}");
        }
        assert_eq!(canary.found_in(world.log(&attempt).await.as_bytes()), None, "the log of {run}");
    }
    assert!(looked_at >= 2 * runs.len(), "{looked_at}");
}

pub(crate) fn words(outcome: &Outcome) -> String {
    outcome.plan.as_ref().unwrap().backend.as_ref().unwrap().to_string()
}

#[tokio::test]
async fn a_state_lives_in_a_bucket_and_is_locked_there() {
    let server = S3Server::shared().await;
    let prefix = format!("backends-{:08x}", std::process::id());
    let login: std::collections::BTreeMap<String, String> =
        server.environment(server.address()).into_iter().collect();
    let secret = &login["AWS_SECRET_ACCESS_KEY"];
    let credentials = [
        ("AWS_ACCESS_KEY_ID", login["AWS_ACCESS_KEY_ID"].as_str()),
        ("AWS_SECRET_ACCESS_KEY", secret.as_str()),
    ];
    let key = format!("{prefix}/layer.tfstate");
    let layer = Layer::new(
        json!({
            "provider": "s3", "bucket": server.bucket(), "key": key, "region": "us-east-1",
            "endpoint": format!("http://{}", server.address()), "use_path_style": true,
            "skip_credentials_validation": true, "skip_requesting_account_id": true, "skip_metadata_api_check": true,
            "skip_region_validation": true, "credentials": { "secretName": "cloud" },
        }),
        &credentials,
    );
    let world = World::new(&[("envs/prod/main.tf", CODE_ELSEWHERE)]).await;
    let again = layer.live(&world).await;
    let endpoint = format!("endpoint=http://{}", server.address());
    assert_eq!(words(&again), format!("s3 bucket={} {endpoint} object={key}", server.bucket()));
    let state = std::fs::read(server.files(&key)).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(state["resources"][0]["type"], "terraform_data");
    leaves_no_trace(&world, &["plan-1", "apply-1", "plan-2"], secret).await;

    // Two who would change it at once: one holds the lock, the other is refused and changes nothing.
    let signs = tempfile::tempdir().unwrap();
    let (held, go_on) = (signs.path().join("held"), signs.path().join("go-on"));
    let slow = format!(
        "{CODE}resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = \"touch {}; until [ -e {} ]; do sleep 0.1; done\"\n  }}\n}}\n",
        held.display(),
        go_on.display()
    );
    let mut world = world;
    world.commit(&[("envs/prod/main.tf", &slow)]).await;
    let first = layer.plan(&world, "plan-3").await;
    let other = World::new(&[("envs/prod/main.tf", &CODE.replace('1', "2"))]).await;
    let second = layer.plan(&other, "plan-1").await;
    assert_eq!(second.message, "Plan: 0 to add, 1 to change, 0 to destroy.");
    let changing = layer.run(&world, world.apply_after("apply-3", 2, &first));
    let refused = async {
        until(|| held.exists()).await;
        let refused = layer.run(&other, other.apply_after("apply-1", 1, &second)).await;
        std::fs::write(&go_on, "").unwrap();
        refused
    };
    let (changed, refused) = tokio::join!(changing, refused);
    assert_eq!(changed.reason, Reason::Succeeded, "{}", changed.message);
    assert_eq!(refused.reason, Reason::StateLocked, "{}", refused.message);
    assert!(!server.files(&format!("{key}.tflock")).exists(), "what was locked is unlocked");
}

#[tokio::test]
async fn a_state_lives_in_a_database() {
    let server = Postgres::start().await.unwrap();
    let connection = server.connection();
    let layer = Layer::new(
        json!({ "provider": "pg", "schema_name": "team_layer", "credentials": { "secretName": "db" } }),
        &[("PG_CONN_STR", &connection), ("unknown", "key")],
    );
    let world = World::new(&[("envs/prod/main.tf", CODE)]).await;
    let again = layer.live(&world).await;
    let port = server.address().port();
    assert_eq!(
        words(&again),
        format!("pg dbname=postgres host=127.0.0.1 port={port} schema_name=team_layer")
    );
    leaves_no_trace(&world, &["plan-1", "apply-1", "plan-2"], server.password()).await;
    let log = world.log_of("plan-1").await;
    assert!(log.contains("The layer's own backend: pg (pg)."), "{log}");
    assert!(log.contains("Key unknown of Secret db is none that the backend reads; left out."), "{log}");

    // A password that is not the right one is the tool's to complain about.
    let wrong = connection.replace(server.password(), "not-the-password");
    let layer = Layer::new(
        json!({ "provider": "pg", "schema_name": "team_layer", "credentials": { "secretName": "db" } }),
        &[("PG_CONN_STR", &wrong)],
    );
    let refused = layer.plan(&world, "plan-3").await;
    assert_eq!(refused.reason, Reason::ToolFailed);
    assert!(refused.message.contains("password authentication failed"), "{}", refused.message);
    leaves_no_trace(&world, &["plan-3"], "not-the-password").await;
}

/// Keeps one state, for whoever has the login.
#[derive(Default)]
struct Shelf {
    login: String,
    state: Mutex<Option<Vec<u8>>>,
    lock: Mutex<Option<Vec<u8>>>,
}

async fn shelve(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let expected = base64::engine::general_purpose::STANDARD.encode(&shelf.login);
    let said = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    if said != Some(&format!("Basic {expected}")) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let method = request.method().clone();
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap().to_vec();
    match method {
        Method::GET => match shelf.state.lock().unwrap().clone() {
            Some(state) => state.into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        Method::POST => {
            *shelf.state.lock().unwrap() = Some(body);
            StatusCode::OK.into_response()
        }
        other if other.as_str() == "LOCK" => {
            let mut lock = shelf.lock.lock().unwrap();
            match lock.clone() {
                Some(held) => (StatusCode::LOCKED, held).into_response(),
                None => {
                    *lock = Some(body);
                    StatusCode::OK.into_response()
                }
            }
        }
        other if other.as_str() == "UNLOCK" => {
            *shelf.lock.lock().unwrap() = None;
            StatusCode::OK.into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

#[tokio::test]
async fn a_state_lives_on_a_server_that_asks_for_a_login() {
    let secret = Canary::random("the password of a server");
    let shelf = Arc::new(Shelf { login: format!("terrane:{}", secret.value), ..Shelf::default() });
    let app = axum::Router::new().fallback(shelve).with_state(Arc::clone(&shelf));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/states/layer", listener.local_addr().unwrap());
    #[allow(clippy::disallowed_methods)] // A test's server ends with the test.
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let layer = Layer::new(
        json!({ "provider": "http", "address": address, "lock_address": address, "unlock_address": address,
            "retry_max": 0, "credentials": { "secretName": "server" } }),
        &[("TF_HTTP_USERNAME", "terrane"), ("TF_HTTP_PASSWORD", &secret.value)],
    );
    // What each process of the machine was called with while the tool worked.
    let directory = tempfile::tempdir().unwrap();
    let seen = directory.path().join("lines");
    let code = format!(
        "resource \"terraform_data\" \"x\" {{\n  input = 1\n  provisioner \"local-exec\" {{\n    command = \"cat /proc/[0-9]*/cmdline > {} || true\"\n  }}\n}}\n",
        seen.display()
    );
    let world = World::new(&[("envs/prod/main.tf", &code)]).await;
    let again = layer.live(&world).await;
    let lines = std::fs::read(&seen).unwrap();
    assert!(String::from_utf8_lossy(&lines).contains("apply"), "the tool was seen at work");
    assert_eq!(secret.found_in(&lines), None, "in an argument");
    assert_eq!(words(&again), format!("http address={address}"));
    assert!(shelf.state.lock().unwrap().is_some() && shelf.lock.lock().unwrap().is_none());
    leaves_no_trace(&world, &["plan-1", "apply-1", "plan-2"], &secret.value).await;
    server.abort();
}

/// A place that only this test's administrator knows.
const DEFINITION: &str = r#"
name: shelf
about: A directory that every runner sees.
backend: local
fields:
  shelf: { about: The directory., required: true }
settings:
  path: "{shelf}/{layer.namespace}-{layer.name}.tfstate"
"#;

#[tokio::test]
async fn a_backend_that_an_administrator_defined_takes_the_place_of_the_codes_own() {
    let elsewhere = tempfile::tempdir().unwrap();
    // As awkward as a path may be.
    let place = elsewhere.path().canonicalize().unwrap().join("a \"quoted\" \\ $ name");
    std::fs::create_dir(&place).unwrap();
    let mut backends = Backends::default();
    backends.add(DEFINITION).unwrap();
    let layer = Layer::among(backends, json!({ "provider": "shelf", "shelf": place }), &[], json!({}));
    let world = World::new(&[
        ("envs/prod/main.tf", CODE_ELSEWHERE),
        // What another apply left behind, of another backend.
        (
            "envs/prod/.terraform/terraform.tfstate",
            "{\"version\": 3, \"backend\": {\"type\": \"local\", \"config\": {\"path\": \"/nowhere/else\"}, \"hash\": 1}}",
        ),
        ("envs/prod/z_override.tf", "terraform {\n  backend \"local\" { path = \"/nowhere/else\" }\n}\n"),
    ])
    .await;
    let again = layer.live(&world).await;
    let file = place.join("team-layer.tfstate");
    assert_eq!(words(&again), format!("local path={}", file.display()));
    assert!(file.exists());
    assert!(layer.backends.all().any(|known| known.name.as_str() == "shelf"));
}

#[tokio::test]
async fn what_two_would_say_is_not_guessed() {
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("state");
    let mine = json!({ "provider": "local", "path": path });

    // A file that the tool reads after ours.
    let last = format!("terraform {{\n  backend \"local\" {{ path = \"{}\" }}\n}}\n", path.display());
    let world = World::new(&[("envs/prod/main.tf", CODE), ("envs/prod/~~_override.tf", &last)]).await;
    let asked = json!({ "provider": "http", "address": "http://127.0.0.1:1" });
    let refused = Layer::new(asked, &[]).plan(&world, "plan-1").await;
    assert_eq!(refused.reason, Reason::BadInput, "{}", refused.message);
    let words = "the layer asks for backend http, but a file of the code that is read last names local";
    assert!(refused.message.starts_with(words), "{}", refused.message);

    // A variable that the environment sets too.
    let more = json!({ "environment": [{ "name": "TF_HTTP_PASSWORD", "value": "other" }] });
    let asked =
        json!({ "provider": "http", "address": "http://127.0.0.1:1", "credentials": { "secretName": "s" } });
    let both = Layer::among(Backends::default(), asked, &[("TF_HTTP_PASSWORD", "one")], more);
    let refused = both.plan(&world, "plan-2").await;
    assert_eq!(refused.reason, Reason::BadInput, "{}", refused.message);
    assert_eq!(
        refused.message,
        "TF_HTTP_PASSWORD is set by the layer's environment and by Secret s, which the backend logs in with; remove one of them"
    );

    // A unit that Terragrunt gives a backend.
    let unit = "remote_state {\n  backend = \"local\"\n  generate = { path = \"backend.tf\", if_exists = \"overwrite\" }\n  config = { path = \"/nowhere/at/all\" }\n}\n";
    let world = World::new(&[("envs/prod/main.tf", CODE), ("envs/prod/terragrunt.hcl", unit)]).await;
    let refused = Layer::new(mine.clone(), &[]).plan(&world, "plan-1").await;
    assert_eq!(refused.reason, Reason::BadInput, "{}", refused.message);
    assert!(
        refused.message.starts_with("Terragrunt gives this unit a backend, and so does the layer"),
        "{}",
        refused.message
    );

    // One that it gives none has the layer's.
    let world =
        World::new(&[("envs/prod/main.tf", CODE), ("envs/prod/terragrunt.hcl", "inputs = {}\n")]).await;
    Layer::new(mine, &[]).live(&world).await;
    assert!(path.exists());
}
