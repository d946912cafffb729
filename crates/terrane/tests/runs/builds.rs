//! Code that is built into an image, with a real registry that asks who is there, and the real tool: each commit once, its runs on what
//! was built, and a registry that refuses is told on the object that it concerns and holds up no other.

use std::collections::BTreeMap;
use std::fs;

use api::run::{Action, RunState};
use api::{Terraform, TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::process::Scratch;
use testkit::registry::{File, Image, Registry};

use crate::harness::{Terrane, commit_files, declare_repository, git, layer_until, runs, until};
use crate::terraform::{apply, gone, is_completed, terraform_until};
use crate::{end, told};

const PATH: &str = "team/code";
const HOST: &str = "registry.example.org";
const PASSWORD: &str = "open-sesame";
const WRONG: &str = "close-barley";
/// What `htpasswd -B` makes of the right one.
const HASH: &str = "jane:$2b$04$afPQqIP99QwAMDU9XzfO/OXH.MgqrIt66uvMekYCjxsq1s5tISZcK";
const DEPLOY: &str = "#!/bin/sh\nset -e\ntest -f \"$TERRANE_IMAGE_ROOT/workspace/live/main.tf\"\nexec terraform apply -auto-approve -input=false\n";

fn code(word: &str) -> String {
    format!(
        "variable \"word\" {{ default = \"{word}\" }}\nresource \"terraform_data\" \"x\" {{ input = var.word }}\noutput \"word\" {{ value = terraform_data.x.output }}\n"
    )
}

fn workload(name: &str, url: &str) -> String {
    json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": { "name": name },
        "spec": {
            "gitRepo": { "url": url, "branch": "main" }, "scripts": { "deploy": "deploy" },
            "containerRegistry": {
                "imageName": format!("{HOST}/{PATH} (built here)"), "secretRef": { "name": "login", "key": "cred" },
            },
        },
    })
    .to_string()
}

async fn login(client: &Client, password: &str) {
    let config = json!({ "auths": { HOST: { "username": "jane", "password": password } } });
    let data = BTreeMap::from([("cred", config.to_string())]);
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "login" }, "stringData": data });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.patch("login", &PatchParams::apply("test").force(), &Patch::Apply(secret)).await.unwrap();
}

fn built(terraform: &Terraform) -> (String, String) {
    let status = terraform.status.as_ref();
    let found = status.and_then(|status| condition::find(&status.conditions, "ImageBuilt"));
    found.map(|found| (found.reason.clone(), found.message.clone())).unwrap_or_default()
}

async fn builds_of(client: &Client, layer: &str) -> Vec<TerraformRun> {
    let builds = runs(client, Action::Build).await;
    builds.into_iter().filter(|run| run.spec.layer.name.as_str() == layer).collect()
}

fn image_of(run: &TerraformRun) -> api::image::PinnedImage {
    let status = run.status.as_ref().unwrap();
    assert_eq!(status.state, Some(RunState::Succeeded));
    status.result.as_ref().unwrap().image.clone().unwrap()
}

/// The paths and contents of an image's newest layer, which the digest of its manifest vouches for.
async fn pulled(registry: &Registry, digest: &str) -> (Value, BTreeMap<String, String>) {
    use std::io::Read;
    let (manifest, found) = registry.manifest(PATH, digest).await.unwrap();
    assert_eq!(found, digest);
    let layer = manifest["layers"].as_array().unwrap().last().unwrap()["digest"].as_str().unwrap().to_owned();
    let archive = registry.blob(PATH, &layer).await.unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(&*archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!((entry.header().mtime().unwrap(), entry.header().uid().unwrap()), (0, 0));
        let path = entry.path().unwrap().display().to_string();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        files.insert(path, content);
    }
    (manifest, files)
}

