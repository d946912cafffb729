//! Layers whose code is an image, with a real registry and the real tool: the newest version within a constraint is pinned, planned and
//! applied, a moved tag is told, and what a registry refuses is told on the layer that it concerns and holds up no other.

use std::collections::BTreeMap;

use api::run::Action;
use api::{TerraformLayer, TerraformRun, condition};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::registry::{File, Image, Registry};

use crate::harness::{Terrane, runs, until};
use crate::terraform::{apply, gone, is_completed, terraform_until};
use crate::{end, told};

const PATH: &str = "team/code";
const PASSWORD: &str = "open-sesame";
/// What `htpasswd -B` makes of it.
const HASH: &str = "jane:$2b$04$afPQqIP99QwAMDU9XzfO/OXH.MgqrIt66uvMekYCjxsq1s5tISZcK";

fn file<'a>(path: &'a str, content: &'a str) -> File<'a> {
    File { path, content, mode: 0o755 }
}

fn in_app<'a>(layers: &'a [&'a [File<'a>]]) -> Image<'a> {
    Image { layers, working_directory: "/app", environment: &["WHERE=here", "PATH=/app/bin:/usr/bin"] }
}

fn code(word: &str) -> String {
    format!(
        "resource \"terraform_data\" \"x\" {{ input = \"{word}\" }}\noutput \"word\" {{ value = terraform_data.x.output }}\n"
    )
}

async fn make(client: &Client, name: &str, image: Value) {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": { "image": image, "path": "live", "remediationStrategy": { "autoApply": true } },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
}

async fn layer_until(
    client: &Client,
    name: &str,
    what: &str,
    holds: impl Fn(&TerraformLayer) -> bool,
) -> TerraformLayer {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    until(what, || async { layers.get_opt(name).await.ok().flatten().filter(|layer| holds(layer)) }).await
}

fn is_applied(digest: &str) -> impl Fn(&TerraformLayer) -> bool {
    move |layer| {
        let Some(status) = &layer.status else { return false };
        let applied = status.revision.applied.as_ref().map(|revision| format!("sha256:{revision}"));
        applied.as_deref() == Some(digest) && condition::is_true(&status.conditions, "Ready")
    }
}

fn why(layer: &TerraformLayer) -> &str {
    layer.status.as_ref().and_then(|status| status.why.as_deref()).unwrap_or_default()
}

