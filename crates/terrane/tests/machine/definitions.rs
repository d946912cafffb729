//! A controller on a cluster whose definitions are of an older version: it waits, says what to do, and works once they are applied,
//! without being started again; and it gives way when older ones come back.

use std::fs;
use std::path::Path;

use api::{SYSTEM_NAMESPACE, TerraformLayer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use testkit::cluster::{Controllers, Disk, Options, RealCluster};
use testkit::process::Guarded;

use crate::harness::{BINARY, Place, until};

fn apply(cluster: &RealCluster, place: &Place, definitions: &[Value]) {
    let file = place.path("definitions.json");
    fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": definitions }).to_string())
        .unwrap();
    // As an administrator who puts files of another version in their place: what they do not name goes. The tool's own validation does not
    // know a value that may be null.
    let say = |verb: &str| {
        let words = [verb, "--validate=false", "--filename", file.to_str().unwrap()];
        cluster.kubectl().unwrap().args(words).output().unwrap()
    };
    let (replaced, created) = (say("replace"), say("create"));
    let said = [&replaced, &created].map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(replaced.status.success() || created.status.success(), "{said:?}");
    let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    assert!(cluster.kubectl().unwrap().args(wait).output().unwrap().status.success());
}

fn ours() -> Vec<Value> {
    api::custom_resources().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect()
}

/// Without what came to layers, runs and approvals later.
fn older() -> Vec<Value> {
    let mut all = ours();
    for definition in &mut all {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        let version = &mut definition["spec"]["versions"][0];
        let schema = &mut version["schema"]["openAPIV3Schema"]["properties"];
        let mut remove = |part: &str, field: &str| {
            let properties = schema[part]["properties"].as_object_mut().unwrap();
            assert!(properties.remove(field).is_some(), "{kind} has no {part}.{field}");
        };
        match kind.as_str() {
            "TerraformLayer" => {
                remove("spec", "runHistoryPolicy");
                remove("status", "inputs");
            }
            "TerraformRun" => version.as_object_mut().unwrap().retain(|key, _| key != "selectableFields"),
            "TerraformApproval" => version.as_object_mut().unwrap().retain(|key, _| key != "subresources"),
            _ => {}
        }
    }
    all
}

async fn signs(address: &str) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    match client.get(format!("http://{address}/readyz")).send().await {
        Ok(answer) => answer.text().await.unwrap(),
        Err(error) => error.to_string(),
    }
}

async fn says(address: &str, controller: &mut Guarded, words: &str) -> String {
    until(&format!("the controller says {words:?}"), async || {
        controller.ensure_running().unwrap();
        Some(signs(address).await).filter(|text| text.contains(words))
    })
    .await
}

async fn lease(client: &Client) -> Option<Lease> {
    let leases = Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    leases.get_opt("terrane-controller").await.unwrap()
}

#[tokio::test]
async fn with_older_definitions_a_controller_waits_and_says_what_to_do() {
    let options = Options { controllers: Controllers::Absent, disk: Disk::Fast };
    let cluster = RealCluster::start(options).await.unwrap();
    let client = cluster.client().unwrap();
    let place = Place::new();
    let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM_NAMESPACE } })).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &system).await.unwrap();
    apply(&cluster, &place, &older());
    let layer: TerraformLayer = serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "kept" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "kept" },
    }))
    .unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &layer).await.unwrap();

    fs::write(place.path("token"), "none").unwrap();
    let log = place.path("controller.log");
    let arguments = [
        format!("KUBECONFIG={}", cluster.kubeconfig().display()),
        BINARY.to_owned(),
        "controller".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--datastore-url=http://127.0.0.1:9".to_owned(),
        format!("--token-file={}", place.path("token").display()),
        "--runner-image=terrane.dev/local".to_owned(),
        format!("--git-dir={}", place.path("git").display()),
    ];
    let mut controller = Guarded::start(Path::new("/usr/bin/env"), &arguments, log.clone()).unwrap();
    let address = until("the controller serves", async || {
        controller.ensure_running().unwrap();
        let log = fs::read_to_string(&log).unwrap_or_default();
        let (_, port) = log.lines().find(|line| line.contains("serving "))?.split_once("127.0.0.1:")?;
        Some(format!("127.0.0.1:{}", port.chars().take_while(char::is_ascii_digit).collect::<String>()))
    })
    .await;

    let said = says(&address, &mut controller, "[-]definitions failed").await;
    let words = "the cluster's definitions of Terrane's kinds are of another version and lack TerraformLayer spec.runHistoryPolicy, TerraformLayer \
                 status.inputs, TerraformRun spec.layer.name as a selectable field and 1 more; apply those of this version: `helm \
                 upgrade` with crds.install, or `kubectl apply --server-side --force-conflicts --filename deploy/crds`";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("[+]leader ok: stands by"), "{said}");
    assert!(lease(&client).await.is_none(), "it stands for nothing that it cannot do");
    let log_so_far = fs::read_to_string(&log).unwrap();
    assert_eq!(log_so_far.matches("nothing is done for now").count(), 1, "{log_so_far}");

    apply(&cluster, &place, &ours());
    let said = says(&address, &mut controller, "leads, term 1").await;
    assert!(said.contains("[+]definitions ok"), "{said}");
    until("the layer that was there is looked after", async || {
        let layer = layers.get("kept").await.unwrap();
        layer.metadata.finalizers.filter(|held| !held.is_empty())
    })
    .await;
    assert_eq!(layers.get("kept").await.unwrap().spec, layer.spec, "nothing of it was lost");

    apply(&cluster, &place, &older());
    says(&address, &mut controller, "[-]definitions failed").await;
    says(&address, &mut controller, "[+]leader ok: stands by").await;
    let holder = lease(&client).await.and_then(|lease| lease.spec?.holder_identity);
    assert_eq!(holder.unwrap_or_default(), "", "the office was handed over");
    apply(&cluster, &place, &ours());
    says(&address, &mut controller, "leads, term 2").await;
}
