//! Runs as a person steers them, by the real binary and the real tool: the queue, cancel, Events, the audit, health and metrics,
//! and a second controller that stands by.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod backends;
mod builds;
mod draining;
mod figures;
#[path = "../harness/mod.rs"]
mod harness;
mod hooks;
mod images;
mod inputs;
mod killed;
mod latest;
mod mails;
mod notifications;
mod outputs;
mod repo;
mod runner_override;
mod split;
mod takeover;
mod terraform;
mod undone;
mod variables;
mod workload;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use api::run::{Action, RunState, TriggerKind};
use api::{SYSTEM_NAMESPACE, TerraformLayer, TerraformRepository, TerraformRun, condition};
use datastore::Subject;
use datastore::client::TokenSource;
use harness::{BINARY, Terrane, free_address, git, run_until, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::{Guarded, Scratch};

/// `terrane up` with one runner at a time.
async fn start() -> (Terrane, Client) {
    let mut terrane = Terrane::new();
    let client = terrane.start(&["--max-runner-pods", "1"]).await;
    (terrane, client)
}

fn told(output: std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn second_datastore(terrane: &Terrane, listen: SocketAddr) -> Guarded {
    let place = |name: &str| terrane.root().join(name).display().to_string();
    let more = vec![format!("--directory={}", place("objects")), format!("--keys={}", place("keys"))];
    terrane.role("datastore", listen, more)
}

async fn second_controller(terrane: &Terrane, listen: SocketAddr) -> Guarded {
    let more = vec![
        format!("--datastore-url=http://{}", terrane.service().await),
        format!("--token-file={}", terrane.data().join("controller-token").display()),
        "--runner-image=terrane.dev/local".to_owned(),
        format!("--git-dir={}", terrane.root().join("git").display()),
        "--log-format=json".to_owned(),
    ];
    terrane.role("controller", listen, more)
}

async fn end_role(mut process: Guarded) {
    let pid = i32::try_from(process.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    let status = until("the process has ended", || std::future::ready(process.exited().unwrap())).await;
    assert_eq!(status.code(), Some(0));
}

async fn end(mut terrane: Terrane) {
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

fn reason(run: &TerraformRun) -> &str {
    let conditions = run.status.as_ref().map_or(&[][..], |status| &status.conditions);
    condition::find(conditions, "Ready").map_or("", |ready| ready.reason.as_str())
}

/// A repository with a layer whose apply writes to `marks` and waits for `gate`, and one that just applies.
fn make_source(root: &Path, world: &Path) {
    let slow = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = \"echo applied >> {0}/marks; while [ ! -e {0}/gate ]; do sleep 0.1; done\"\n  }}\n}}\n",
        world.display()
    );
    for (path, code) in [("slow", slow.as_str()), ("late", "resource \"terraform_data\" \"late\" {}\n")] {
        fs::create_dir_all(root.join(path)).unwrap();
        fs::write(root.join(path).join("main.tf"), code).unwrap();
    }
    git(root, &["init", "--quiet"]);
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message=Start"]);
}

async fn declare_layer(client: &Client, name: &str) {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": name, "remediationStrategy": { "autoApply": true } },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
}

async fn reasons_of(client: &Client, object: &str) -> Vec<String> {
    let events = Api::<Event>::namespaced(client.clone(), "default");
    let all = events.list(&ListParams::default()).await.unwrap();
    let about = |event: &Event| event.regarding.as_ref().and_then(|o| o.name.as_deref()) == Some(object);
    all.items.into_iter().filter(about).filter_map(|event| event.reason).collect()
}

async fn page(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let response = reqwest::get(format!("http://{address}{path}")).await.ok()?;
    Some((response.status().as_u16(), response.text().await.ok()?))
}

async fn declare_repository(client: &Client, source: &Path) {
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
        "spec": { "repository": { "url": format!("file://{}", source.display()) }, "pollInterval": "1s" },
    });
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let repository = serde_json::from_value(repository).unwrap();
    repositories.create(&PostParams::default(), &repository).await.unwrap();
}

/// Where pods leave what we are to see: they have users of their own, so everybody may write there.
fn shared_world() -> tempfile::TempDir {
    let world = tempfile::tempdir().unwrap();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o777)).unwrap();
    world
}