async fn ask(client: &Client, name: &str, word: &str) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let patch = json!({ "metadata": { "annotations": { api::annotation::SYNC: word } } });
    layers.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn an_image_within_a_constraint_is_pinned_planned_and_applied_and_a_moved_tag_is_told() {
    let registry = Registry::start().await.unwrap();
    let (first, second) = (code("first"), code("second"));
    let base = [file("app/live/main.tf", "broken"), file("app/gone", "x")];
    let one = [file("app/live/main.tf", &first), file("app/.wh.gone", "")];
    let one = registry.push(PATH, "1.0.0", in_app(&[&base, &one])).await.unwrap();
    registry.push(PATH, "2.0.0", in_app(&[&[file("app/live/main.tf", "broken")]])).await.unwrap();

    let mut terrane = Terrane::new();
    let rewrite = format!("docker.io=http://{}", registry.address());
    let private = Registry::guarded("jane", PASSWORD, HASH).await.unwrap();
    let other = format!("registry.example.org=http://{}", private.address());
    let client = terrane.start(&["--registry-rewrite", &rewrite, "--registry-rewrite", &other]).await;
    // One that hangs about without an image is in nobody's way.
    make(&client, "nowhere", json!({ "name": "team/none", "tag": "1" })).await;
    make(&client, "code", json!({ "provider": "docker", "name": PATH, "semanticVersion": "~1.0.0" })).await;
    let done = layer_until(&client, "code", "the image is applied", is_applied(&one)).await;
    let known = done.status.clone().unwrap().image.unwrap();
    assert_eq!(known.to_string(), format!("docker.io/{PATH}:1.0.0@{one}"));
    let applied = runs(&client, Action::Apply).await.pop().unwrap();
    let plan =
        runs(&client, Action::Plan).await.into_iter().find(|run| run.spec.layer.name.as_str() == "code");
    let files = |run: &TerraformRun| run.status.as_ref().unwrap().attempts.last().unwrap().bundle.clone();
    assert_eq!(files(&applied), files(&plan.unwrap()), "what was planned is applied");
    let log = told(terrane.command(&["logs", &applied.name_any()]));
    assert!(log.contains(&format!("image docker.io/{PATH}:1.0.0@{one}")), "{log}");
    assert_eq!(told(terrane.command(&["outputs", "code", "word"])).trim(), "first");
    let described = told(terrane.command(&["describe", "code"]));
    assert!(described.contains(&format!("live of image docker.io/{PATH}:1.0.0@{one}")), "{described}");

    let lost =
        layer_until(&client, "nowhere", "a missing image is told", |layer| !why(layer).is_empty()).await;
    assert!(why(&lost).contains("docker.io/team/none has no tag 1"), "{}", why(&lost));
    assert!(condition::is_true(&lost.status.unwrap().conditions, "Stalled"));

    // The same tag for another image: nothing happens until somebody asks, or it is time to.
    let moved = registry.push(PATH, "1.0.0", in_app(&[&[file("app/live/main.tf", &second)]])).await.unwrap();
    ask(&client, "code", "1").await;
    let told_of = layer_until(&client, "code", "the moved tag is applied", is_applied(&moved)).await;
    let status = told_of.status.unwrap();
    assert!(condition::is_true(&status.conditions, "IsImageTagMoved"), "{:?}", status.conditions);
    assert_eq!(status.image.unwrap().moved_from.unwrap().as_str(), one);
    assert_eq!(told(terrane.command(&["outputs", "code", "word"])).trim(), "second");
    let events = Api::<Event>::namespaced(client.clone(), "default");
    until("an Event tells of it", || async {
        let all = events.list(&ListParams::default()).await.ok()?;
        let is_it = |event: &Event| event.reason.as_deref() == Some("TagMoved");
        all.items.iter().any(is_it).then_some(())
    })
    .await;

    // An image that leads outside, and one for another kind of machine.
    let evil = [file("app/live/main.tf", &first), file("app/.wh..", "")];
    registry.push("team/evil", "1", in_app(&[&evil])).await.unwrap();
    let here =
        registry.push("team/foreign", "here", in_app(&[&[file("app/live/main.tf", &first)]])).await.unwrap();
    registry.push_index("team/foreign", "1", &[(&here, "linux/s390x")]).await.unwrap();
    make(&client, "evil", json!({ "name": "team/evil", "tag": "1" })).await;
    make(&client, "foreign", json!({ "name": "team/foreign", "tag": "1" })).await;
    layer_until(&client, "evil", "what could leave the image is told", |layer| {
        why(layer).contains("which is refused")
    })
    .await;
    let foreign = layer_until(&client, "foreign", "a missing platform is told", |layer| {
        why(layer).contains("has nothing for linux/")
    })
    .await;
    assert!(why(&foreign).contains("docker.io/team/foreign"), "{}", why(&foreign));

    private_image(&client, &private).await;
    assert!(!terrane.printed().contains(PASSWORD));

    // The registry has it no more: what is applied stays, is planned again and is destroyed with what is known of it.
    registry.delete(PATH, &moved).await.unwrap();
    ask(&client, "code", "2").await;
    let kept = layer_until(&client, "code", "the image that went is told", |layer| {
        layer
            .status
            .as_ref()
            .is_some_and(|status| condition::is_true(&status.conditions, "HasLastSyncFailed"))
    })
    .await;
    assert_eq!(kept.status.unwrap().image.unwrap().digest.unwrap().as_str(), moved);
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let destroy = json!({ "spec": { "deletionPolicy": "Destroy" } });
    layers.patch("code", &PatchParams::default(), &Patch::Merge(destroy)).await.unwrap();
    layers.delete("code", &DeleteParams::default()).await.unwrap();
    until("it is destroyed and gone", || async {
        layers.get_opt("code").await.ok()?.is_none().then_some(())
    })
    .await;
    end(terrane).await;
}

const WORKLOAD: &str = include_str!("../../../../examples/seeds/001/workload.yaml");
const SAMPLE: [(&str, &str); 4] = [
    ("app/main.tf", include_str!("../../../../examples/seeds/001/main.tf")),
    ("app/deploy", include_str!("../../../../examples/seeds/001/deploy")),
    ("app/aws-resource", include_str!("../../../../examples/seeds/001/aws-resource")),
    // A bare name is in the root, too.
    ("destroy", include_str!("../../../../examples/seeds/001/destroy")),
];