#[tokio::test]
async fn code_is_built_into_an_image_once_a_commit_and_its_runs_work_on_that() {
    let registry = Registry::guarded("jane", PASSWORD, HASH).await.unwrap();
    let hello = File { path: "opt/hello", content: "from the base", mode: 0o644 };
    let image =
        Image { layers: &[&[hello]], working_directory: "/", environment: &["TF_VAR_word=from-the-base"] };
    let base = registry.push("team/base", "1", image).await.unwrap();
    let source = Scratch::new("terrane-source-").unwrap();
    commit_files(source.path(), &[("live/main.tf", &code("first")), ("deploy", DEPLOY)]);
    let url = format!("file://{}", source.path().display());
    // The directory of a `file://` repository cannot stand in its URL.
    fs::write(
        source.path().join("main.tf"),
        "module \"live\" { source = \"./live\" }\noutput \"word\" { value = module.live.word }\n",
    )
    .unwrap();
    git(source.path(), &["add", "--all"]);
    git(source.path(), &["commit", "--quiet", "--message=Call it"]);

    let mut terrane = Terrane::new();
    let rewrite = format!("{HOST}=http://{}", registry.address());
    let client = terrane.start(&["--registry-rewrite", &rewrite]).await;
    login(&client, WRONG).await;
    apply(&client, &workload("code", &url)).await;
    let mut plain: Value = serde_json::from_str(&workload("plain", &url)).unwrap();
    plain["spec"].as_object_mut().unwrap().remove("containerRegistry");
    plain["spec"].as_object_mut().unwrap().remove("scripts");
    apply(&client, &plain.to_string()).await;

    // Wrong credentials are told where they are wrong, and nobody else waits.
    let refused = terraform_until(&client, "code", "the refusal is told", |terraform| {
        built(terraform).0 == "BuildFailed"
    })
    .await;
    let words = built(&refused).1;
    assert!(
        words.contains(&format!("{HOST}/{PATH} cannot be pushed: its registry refuses the credentials")),
        "{words}"
    );
    assert!(words.ends_with("\"(built here)\" is no part of the image's name and is left out"), "{words}");
    terraform_until(&client, "plain", "another is deployed meanwhile", is_completed).await;
    assert!(runs(&client, Action::Plan).await.iter().all(|run| run.spec.layer.name.as_str() == "plain"));
    assert!(registry.tags(PATH).await.unwrap().is_empty());

    // With the right ones the commit is built, and deployed from what was built.
    login(&client, PASSWORD).await;
    let done = terraform_until(&client, "code", "the image is built and deployed", is_completed).await;
    let first = image_of(&builds_of(&client, "code").await[0]);
    let status = done.status.unwrap();
    assert!(status.message.as_ref().unwrap().contains(&format!("; image {first}")), "{:?}", status.message);
    assert_eq!(status.output["word"], "first");
    assert!(condition::is_true(&status.conditions, "ImageBuilt"));
    assert_eq!(registry.tags(PATH).await.unwrap(), [first.tag.clone().unwrap().to_string()]);
    let (_, files) = pulled(&registry, first.digest.as_str()).await;
    assert_eq!(files["workspace/live/main.tf"], code("first"));
    assert_eq!(files["workspace/deploy"], DEPLOY);
    for run in runs(&client, Action::Apply).await.iter().filter(|run| run.spec.layer.name.as_str() == "code")
    {
        assert_eq!(run.spec.image.as_ref(), Some(&first));
    }
    let history = told(terrane.command(&["history", "code"]));
    assert!(history.contains("build"), "{history}");

    a_second_wish_builds_nothing(&client, &terrane, &registry, &first, &url).await;
    the_base_is_below(&client, &registry, &base).await;

    // A new commit is another image.
    fs::write(source.path().join("live/main.tf"), code("second")).unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Second"]);
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let often = Patch::Merge(json!({ "spec": { "pollInterval": "1s" } }));
    repositories.patch("code", &PatchParams::default(), &often).await.unwrap();
    until("the new commit is built and deployed", || async {
        let found = Api::<Terraform>::namespaced(client.clone(), "default").get("code").await.ok()?;
        let is_new = found.status.as_ref()?.output.get("word")? == "second";
        (is_new && is_completed(&found)).then_some(())
    })
    .await;
    let builds = builds_of(&client, "code").await;
    let second = builds.iter().map(image_of).find(|image| image.digest != first.digest).unwrap();
    assert_eq!(pulled(&registry, second.digest.as_str()).await.1["workspace/live/main.tf"], code("second"));

    for password in [PASSWORD, WRONG] {
        assert!(!terrane.printed().contains(password));
        for run in runs(&client, Action::Build).await {
            let log = told(terrane.command(&["logs", &format!("run/{}", run.name_any())]));
            assert!(!log.contains(password), "{log}");
            assert!(!serde_json::to_string(&run).unwrap().contains(password));
        }
    }
    for name in ["code", "again", "plain"] {
        gone(&client, name).await;
    }
    end(terrane).await;
}

/// Neither for the same object, whoever asks, nor for another one with the same code and the same name of an image.
async fn a_second_wish_builds_nothing(
    client: &Client,
    terrane: &Terrane,
    registry: &Registry,
    first: &api::image::PinnedImage,
    url: &str,
) {
    let plans = runs(client, Action::Plan).await.len();
    told(terrane.command(&["sync", "code"]));
    until("it is planned again", || async { (runs(client, Action::Plan).await.len() > plans).then_some(()) })
        .await;
    terraform_until(client, "code", "it is still deployed", is_completed).await;
    assert_eq!(builds_of(client, "code").await.len(), 1);

    apply(client, &workload("again", url)).await;
    terraform_until(client, "again", "another with the same image is deployed", is_completed).await;
    let build = builds_of(client, "again").await.remove(0);
    assert_eq!(&image_of(&build), first);
    let log = told(terrane.command(&["logs", &format!("run/{}", build.name_any())]));
    assert!(log.contains("is there already; nothing was pushed"), "{log}");
    assert_eq!(registry.tags(PATH).await.unwrap().len(), 1);
}

/// A layer says what its code is laid over: what that gives to programs counts.
async fn the_base_is_below(client: &Client, registry: &Registry, base: &str) {
    let _source = declare_repository(client, "based", &[("live/main.tf", &code("own"))]).await;
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "based" },
        "spec": {
            "repository": { "name": "based" }, "branch": "main", "path": "live", "remediationStrategy": { "autoApply": true },
            "build": {
                "name": format!("{HOST}/{PATH}"), "base": format!("{HOST}/team/base@{base}"),
                "credentials": { "secretName": "login", "key": "cred" },
            },
        },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
    layer_until(client, "based", "the layer over a base is applied", |layer| {
        layer.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
    })
    .await;
    let image = image_of(&builds_of(client, "based").await[0]);
    let (manifest, files) = pulled(registry, image.digest.as_str()).await;
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
    assert_eq!(files["workspace/live/main.tf"], code("own"));
    let config = manifest["config"]["digest"].as_str().unwrap();
    let config: Value = serde_json::from_slice(&registry.blob(PATH, config).await.unwrap()).unwrap();
    assert_eq!(config["config"]["WorkingDir"], "/workspace");
    let plan =
        runs(client, Action::Plan).await.into_iter().find(|run| run.spec.layer.name.as_str() == "based");
    assert_eq!(plan.unwrap().spec.image, Some(image));
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    layers.delete("based", &Default::default()).await.unwrap();
    repositories.delete("based", &Default::default()).await.unwrap();
}
