//! Terraforms with the real tool: the manifests of seed 000 as they were written, on a real S3 server, with a table for locks. `workload` has what else they can.

use std::collections::BTreeMap;
use std::fs;

use api::terraform::WorkloadState;
use api::{Terraform, TerraformLayer, TerraformRepository, condition};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use testkit::dynamodb::DynamoDb;
use testkit::process::Scratch;
use testkit::registry::Registry;
use testkit::s3::S3Server;
use tokio::task::JoinSet;

use crate::harness::{DEADLINE, Terrane, commit_files, until};
use crate::workload::{
    FORGE, a_deploy_that_fails_is_tried_to_the_limit, applies_of, commit_example, log_of_last,
    the_example_is_deployed_kept_and_destroyed,
};
use crate::{end, told};

const INLINE: &str = include_str!("../../../../examples/seeds/000/inline.yaml");
const CONFIG_MAP: &str = include_str!("../../../../examples/seeds/000/config-map.yaml");
const CODE: &str = include_str!("../../../../examples/seeds/000/main.tf");
const NAME: &str = "example-terraformconfig";
pub(crate) const BUCKET: &str = "s3-store";
const TABLE: &str = "db-table";
const KEY: &str = "ssh-privatekey";

/// As `kubectl apply --server-side` does it, with each document of the text.
pub(crate) async fn apply(client: &Client, text: &str) -> Terraform {
    let to = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply("kubectl")
    };
    let mut made = None;
    for document in text.split("---\n").filter(|document| document.contains("kind")) {
        let manifest: Value = serde_saphyr::from_str(document).unwrap();
        let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
        if manifest["kind"] == "ConfigMap" {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
            maps.patch(&name, &to, &Patch::Apply(&manifest)).await.unwrap();
        } else {
            let terraforms = Api::<Terraform>::namespaced(client.clone(), "default");
            made = Some(terraforms.patch(&name, &to, &Patch::Apply(&manifest)).await.unwrap());
        }
    }
    made.unwrap()
}

async fn secret(client: &Client, name: &str, data: BTreeMap<String, String>) {
    let secret = json!({ "metadata": { "name": name }, "stringData": data });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
}

pub(crate) async fn terraform_until(
    client: &Client,
    name: &str,
    what: &str,
    holds: impl Fn(&Terraform) -> bool,
) -> Terraform {
    let terraforms = Api::<Terraform>::namespaced(client.clone(), "default");
    until(what, || async {
        let found = terraforms.get_opt(name).await.ok().flatten()?;
        let is_stuck = found.status.as_ref().is_some_and(|status| status.state == Some(WorkloadState::Error));
        assert!(!is_stuck, "{:#?}", found.status);
        Some(found).filter(&holds)
    })
    .await
}

/// The states that a Terraform comes through until it is completed, each as a watch tells of it.
async fn states(client: Client, name: &str) -> Vec<WorkloadState> {
    let terraforms = Api::<Terraform>::namespaced(client, "default");
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(terraforms, only).default_backoff().applied_objects());
    let mut seen = Vec::new();
    while seen.last() != Some(&WorkloadState::Completed) {
        let next = tokio::time::timeout(DEADLINE, events.next()).await.expect("it goes on");
        let Some(Ok(terraform)) = next else { continue };
        let state = terraform.status.and_then(|status| status.state);
        seen.extend(state.filter(|state| seen.last() != Some(state)));
    }
    seen
}

pub(crate) fn is_completed(terraform: &Terraform) -> bool {
    let status = terraform.status.as_ref();
    let status = status.filter(|status| status.observed_generation == terraform.metadata.generation);
    status.is_some_and(|status| status.state == Some(WorkloadState::Completed))
}

pub(crate) async fn gone(client: &Client, name: &str) {
    let terraforms = Api::<Terraform>::namespaced(client.clone(), "default");
    terraforms.delete(name, &DeleteParams::default()).await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    until("it is gone", || async {
        // Its layer, and so all that it destroys, goes before it does.
        let left = terraforms.get_opt(name).await.ok()?;
        let layer = layers.get_opt(name).await.ok()?;
        (left.is_none() && layer.is_none() && repositories.get_opt(name).await.ok()?.is_none()).then_some(())
    })
    .await;
}

/// The cloud of the tests.
pub(crate) struct Cloud {
    pub(crate) bucket: S3Server,
    pub(crate) table: DynamoDb,
}

impl Cloud {
    async fn start() -> Self {
        let (bucket, table) = (S3Server::start().await.unwrap(), DynamoDb::start(TABLE).await.unwrap());
        fs::create_dir_all(bucket.files("..").join(BUCKET)).unwrap();
        Self { bucket, table }
    }
}

/// What a runner finds in its environment: a login, where S3 and DynamoDB are here, and what of AWS is not to be asked, because there is
/// none of it here.
pub(crate) fn login(cloud: &Cloud) -> BTreeMap<String, String> {
    let server = &cloud.bucket;
    let known: BTreeMap<String, String> = server.environment(server.address()).into_iter().collect();
    let unasked = [
        "skip_credentials_validation",
        "skip_requesting_account_id",
        "skip_metadata_api_check",
        "use_path_style",
    ];
    let unasked: Vec<String> = unasked.map(|flag| format!("-backend-config={flag}=true")).into();
    BTreeMap::from([
        ("AWS_ACCESS_KEY_ID".to_owned(), known["AWS_ACCESS_KEY_ID"].clone()),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), known["AWS_SECRET_ACCESS_KEY"].clone()),
        ("AWS_ENDPOINT_URL_S3".to_owned(), known["AWS_ENDPOINT_URL"].clone()),
        ("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), cloud.table.url()),
        ("TF_CLI_ARGS_init".to_owned(), unasked.join(" ")),
    ])
}

