//! The real metacontroller on a real kube-apiserver keeps a Terraform: Terrane answers what is to be there, by the rights of its Roles, and
//! the real tool deploys and destroys.

use std::fs;
use std::path::Path;

use api::terraform::WorkloadState;
use api::{Terraform, TerraformLayer, TerraformRepository, WORKLOAD_FINALIZER};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testkit::process::Guarded;
use testkit::tools::tool;

use crate::harness::{Place, until};
use crate::namespaced::{Ground, TENANT, git};

const RENDERED: &str = include_str!("../../../../charts/tests/rendered/production.yaml");

/// What the chart makes for metacontroller, asking at another address.
fn composite_controller(address: &str) -> Value {
    let is_ours = |document: &&str| document.lines().any(|line| line == "kind: CompositeController");
    let text = RENDERED.split("\n---\n").find(is_ours).unwrap();
    let mut made: Value = serde_saphyr::from_str(text).unwrap();
    for hook in ["sync", "finalize"] {
        let webhook = &mut made["spec"]["hooks"][hook]["webhook"];
        let path = webhook["path"].as_str().unwrap().to_owned();
        *webhook = json!({ "url": format!("http://{address}{path}") });
    }
    made
}

fn start(ground: &Ground) -> Guarded {
    let arguments = [
        format!("--client-config-path={}", ground.cluster.kubeconfig().display()),
        "--discovery-interval=1s".to_owned(),
        "--debug-addr=127.0.0.1:0".to_owned(),
        "--client-go-qps=100".to_owned(),
        "--client-go-burst=200".to_owned(),
    ];
    Guarded::start(&tool("metacontroller").unwrap(), &arguments, ground.place.path("metacontroller.log"))
        .unwrap()
}

fn commit(directory: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(directory).unwrap();
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
    git(directory, &["init", "--quiet"]);
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--message=Start"]);
}

#[tokio::test]
async fn the_real_metacontroller_keeps_a_terraform_and_lets_it_go_when_it_is_destroyed() {
    let ground = Ground::new().await;
    ground.apply(&tool("metacontroller-crds.yaml").unwrap());
    ground.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);
    let mut work = ground.work(&["--metacontroller-listen=127.0.0.1:0".to_owned()]).await;
    let address = ground.address_told("controller", "answering metacontroller", &mut work.controller).await;
    let controller = ground.place.path("composite-controller.json");
    fs::write(&controller, composite_controller(&address).to_string()).unwrap();
    ground.apply(&controller);
    let mut metacontroller = start(&ground);

    let code = ground.place.path("workload");
    let main = "variable \"size\" {}\noutput \"size\" { value = var.size }\n";
    let destroy = include_str!("../../../../examples/terraform/destroy");
    commit(&code, &[("main.tf", main), ("destroy", destroy)]);
    let spec = json!({
        "gitRepo": { "url": format!("file://{}", code.display()), "branch": "main" },
        "variables": { "size": "1" }, "scripts": { "destroy": "destroy" },
    });
    let terraforms = Api::<Terraform>::namespaced(ground.client.clone(), TENANT);
    let made = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": { "name": "work" }, "spec": spec,
    });
    terraforms.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
    let completed = async |size: &str| {
        until("it is deployed", async || {
            let found = terraforms.get("work").await.ok()?;
            let status =
                found.status.clone().filter(|it| it.observed_generation == found.metadata.generation)?;
            assert_ne!(status.state, Some(WorkloadState::Error), "{status:?}");
            let is_new = status.output.get("size").is_some_and(|shown| shown.contains(size));
            (status.state == Some(WorkloadState::Completed) && is_new).then_some(found)
        })
        .await
    };
    let found = completed("1").await;
    // It is metacontroller that keeps it, and nobody else.
    let finalizers = found.finalizers();
    assert!(
        finalizers.iter().any(|one| one.starts_with("metacontroller.io/compositecontroller-")),
        "{finalizers:?}"
    );
    assert!(!finalizers.iter().any(|one| one == WORKLOAD_FINALIZER), "{finalizers:?}");
    let layers = Api::<TerraformLayer>::namespaced(ground.client.clone(), TENANT);
    let repositories = Api::<TerraformRepository>::namespaced(ground.client.clone(), TENANT);
    let layer = layers.get("work").await.unwrap();
    let repository = repositories.get("work").await.unwrap();
    for (annotations, owners) in [
        (layer.annotations(), layer.owner_references()),
        (repository.annotations(), repository.owner_references()),
    ] {
        assert!(annotations.contains_key("metacontroller.k8s.io/last-applied-configuration"));
        assert_eq!(owners.iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>(), [found.uid().unwrap()]);
    }

    // A change of the wish is one of the layer; what is new in a list stands behind what was there, which is no other wish.
    let change = json!({ "spec": { "variables": { "size": "2", "AAA": "first" } } });
    terraforms.patch("work", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    completed("2").await;

    // As if Terrane had kept it before: its own finalizer is let go with the rest.
    let held = [found.finalizers(), &[WORKLOAD_FINALIZER.to_owned()]].concat();
    let hold = json!({ "metadata": { "finalizers": held } });
    terraforms.patch_metadata("work", &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    terraforms.delete("work", &DeleteParams::default()).await.unwrap();
    until("it is destroyed and gone", async || {
        metacontroller.ensure_running().unwrap();
        work.controller.ensure_running().unwrap();
        let left = terraforms.get_opt("work").await.ok()?;
        left.is_none().then_some(())
    })
    .await;
    assert!(layers.get_opt("work").await.unwrap().is_none(), "the layer goes before it");
    let log = ground.log("controller");
    assert!(
        !log.to_lowercase().contains("forbidden"),
        "the controller asked for more than its Roles give: {log}"
    );
    drop((metacontroller, work));
}

#[tokio::test]
async fn on_one_machine_metacontroller_is_answered_on_loopback_alone() {
    let place = Place::new();
    let said = place.up_refused(&["--metacontroller-listen", "0.0.0.0:0"]).await;
    assert!(
        said.contains("--metacontroller-listen 0.0.0.0:0 would answer whoever is in the network"),
        "{said}"
    );
}
