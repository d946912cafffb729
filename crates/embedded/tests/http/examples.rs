//! Every manifest of `examples` is one that the API takes as it stands: no field that nobody knows, no value that cannot be.

use std::path::{Path, PathBuf};

use embedded::auth::Identity;
use embedded::serve::{Listen, Options, Server};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, ValidationDirective};
use kube::core::discovery::Scope;
use kube::{Api, Client};
use serde_json::{Value, json};
use testkit::cluster::RealCluster;

/// Files of other programs, which no API is told of.
const OTHERS: [&str; 2] = ["backends/definitions/shelf.yaml", "kustomize/kustomization.yaml"];

/// Kinds that only a cluster has.
const OF_CLUSTERS: [&str; 3] = ["Deployment", "Service", "NetworkPolicy"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            found.push(path);
        }
    }
}

fn documents(text: &str) -> Vec<Value> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.extend([line, "\n"]);
        }
    }
    let read =
        |text: &String| serde_saphyr::from_str::<Value>(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    documents.iter().map(read).filter(Value::is_object).collect()
}

/// What a file for `kubectl patch` makes of a repository, which is what such files are for; a manifest as it is.
fn whole(document: Value) -> Value {
    if document.get("kind").is_some() {
        return document;
    }
    let mut patched = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "patched" },
        "spec": { "repository": { "url": "https://git.example.com/code.git" } },
    });
    for (field, value) in document.as_object().unwrap() {
        assert_eq!(field, "spec", "a patch of {field}");
        patched[field].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    }
    patched
}

async fn started(directory: &Path) -> Server {
    let options = Options {
        listen: Listen::new(([127, 0, 0, 1], 0).into(), None, None).unwrap(),
        definitions: api::custom_resources(),
        ..Options::new(directory.join("data"))
    };
    Server::start(options).await.unwrap()
}

/// Where such an object is asked for.
async fn place(client: &Client, object: &Value) -> Result<Api<DynamicObject>, String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").rsplit_once('/').unwrap_or(("", text("/apiVersion")));
    let kind = GroupVersionKind::gvk(group, version, text("/kind"));
    let found = kube::discovery::oneshot::pinned_kind(client, &kind).await;
    let (resource, capabilities) = found.map_err(|error| format!("{kind:?}: {error}"))?;
    let namespace = match text("/metadata/namespace") {
        "" => "default",
        namespace => namespace,
    };
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
    })
}

fn strictly() -> PatchParams {
    PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("examples") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_manifest_of_the_examples_is_taken_strictly() {
    let directory = tempfile::tempdir().unwrap();
    let server = started(directory.path()).await;
    let embedded = server.client(Identity::administrator());
    let cluster = RealCluster::shared().await.client().unwrap();
    // The embedded API makes it by itself.
    let system = serde_json::from_value(json!({ "metadata": { "name": api::SYSTEM_NAMESPACE } })).unwrap();
    Api::<Namespace>::all(cluster.clone()).create(&PostParams::default(), &system).await.unwrap();
    let mut found = Vec::new();
    files(&examples(), &mut found);
    found.sort();
    let (mut taken, mut wrong) = (0, Vec::new());
    for file in found {
        let name = file.strip_prefix(examples()).unwrap().display().to_string();
        if OTHERS.contains(&name.as_str()) {
            continue;
        }
        let documents = documents(&std::fs::read_to_string(&file).unwrap());
        assert!(!documents.is_empty(), "{name} is empty");
        for document in documents.into_iter().map(whole) {
            let of_cluster = document["kind"].as_str().is_some_and(|kind| OF_CLUSTERS.contains(&kind));
            let client = if of_cluster { &cluster } else { &embedded };
            match dry_run(client, &document).await {
                Ok(()) => taken += 1,
                Err(why) => wrong.push(format!("{name}: {why}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(taken > 25, "{taken}");
    server.stop().await;
}

/// As `kubectl apply --server-side --dry-run=server --validate=strict`; and again with a field that nobody knows, of which it is told.
async fn dry_run(client: &Client, document: &Value) -> Result<(), String> {
    let api = place(client, document).await?;
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let dry = PatchParams { dry_run: true, ..strictly() };
    let answer = api.patch(name, &dry, &Patch::Apply(document)).await;
    answer.map_err(|error| format!("{name}: {error}"))?;
    let mut mistyped = document.clone();
    mistyped["spek"] = json!({});
    match api.patch(name, &dry, &Patch::Apply(&mistyped)).await {
        Err(error) if error.to_string().contains("spek") => Ok(()),
        answer => Err(format!("{name}: with a field spek it is {answer:?}")),
    }
}

/// The manifest of seed 001 with all of the status that its author shows, in which a password is a part of what is told.
#[tokio::test]
async fn the_status_of_seed_001_is_taken_whole() {
    let directory = tempfile::tempdir().unwrap();
    let server = started(directory.path()).await;
    let client = server.client(Identity::administrator());
    let manifest = std::fs::read_to_string(examples().join("seeds/001/workload.yaml")).unwrap();
    let [mut manifest] = <[Value; 1]>::try_from(documents(&manifest)).unwrap();
    let status = documents(STATUS).remove(0);
    manifest["status"] = status.clone();
    let api = place(&client, &manifest).await.unwrap();
    let name = "staging-cluster";
    let made = api.patch(name, &strictly(), &Patch::Apply(&manifest)).await.unwrap();
    assert!(made.data.get("status").is_none(), "the status is the controller's: {made:?}");
    let told = api.patch_status(name, &strictly(), &Patch::Apply(&manifest)).await.unwrap();
    assert_eq!(told.data["status"], status);
    // As `kubectl replace` and `kubectl create` send it.
    let mut again: DynamicObject = api.get(name).await.unwrap();
    again.metadata.managed_fields = None;
    let again = api.replace(name, &PostParams::default(), &again).await.unwrap();
    assert_eq!(again.data["status"], status);
    server.stop().await;
}

const STATUS: &str = r#"
state: "Progressing"
message: "Starting processing"
output:
  aws_certificate_arn: "aws_certificate_arn"
  service_account_role_arn: "service_account_role_arn"
  db_instance_address: "db_instance_address"
ingressURLs:
  production:
    - "https://example-production.com"
  development:
    - "https://example-development.com"
    - "https://another-example-development.com"
credentials:
  argocdUsername: "admin"
  argocdPassword: "exampleArgoCDPassword"
  grafanaUsername: "admin"
  grafanaPassword: "exampleGrafanaPassword"
postDeployOutput:
  outputs:
    EC2:
      - InstanceID: "i-1234567890abcdef0"
        InstanceType: "t2.micro"
        State: "running"
        Tags:
          - Key: "Name"
            Value: "MyInstance"
      - InstanceID: "i-0987654321abcdef0"
        InstanceType: "t3.medium"
        State: "stopped"
        Tags:
          - Key: "Name"
            Value: "YourInstance"
    RDS:
      - DBInstanceIdentifier: "my-db-instance"
        DBInstanceClass: "db.t3.medium"
        DBInstanceStatus: "available"
        Tags:
          - Key: "Environment"
            Value: "Production"
    LoadBalancer:
      - LoadBalancerName: "example-alb"
        DNSName: "example-alb-123456789.us-west-2.elb.amazonaws.com"
        Type: "application"
        Scheme: "internet-facing"
        State: "active"
        Tags:
          - Key: "Environment"
            Value: "Development"
"#;