/// The resources in the state, by what the server keeps.
pub(crate) fn resources(cloud: &Cloud, name: &str) -> Vec<Value> {
    let file = cloud.bucket.files("..").join(BUCKET).join(format!("default/{name}/terraform.tfstate"));
    let state: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    state["resources"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_manifests_of_seed_000_deploy_and_destroy_as_they_were_written() {
    let cloud = Cloud::start().await;
    let source = Scratch::new("terrane-source-").unwrap();
    let repository = source.path().join("terraform-repo");
    fs::create_dir(&repository).unwrap();
    commit_files(&repository, &[("terraform/main.tf", CODE)]);
    commit_example(source.path());
    let to = format!("file://{}", source.path().display());
    let (ssh, https) = (format!("git@github.com:example={to}"), format!("https://github.com/example={to}"));
    let forge = format!("{FORGE}={to}");
    let registry = Registry::start().await.unwrap();
    let images = format!("docker.io=http://{}", registry.address());
    let mut terrane = Terrane::new();
    let flags = [
        ["--registry-rewrite", &images],
        ["--runner-secret-env", "aws-credentials"],
        ["--git-rewrite", &ssh],
        ["--git-rewrite", &https],
        ["--git-rewrite", &forge],
    ]
    .concat();
    let client = terrane.start(&flags).await;
    secret(&client, "aws-credentials", login(&cloud)).await;
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nKEY\n-----END OPENSSH PRIVATE KEY-----\n";
    secret(&client, "my-ssh-secret", BTreeMap::from([(KEY.to_owned(), key.to_owned())])).await;

    let login = json!({ "auths": { "docker.io": { "username": "jane", "password": "open-sesame" } } });
    let login = BTreeMap::from([("dockerhub-cred".to_owned(), login.to_string())]);
    secret(&client, "my-dockerhub-secret", login).await;

    tokio::join!(
        as_they_were_written(&client, &terrane, &cloud, &registry),
        the_example_is_deployed_kept_and_destroyed(&client, &terrane, &cloud),
        a_deploy_that_fails_is_tried_to_the_limit(&client),
    );
    let runs = Api::<api::TerraformRun>::namespaced(client.clone(), "default");
    assert!(runs.list(&ListParams::default()).await.unwrap().items.is_empty());
    end(terrane).await;
}

async fn as_they_were_written(client: &Client, terrane: &Terrane, cloud: &Cloud, registry: &Registry) {
    let mut seeing = JoinSet::new();
    seeing.spawn(states(client.clone(), NAME));
    let made = apply(client, INLINE).await;
    let done = terraform_until(client, NAME, "the first manifest is deployed", is_completed).await;
    let seen = seeing.join_next().await.unwrap().unwrap();
    // None is passed by, none comes twice, and nothing is said to be done before it was begun.
    let order = [
        WorkloadState::Pending,
        WorkloadState::Progressing,
        WorkloadState::Success,
        WorkloadState::Completed,
    ];
    let places: Vec<usize> =
        seen.iter().map(|state| order.iter().position(|known| known == state).unwrap()).collect();
    assert!(places.is_sorted() && places.contains(&1), "{seen:?}");
    assert_eq!(seen.last(), Some(&WorkloadState::Completed), "{seen:?}");
    let status = done.status.clone().unwrap();
    let password = format!("*** (sensitive; key password of Secret {NAME}-outputs)");
    assert_eq!(
        serde_json::to_value(&status.output).unwrap(),
        json!({ "greeting": "value1 value2", "password": password })
    );
    assert!(condition::is_true(&status.conditions, "Ready"));
    let built = condition::find(&status.conditions, "ImageBuilt").unwrap();
    assert_eq!(built.reason, "Built", "{built:?}");
    assert!(built.message.starts_with("docker.io/alustan/terrform:"), "{built:?}");
    let state = resources(cloud, NAME);
    // The tool's lock was there and is free again; the digest that it leaves is of this very state.
    let digest = format!("{BUCKET}/default/{NAME}/terraform.tfstate-md5");
    assert_eq!(
        cloud.table.keys(TABLE).await.unwrap().iter().filter(|key| key.contains(NAME)).collect::<Vec<_>>(),
        [&digest]
    );
    assert_eq!(state[0]["instances"][0]["attributes"]["input"]["value"], "value1 value2", "{state:?}");
    assert!(log_of_last(client, terrane, NAME).await.contains("Script scripts.apply:"));
    let table = told(terrane.command(&["get", "terraforms"]));
    assert!(table.contains(NAME) && table.contains("Completed"), "{table}");

    // The same once more is no change of the object, and starts nothing.
    let applies = applies_of(client, NAME).await.len();
    let again = apply(client, INLINE).await;
    assert_eq!(again.metadata.generation, done.metadata.generation);
    assert_eq!(again.metadata.generation, made.metadata.generation);
    assert_eq!(applies_of(client, NAME).await.len(), applies);
    gone(client, NAME).await;
    assert_eq!(registry.tags("alustan/terrform").await.unwrap().len(), 1, "one commit, one image");
    assert!(resources(cloud, NAME).is_empty(), "all is destroyed");

    apply(client, CONFIG_MAP).await;
    terraform_until(client, NAME, "the second manifest is deployed", is_completed).await;
    let log = log_of_last(client, terrane, NAME).await;
    assert!(log.contains("This is the apply script"), "{log}");
    gone(client, NAME).await;
}
