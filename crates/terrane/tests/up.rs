//! `terrane up` as a person has it: the real binary, real git, the real tool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
mod tools;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use api::layer::LayerState;
use api::run::Action;
use api::{TerraformLayer, TerraformRepository, TerraformRun};
use axum::http::StatusCode;
use harness::{
    BINARY, Gate, Terrane, declare_layer, declare_path, declare_repository, git, is, layer_until, runs,
    until, why,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn the_demo_is_planned_applied_approved_and_follows_a_commit() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&["--demo"]).await;
    layer_until(&client, "network", "applied", is("Ready")).await;
    layer_until(&client, "app", "applied", is("Ready")).await;

    let database = layer_until(&client, "database", "planned", |layer| why(layer).contains("3 to add")).await;
    assert!(why(&database).ends_with("terrane approve database"), "{}", why(&database));
    let output = terrane.command(&["approve", "database"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    layer_until(&client, "database", "applied after the approval", is("Ready")).await;

    let broken = layer_until(&client, "broken", "failed", is("Stalled")).await;
    assert!(why(&broken).contains("Missing required argument (main.tf:2)"), "{}", why(&broken));

    let demo = terrane.data().join("demo");
    fs::write(
        demo.join("modules/service/main.tf"),
        "variable \"name\" {}\nresource \"terraform_data\" \"other\" {}\n",
    )
    .unwrap();
    git(&demo, &["commit", "--quiet", "--all", "--message=Change the shared module"]);
    let head = git(&demo, &["rev-parse", "HEAD"]);
    layer_until(&client, "app", "applied at the new commit", |layer| {
        is("Ready")(layer)
            && layer.status.as_ref().unwrap().revision.applied.as_ref().is_some_and(|c| c.as_str() == head)
    })
    .await;
    let network = layer_until(&client, "network", "still applied", is("Ready")).await;
    assert_ne!(
        network.status.unwrap().revision.relevant.unwrap().as_str(),
        head,
        "the commit does not touch network"
    );

    a_path_that_a_layer_names_matters_to_it_alone(&demo, &client).await;
    drift_is_told_and_put_right(&terrane, &client).await;

    let table = terrane.command(&["get", "layers"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("app ") && line.contains("in sync")), "{table}");
    let missing = terrane.command(&["approve", "databse"]);
    assert_eq!(missing.status.code(), Some(1));
    let error = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(error.trim(), "error: layer default/databse not found; did you mean database?");

    old_runs_go_with_what_they_left(&terrane, &client).await;
    a_deleted_layer_takes_its_infrastructure_along(&terrane, &client).await;

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

async fn a_path_that_a_layer_names_matters_to_it_alone(demo: &Path, client: &Client) {
    let named = Patch::Merge(json!({"spec": {"triggerPaths": ["policies/**/*.json"]}}));
    let layers = Api::<TerraformLayer>::default_namespaced(client.clone());
    layers.patch("network", &PatchParams::default(), &named).await.unwrap();
    fs::create_dir_all(demo.join("policies/eu")).unwrap();
    fs::write(demo.join("policies/eu/network.json"), "{}").unwrap();
    git(demo, &["add", "--all"]);
    git(demo, &["commit", "--quiet", "--message=Add a policy"]);
    let head = git(demo, &["rev-parse", "HEAD"]);
    let is_at_head = |layer: &TerraformLayer| {
        layer.status.as_ref().unwrap().revision.planned.as_ref().is_some_and(|commit| commit.as_str() == head)
    };
    layer_until(client, "network", "planned at the commit of the path it names", |layer| {
        is("Ready")(layer) && is_at_head(layer)
    })
    .await;
    let seen = |layer: &TerraformLayer| layer.status.as_ref().unwrap().revision.branch.clone();
    let app = layer_until(client, "app", "has seen the commit", |layer| {
        is("Ready")(layer) && seen(layer).is_some_and(|commit| commit.as_str() == head)
    })
    .await;
    assert!(!is_at_head(&app), "the commit does not touch app");
}

/// The layer `motd` keeps a file. First it only reports what somebody did to it, then it may put it right.
async fn drift_is_told_and_put_right(terrane: &Terrane, client: &Client) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layer_until(client, "motd", "applied", is("Ready")).await;
    let file = terrane.data().join("demo-world/motd");
    let kept = fs::read_to_string(&file).unwrap();
    let on_drift = |wish: &str| Patch::Merge(json!({ "spec": { "drift": { "onDrift": wish } } }));
    layers.patch("motd", &PatchParams::default(), &on_drift("report")).await.unwrap();
    fs::write(&file, "changed by hand\n").unwrap();
    let drifted = layer_until(client, "motd", "drift is reported", |layer| {
        is("Drifted")(layer) && why(layer).contains("terrane drift motd --revert")
    })
    .await;
    assert!(why(&drifted).starts_with("drifted, terraform_data.motd differs in"), "{}", why(&drifted));
    let status = drifted.status.unwrap();
    assert_eq!(status.state, Some(LayerState::ApplyNeeded));
    let found = status.drift.unwrap();
    let [resource] = found.resources.as_slice() else { panic!("{found:?}") };
    let attribute = resource.attributes.iter().find(|a| a.name == "triggers_replace").unwrap();
    assert_eq!(
        (attribute.expected.as_str(), attribute.found.as_str()),
        ("{\"times_made\":2}", "{\"times_made\":1}")
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "changed by hand\n", "it was only reported");

    layers.patch("motd", &PatchParams::default(), &on_drift("revert")).await.unwrap();
    layer_until(client, "motd", "drift is reverted", |layer| is("Ready")(layer) && !is("Drifted")(layer))
        .await;
    assert_eq!(fs::read_to_string(&file).unwrap(), kept);
}

/// `motd` keeps three runs and is looked at all the time.
async fn old_runs_go_with_what_they_left(terrane: &Terrane, client: &Client) {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let of_motd = ListParams::default().fields("spec.layer.name=motd");
    let newest = runs.list(&of_motd).await.unwrap().items.into_iter();
    // The newest that nothing rests on in the end: a plan, because the last apply is kept.
    let plan = newest
        .filter(|run| run.spec.action == Action::Plan)
        .max_by_key(|run| run.metadata.creation_timestamp.as_ref().map(|t| t.0))
        .unwrap();
    let left = terrane.data().join("artefacts/runs").join(plan.metadata.uid.as_deref().unwrap());
    until("the run and what it left are gone", || async {
        let found = runs.get_opt(plan.metadata.name.as_deref().unwrap()).await.ok()?;
        (found.is_none() && !left.exists()).then_some(())
    })
    .await;
    let kept = runs.list(&of_motd).await.unwrap().items;
    assert!(kept.iter().any(|run| run.spec.action == Action::Apply), "the last apply is kept");
}

/// `motd` has `deletionPolicy: Destroy`. Its repository is deleted first, as `kubectl delete -f` may do.
async fn a_deleted_layer_takes_its_infrastructure_along(terrane: &Terrane, client: &Client) {
    let file = terrane.data().join("demo-world/motd");
    assert!(file.exists());
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.delete("demo", &DeleteParams::default()).await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    for name in ["motd", "network"] {
        layers.delete(name, &DeleteParams::default()).await.unwrap();
        until(&format!("{name} is let go"), || async {
            layers.get_opt(name).await.ok()?.is_none().then_some(())
        })
        .await;
    }
    assert!(!file.exists(), "what the layer made is destroyed with it");
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let left = runs.list(&ListParams::default().fields("spec.layer.name=motd")).await.unwrap();
    assert!(left.items.is_empty(), "{:?}", left.items);
}

/// How many attempts each apply took.
async fn attempts_of_applies(client: &kube::Client) -> Vec<usize> {
    let applies = runs(client, Action::Apply).await;
    applies.iter().map(|run| run.status.as_ref().unwrap().attempts.len()).collect()
}

#[tokio::test]
async fn killed_in_mid_apply_it_takes_the_apply_up_again_and_never_starts_it_twice() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let gate = Gate::new();
    let _source = declare_layer(&client, "slow", &gate.code()).await;
    gate.visitors().await;

    let before = terrane.service().await;
    terrane.signal(Signal::KILL);
    terrane.ended().await;
    assert!(gate.is_waited_at(), "the apply goes on without it");
    // The next start cannot have the same port for its service; what runs must find it all the same.
    let _taken = TcpListener::bind(before).ok();
    let client = terrane.start(&[]).await;
    assert_ne!(terrane.service().await, before);
    gate.open();
    layer_until(&client, "slow", "applied", is("Ready")).await;

    assert_eq!(gate.visitors().await, 1, "applied once");
    assert_eq!(attempts_of_applies(&client).await, [1], "one apply, one attempt");

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

#[tokio::test]
async fn ctrl_c_waits_for_what_runs_by_name_and_a_second_one_leaves_it_to_the_next_start() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let gate = Gate::new();
    let _source = declare_layer(&client, "slow", &gate.code()).await;
    gate.visitors().await;
    let waits = async |terrane: &Terrane| {
        terrane.signal(Signal::INT);
        until("it says what it waits for", || {
            let said = terrane.printed().contains("waiting for slow-apply-");
            std::future::ready(said.then_some(()))
        })
        .await;
    };

    waits(&terrane).await;
    assert!(gate.is_waited_at());
    terrane.signal(Signal::INT);
    assert_eq!(terrane.ended().await.code(), Some(0));
    assert!(terrane.printed().contains("left running; the next start takes them up again"));
    assert!(gate.is_waited_at(), "the apply goes on without it");

    let client = terrane.start(&[]).await;
    waits(&terrane).await;
    // The API still answers and takes a new layer, on which nobody acts any more. Without a change there is nothing to apply, so that the
    // one apply stays the only one.
    let _source = declare_layer(&client, "later", "# Nothing yet.\n").await;
    gate.open();
    assert_eq!(terrane.ended().await.code(), Some(0), "nothing is left to wait for");
    let ended = jiff::Timestamp::now().as_second();

    let client = terrane.start(&[]).await;
    layer_until(&client, "slow", "applied", is("Ready")).await;
    layer_until(&client, "later", "the next start looks at it", is("Ready")).await;
    let of_later = |run: &&TerraformRun| run.spec.layer.name.as_str() == "later";
    let made = |run: &TerraformRun| run.metadata.creation_timestamp.as_ref().unwrap().0.as_second();
    let plans = runs(&client, Action::Plan).await;
    assert!(plans.iter().any(|run| of_later(&run)), "{plans:?}");
    assert!(
        plans.iter().filter(of_later).all(|run| made(run) >= ended),
        "not before the next start: {plans:?}"
    );
    assert_eq!(gate.visitors().await, 1, "applied once");
    assert_eq!(attempts_of_applies(&client).await, [1], "one apply, one attempt");
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

#[tokio::test]
async fn code_that_knows_its_own_path_shows_no_change_when_it_is_planned_again() {
    let mut terrane = Terrane::new().with_program("terragrunt");
    let client = terrane.start(&[]).await;
    let code = "resource \"terraform_data\" \"here\" {\n  input = abspath(path.module)\n}\n\n\
                output \"here\" {\n  value = \"${abspath(path.module)} ${path.cwd}\"\n}\n";
    let _source = declare_layer(&client, "here", code).await;
    let applied = layer_until(&client, "here", "applied", is("Ready")).await;
    let first = applied.status.unwrap().plan.unwrap();
    assert_eq!((first.summary.add, first.summary.outputs), (1, 1));

    let output = terrane.command(&["sync", "here"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again = layer_until(&client, "here", "planned again", |layer| {
        let plan = layer.status.as_ref().and_then(|status| status.plan.as_ref());
        plan.is_some_and(|plan| plan.run != first.run)
    })
    .await;
    let second = again.status.unwrap().plan.unwrap();
    assert!(!second.summary.has_changes(), "another path at the second plan: {:?}", second.summary);
    layer_until(&client, "here", "still in order", is("Ready")).await;
    assert_eq!(attempts_of_applies(&client).await, [1], "nothing was left to apply");

    tokio::join!(a_unit_of_terragrunt_is_a_layer(&client), layers_of_one_state_wait_for_each_other(&client));

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

/// A commit that touches only what a unit includes leads to a plan and an apply by Terragrunt.
async fn a_unit_of_terragrunt_is_a_layer(client: &Client) {
    let root = |greeting: &str| format!("inputs = {{ greeting = \"{greeting}\" }}\n");
    let files = [
        ("root.hcl", root("hello").as_str()),
        ("live/app/terragrunt.hcl", "include \"root\" { path = find_in_parent_folders(\"root.hcl\") }\nterraform { source = \"../../modules//app\" }\n"),
        ("modules/app/main.tf", "variable \"greeting\" {}\nresource \"terraform_data\" \"app\" { input = var.greeting }\n"),
    ]
    .map(|(path, content)| (path, content.to_owned()));
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (*path, content.as_str())).collect();
    let source = declare_repository(client, "units", &files).await;
    declare_path(client, "units", "unit", "live/app").await;
    let applied = layer_until(client, "unit", "applied", is("Ready")).await.status.unwrap();
    assert_eq!(applied.plan.unwrap().summary.add, 1);
    assert_eq!(applied.state_identity.unwrap().backend, "terrane");

    fs::write(source.path().join("root.hcl"), root("goodbye")).unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Change what is included"]);
    let head = git(source.path(), &["rev-parse", "HEAD"]);
    let changed = layer_until(client, "unit", "applied at the new commit", |layer| {
        let applied = layer.status.as_ref().and_then(|status| status.revision.applied.as_ref());
        is("Ready")(layer) && applied.is_some_and(|commit| commit.as_str() == head)
    })
    .await;
    assert_eq!(changed.status.unwrap().plan.unwrap().summary.change, 1);
}

/// A state that anyone may read and write, as a backend without locks has it.
async fn open_state(
    axum::extract::State(content): axum::extract::State<Arc<Mutex<Vec<u8>>>>,
    method: axum::http::Method,
    body: axum::body::Bytes,
) -> (StatusCode, Vec<u8>) {
    let mut content = content.lock().unwrap();
    if method == axum::http::Method::POST {
        *content = body.to_vec();
    }
    let status = if content.is_empty() { StatusCode::NO_CONTENT } else { StatusCode::OK };
    (status, content.clone())
}

/// Two paths whose code leads to one state, in a backend that would let both write at once.
async fn layers_of_one_state_wait_for_each_other(client: &Client) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/state", listener.local_addr().unwrap());
    let service =
        axum::Router::new().route("/state", axum::routing::any(open_state)).with_state(Arc::default());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, service).await });

    let gate = Gate::new();
    let code = |address: &str| {
        format!("terraform {{\n  backend \"http\" {{ address = \"{address}\" }}\n}}\n{}", gate.code())
    };
    // One of them names a user, which makes no other state of it.
    let with_user = address.replace("http://", "http://someone@");
    let files = [("left/main.tf", code(&address)), ("right/main.tf", code(&with_user))];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (*path, content.as_str())).collect();
    let _source = declare_repository(client, "shared", &files).await;
    for name in ["left", "right"] {
        declare_path(client, "shared", name, name).await;
    }
    let of = |name: &'static str| move |run: &TerraformRun| run.spec.layer.name.as_str() == name;
    let apply = async |name: &'static str| {
        until("the apply exists", async || runs(client, Action::Apply).await.into_iter().find(of(name))).await
    };
    let (left, right) = (apply("left").await, apply("right").await);
    assert_eq!(left.spec.state, right.spec.state, "one lock for both");
    let waits = |run: &TerraformRun| {
        let conditions = run.status.as_ref().map_or(&[][..], |status| &status.conditions);
        api::condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "StateLocked")
    };
    until("one of them waits for the other", async || {
        let both = runs(client, Action::Apply).await;
        both.iter().find(|run| (of("left")(run) || of("right")(run)) && waits(run)).map(|_| ())
    })
    .await;
    assert_eq!(gate.visitors().await, 1, "one of them is at work");
    gate.open();
    // The second one was planned on a state that the first has changed since: it ends without having begun.
    let ends = until("both applies have ended", async || {
        let both: Vec<String> = runs(client, Action::Apply)
            .await
            .iter()
            .filter(|run| run.metadata.uid == left.metadata.uid || run.metadata.uid == right.metadata.uid)
            .filter_map(|run| Some(run.status.as_ref()?.result.as_ref()?.reason.clone()))
            .collect();
        (both.len() == 2).then_some(both)
    })
    .await;
    let ends: std::collections::BTreeSet<&str> = ends.iter().map(String::as_str).collect();
    assert_eq!(ends, std::collections::BTreeSet::from(["Stale", "Succeeded"]));
    assert_eq!(gate.visitors().await, 1);
    for name in ["left", "right"] {
        let layer = layer_until(client, name, "planned", |layer| layer.status.is_some()).await;
        let identity = layer.status.unwrap().state_identity.unwrap();
        assert_eq!(identity.backend, format!("http address={address}"));
    }
}