#[tokio::test]
async fn the_manifest_of_seed_001_deploys_an_image_and_destroys_it_as_it_was_written() {
    let registry = Registry::start().await.unwrap();
    let path = "alustan/infrastructure";
    let files = SAMPLE.map(|(path, content)| file(path, content));
    let environment: &[&str] = &["TF_VAR_region=eu-central-1"];
    let image = Image { layers: &[&files], working_directory: "/app", environment };
    let first = registry.push(path, "1.0.0", image).await.unwrap();
    registry.push(path, "1.1.0", in_app(&[&[file("app/deploy", "exit 1")]])).await.unwrap();

    let mut terrane = Terrane::new();
    let rewrite = format!("docker.io=http://{}", registry.address());
    let client = terrane.start(&["--registry-rewrite", &rewrite]).await;
    let made = apply(&client, WORKLOAD).await;
    let name = "staging-cluster";
    let done = terraform_until(&client, name, "the manifest is deployed", is_completed).await;
    let status = done.status.clone().unwrap();
    let shown = format!("image docker.io/{path}:1.0.0@{first}");
    assert!(status.message.as_ref().unwrap().contains(&shown), "{:?}", status.message);
    let given = json!({
        "vpc_cidr": "10.1.0.0/16", "db_instance_address": "",
        // By the script's last line.
        "service_account_role_arn": "arn:aws:iam::111122223333:role/staging",
    });
    assert_eq!(serde_json::to_value(&status.output).unwrap(), given);
    let instance = json!({
        "InstanceID": "i-1234567890abcdef0", "State": "running", "Workspace": "default", "Region": "eu-central-1",
    });
    assert_eq!(status.post_deploy_output, Some(json!({ "outputs": { "EC2": [instance] } })));
    assert!(condition::is_true(&status.conditions, "Ready"));

    // The same manifest again starts nothing.
    let applies = runs(&client, Action::Apply).await.len();
    let again = apply(&client, WORKLOAD).await;
    assert_eq!(again.metadata.generation, made.metadata.generation);
    assert_eq!(runs(&client, Action::Apply).await.len(), applies);

    // A plan that finds nothing to do knows nothing of what the script has printed, and takes nothing of it away.
    ask(&client, name, "0").await;
    until("a plan finds nothing to do", || async {
        let plans = runs(&client, Action::Plan).await;
        let is_done =
            |run: &TerraformRun| run.status.as_ref().is_some_and(|status| status.finished_at.is_some());
        (plans.len() == 2 && plans.iter().all(is_done)).then_some(())
    })
    .await;
    let kept = layer_until(&client, name, "the plan is told", |layer| {
        let status = layer.status.as_ref().unwrap();
        status.last_sync.as_deref() == Some("0") && condition::is_true(&status.conditions, "Ready")
    })
    .await;
    assert!(condition::is_true(&kept.status.unwrap().conditions, "OutputsWritten"));
    let kept = terraform_until(&client, name, "nothing changed", is_completed).await;
    assert_eq!(serde_json::to_value(&kept.status.unwrap().output).unwrap(), given);

    // A newer version within the constraint is deployed once the registry is asked.
    let newer = [&files[..], &[file("app/new", "1")]].concat();
    let image = Image { layers: &[&newer], working_directory: "/app", environment };
    let second = registry.push(path, "v1.0.7", image).await.unwrap();
    ask(&client, name, "1").await;
    let shown = format!("image docker.io/{path}:v1.0.7@{second}");
    terraform_until(&client, name, "the newer image is deployed", |terraform| {
        let message = terraform.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        is_completed(terraform) && message.contains(&shown)
    })
    .await;

    // Its end is the image's own script, also when the registry has the image no more.
    registry.delete(path, &second).await.unwrap();
    gone(&client, name).await;
    end(terrane).await;
}

/// An image of a registry that asks who is there.
async fn private_image(client: &Client, registry: &Registry) {
    let text = code("private");
    let digest = registry.push(PATH, "1", in_app(&[&[file("app/live/main.tf", &text)]])).await.unwrap();
    let image = json!({
        "name": format!("registry.example.org/{PATH}"), "tag": "1", "interval": "1s",
        "credentials": { "secretName": "login" },
    });
    make(client, "private", image).await;
    let waits =
        layer_until(client, "private", "the missing Secret is told", |layer| !why(layer).is_empty()).await;
    assert!(
        why(&waits).contains("Secret login, which logs in to the registry, does not exist"),
        "{}",
        why(&waits)
    );
    let config = json!({ "auths": { "registry.example.org": { "username": "jane", "password": PASSWORD } } });
    let data = BTreeMap::from([(".dockerconfigjson", config.to_string())]);
    let secret = json!({ "metadata": { "name": "login" }, "type": "kubernetes.io/dockerconfigjson", "stringData": data });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    layer_until(client, "private", "the private image is applied", is_applied(&digest)).await;
}
