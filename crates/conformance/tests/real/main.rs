//! The suite on a real kube-apiserver with its controllers: this is what makes the cases true.

#![recursion_limit = "512"]

mod protobuf;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use conformance::{Scope, Target, cases, runner};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use secrecy::ExposeSecret;
use serde_json::Value;
use testkit::cluster::RealCluster;

/// Another cluster than the one that is started here: a kubeconfig whose user has a token and all rights.
const OTHER_CLUSTER: &str = "TERRANE_TEST_KUBECONFIG";

/// These hold while nobody runs the pods of the cases, and a cluster with a node does.
const WITHOUT_NODES: [&str; 2] = ["lists/table_of_pods", "deleting/pod_no_grace"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_a_real_cluster() -> anyhow::Result<()> {
    let mut cases = cases::all();
    #[expect(clippy::disallowed_methods, reason = "a test is not the product: a person names a cluster here")]
    let other = std::env::var_os(OTHER_CLUSTER);
    let target = match other {
        Some(path) => {
            cases.retain(|case| !WITHOUT_NODES.contains(&case.name));
            other_cluster(path.as_ref()).await?
        }
        None => {
            let cluster = RealCluster::shared().await;
            Target::on_port(cluster.config()?, cluster.token())?
        }
    };
    Scope::new(target.clone(), "setup")?.install_terrane().await?;
    runner::run(&target, &cases, &[]).await
}

async fn other_cluster(path: &Path) -> anyhow::Result<Target> {
    let kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("{OTHER_CLUSTER} is {}", path.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let token = config.auth_info.token.clone().context("the user of that kubeconfig has no token")?;
    Target::on_port(config, token.expose_secret())
}

/// `cargo xtask openapi` wrote them; a newer kube-apiserver may say something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schemas_of_built_in_kinds_are_those_of_the_real_server() -> anyhow::Result<()> {
    let kept: Value = serde_json::from_str(include_str!("../../../embedded/src/kinds/openapi.json"))?;
    let kept_schemas = kept.get("schemas").and_then(Value::as_object).context("it has no schemas")?;
    ensure!(kept_schemas.len() > 200, "only {} schemas are kept", kept_schemas.len());
    let cluster = RealCluster::shared().await;
    let scope = Scope::new(Target::on_port(cluster.config()?, cluster.token())?, "schemas")?;
    let version = scope.get("/version").await?.code(200)?;
    ensure!(version.get("gitVersion") == kept.get("kubernetes"), "it is {version}");

    let index = scope.get("/openapi/v3").await?.code(200)?;
    let documents = index.get("paths").and_then(Value::as_object).context("there are no documents")?;
    let mut served = BTreeMap::new();
    for path in documents.keys().filter(|path| path.ends_with("/v1")) {
        let document = scope.get(&format!("/openapi/v3/{path}")).await?.code(200)?;
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        served.extend(schemas.into_iter().flatten().map(|(name, schema)| (name.clone(), schema.clone())));
    }
    let differing: Vec<&String> = kept_schemas
        .iter()
        .filter(|(name, schema)| served.get(*name).map(|served| own(name, served)) != Some(own(name, schema)))
        .map(|(name, _)| name)
        .collect();
    ensure!(differing.is_empty(), "run `cargo xtask openapi`: {differing:?} differ");
    Ok(())
}

/// Types that all groups share list every group of the server, of which only some are served here.
fn own(name: &str, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let (true, Some(fields)) = (name.starts_with("io.k8s.apimachinery"), schema.as_object_mut()) {
        fields.remove("x-kubernetes-group-version-kind");
    }
    schema
}