#[test]
fn whoever_stops_reading_ends_the_program_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(BINARY).arg("version").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(141), String::new()));
}

#[test]
fn what_cannot_work_is_refused_in_one_sentence() {
    let output = Command::new(BINARY).args(["up", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("choose a loopback address"), "{error}");
    let help = Command::new(BINARY).args(["up", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in ["--data-dir", "--listen", "--api-listen", "--demo"] {
        assert!(help.contains(flag), "{help}");
    }
}

/// As a version with a looser schema would have left it, which is what a newer one is to an older.
async fn declare_unreadable_layer(client: &Client) {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let branch = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/branch";
    let loosen = json!([{ "op": "replace", "path": branch, "value": { "type": "string" } }]);
    let loosen = Patch::Json::<()>(serde_json::from_value(loosen).unwrap());
    definitions.patch("terraformlayers.terrane.dev", &PatchParams::default(), &loosen).await.unwrap();
    let kind = ApiResource::erase::<TerraformLayer>(&());
    let layers = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &kind);
    let spec = json!({ "repository": { "name": "good" }, "branch": "a..b", "path": "x" });
    let unreadable = DynamicObject::new("unreadable", &kind).data(json!({ "spec": spec }));
    until("the looser schema takes it", || async {
        layers.create(&PostParams::default(), &unreadable).await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_layer_that_cannot_be_read_is_told_of_and_hides_no_other() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    declare_unreadable_layer(&client).await;
    terrane.signal(Signal::TERM);
    assert!(terrane.ended().await.success());

    let client = terrane.start(&[]).await;
    let _source = declare_layer(&client, "good", "resource \"terraform_data\" \"one\" {}\n").await;
    layer_until(&client, "good", "applied", is("Ready")).await;
    let events = Api::<Event>::namespaced(client.clone(), "default");
    let told = until("an Event on the object", || async {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("Unreadable"))
    })
    .await;
    assert_eq!(told.regarding.unwrap().name.as_deref(), Some("unreadable"));
    assert!(told.note.as_ref().unwrap().contains("\"a..b\" is not a branch name"), "{:?}", told.note);

    let output = terrane.command(&["get", "layers"]);
    assert!(output.status.success());
    let (table, warning) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(table.contains("good") && !table.contains("unreadable"), "{table}");
    assert!(warning.contains("TerraformLayer default/unreadable cannot be read"), "{warning}");
    let missing = terrane.command(&["get", "layers", "nope"]);
    assert_eq!(
        String::from_utf8(missing.stderr).unwrap().trim(),
        "error: layer default/nope not found; `terrane get layers -A` lists them"
    );
    let good = Api::<TerraformLayer>::namespaced(client, "default").get("good").await.unwrap();
    let managers: Vec<_> =
        good.metadata.managed_fields.iter().flatten().filter_map(|f| f.manager.as_deref()).collect();
    assert!(managers.contains(&"terrane-controller"), "{managers:?}");
}