/// What a role says of itself once it is ready.
async fn ready_page(role: &mut Guarded, listen: SocketAddr) -> String {
    until("the role is ready", || {
        role.ensure_running().unwrap();
        async move { page(listen, "/readyz").await.filter(|(code, _)| *code == 200).map(|(_, text)| text) }
    })
    .await
}

#[test]
fn a_datastore_takes_no_tokens_in_clear_from_the_network() {
    let output = Command::new(BINARY).args(["datastore", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("would take tokens in clear"), "{error}");
}

#[tokio::test]
async fn an_apply_whose_run_is_deleted_leaves_neither_pod_nor_lock() {
    let (terrane, client) = start().await;
    let world = shared_world();
    let source = Scratch::new("terrane-source-").unwrap();
    make_source(source.path(), world.path());
    declare_repository(&client, source.path()).await;
    declare_layer(&client, "slow").await;
    let marks = world.path().join("marks");
    until("the apply has begun", || std::future::ready(marks.exists().then_some(()))).await;
    let is_apply = |run: &TerraformRun| run.spec.action == Action::Apply;
    let doomed = run_until(&client, "slow", "its apply runs", is_apply).await;
    let pod = doomed.status.as_ref().and_then(|status| status.runner_pod.clone()).unwrap();

    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let first = pods.get(&pod).await.unwrap().uid();
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    runs.delete(&doomed.name_any(), &DeleteParams::default()).await.unwrap();
    until("the pod is gone", || async {
        let now = pods.get_opt(&pod).await.ok()?;
        (now.and_then(|pod| pod.uid()) != first).then_some(())
    })
    .await;
    fs::write(world.path().join("gate"), "").unwrap();
    let leases = Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let lease = engine::names::lease(&doomed.spec.state);
    until("the lock was taken over under a higher fence", || async {
        let spec = leases.get(&lease).await.ok()?.spec?;
        (spec.lease_transitions >= Some(2) && spec.holder_identity != doomed.uid()).then_some(())
    })
    .await;
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    until("the layer is applied", || async {
        let status = layers.get("slow").await.ok()?.status?;
        condition::is_true(&status.conditions, "Ready").then_some(())
    })
    .await;
    end(terrane).await;
}

#[tokio::test]
async fn runs_queue_are_canceled_told_counted_and_written_down() {
    let (terrane, client) = start().await;
    let service = terrane.service().await;
    let world = shared_world();
    let source = Scratch::new("terrane-source-").unwrap();
    make_source(source.path(), world.path());
    declare_repository(&client, source.path()).await;
    declare_layer(&client, "slow").await;
    let marks = world.path().join("marks");
    until("the apply has begun", || std::future::ready(marks.exists().then_some(()))).await;

    // The only runner is taken: the next run queues and says so.
    declare_layer(&client, "late").await;
    let queued = run_until(&client, "late", "queued", |run| reason(run) == "Queued").await;
    let ready = condition::find(&queued.status.as_ref().unwrap().conditions, "Ready").unwrap();
    assert_eq!(ready.message, "queued: at most 1 runners work at the same time");
    assert!(queued.status.as_ref().unwrap().attempts.is_empty(), "it did not start");
    let (_, text) = page(service, "/metrics").await.unwrap();
    assert!(text.lines().any(|line| line == "terrane_queue_length 1"), "{text}");
    let age = text.lines().find_map(|line| line.strip_prefix("terrane_queue_oldest_seconds "));
    assert!(age.unwrap().parse::<f64>().unwrap() > 0.0, "{text}");

    // Canceled in mid-apply: asked to stop, its end recorded, its lock free for the next one; the queue goes on.
    let told = told(terrane.command(&["cancel", "slow"]));
    assert!(told.contains("is asked to stop"), "{told}");
    let apply = |run: &TerraformRun| run.spec.action == Action::Apply && reason(run) == "Canceled";
    let canceled = run_until(&client, "slow", "its apply is canceled", apply).await;
    let status = canceled.status.as_ref().unwrap();
    assert_eq!(status.state, Some(RunState::Failed));
    assert_eq!(status.attempts.len(), 1, "an apply that started is never repeated");
    fs::write(world.path().join("gate"), "").unwrap();
    let lease = engine::names::lease(&canceled.spec.state);
    let leases = Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let lock = leases.get(&lease).await.unwrap().spec.unwrap();
    let fence = u64::try_from(lock.lease_transitions.unwrap()).unwrap();
    let is_free = lock.holder_identity != canceled.uid() || engine::run::is_done_with(&canceled, fence);
    assert!(is_free, "the lock of the state is free or another's");
    run_until(&client, "late", "planned after all", |run| reason(run) == "Succeeded").await;

    for (object, wanted) in [(canceled.name_any(), "Canceled"), (queued.name_any(), "Queued")] {
        until(&format!("an Event tells {wanted}"), || async {
            reasons_of(&client, &object).await.iter().any(|found| found == wanted).then_some(())
        })
        .await;
    }
    let told = reasons_of(&client, &canceled.name_any()).await;
    assert_eq!(told.iter().filter(|found| *found == "Canceled").count(), 1, "{told:?}");

    let token = TokenSource::File(terrane.data().join("controller-token"));
    let datastore = datastore::Client::new(&format!("http://{}", service), token).unwrap();
    let records = datastore.audit_list(&Subject::new("default", "slow").unwrap()).await.unwrap();
    let first = records.first().expect("the apply was written down");
    assert_eq!((&first.entry.run, first.entry.trigger), (&canceled.name_any(), TriggerKind::Auto));
    // Of the end only the second is kept.
    let ended = status.attempts.first().unwrap().finished_at.as_ref().unwrap().0;
    assert!(first.at.as_second() <= ended.as_second(), "{} {ended}", first.at);

    let (code, text) = page(service, "/readyz").await.unwrap();
    assert_eq!(code, 200, "{text}");
    assert!(text.contains("[+]leader ok: leads, term 1"), "{text}");
    let (_, text) = page(service, "/metrics").await.unwrap();
    let counted = "terrane_runs_total{action=\"apply\",result=\"Canceled\"} 1";
    assert!(text.lines().any(|line| line == counted), "{text}");
    assert!(text.lines().any(|line| line == "terrane_leader 1"), "{text}");
    figures::are_read_by_prometheus(&text);
    let mut told = vec![text];

    let listen = free_address();
    let mut second = second_controller(&terrane, listen).await;
    let text = ready_page(&mut second, listen).await;
    assert!(text.contains("[+]leader ok: stands by"), "{text}");
    end_role(second).await;

    let listen = free_address();
    let mut second = second_datastore(&terrane, listen);
    let text = ready_page(&mut second, listen).await;
    assert!(text.contains("[+]artefacts ok"), "{text}");
    let token = TokenSource::File(terrane.data().join("controller-token"));
    let datastore = datastore::Client::new(&format!("http://{listen}"), token).unwrap();
    datastore.audit_append(&first.entry).await.unwrap();
    let records = datastore.audit_list(&Subject::new("default", "slow").unwrap()).await.unwrap();
    assert_eq!(records.iter().map(|record| &record.entry).collect::<Vec<_>>(), [&first.entry]);
    let (code, _) = page(listen, "/v1/audit/default/slow").await.unwrap();
    assert_eq!(code, 401, "nobody without a token");
    let text = until("what is kept was counted", || async move {
        let (_, text) = page(listen, "/metrics").await?;
        text.contains("terrane_datastore_bytes{area=\"audit\"}").then_some(text)
    })
    .await;
    figures::are_read_by_prometheus(&text);
    told.push(text);
    figures::hold_what_dashboard_and_alerts_ask_for(&told);
    end_role(second).await;
    draining::a_datastore_that_is_told_to_stop_says_so_and_finishes_what_is_under_way(&terrane).await;
    end(terrane).await;
}
