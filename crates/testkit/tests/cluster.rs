//! The harness itself: the cluster it starts is real, whole and shared.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use testkit::cluster::{Controllers, Disk, Options, RealCluster};

#[tokio::test]
async fn controllers_act_on_what_is_created() -> Result<()> {
    let client = RealCluster::shared().await.client()?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "harness-controllers"}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;

    let accounts: Api<ServiceAccount> = Api::namespaced(client, "harness-controllers");
    let limit = Instant::now() + Duration::from_secs(60);
    while accounts.get_opt("default").await?.is_none() {
        ensure!(Instant::now() < limit, "no default ServiceAccount in a new namespace");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    namespaces.delete("harness-controllers", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn kubectl_is_of_the_server_s_version() -> Result<()> {
    let output = RealCluster::shared().await.kubectl()?.args(["version", "-o", "json"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let versions: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let (client, server) =
        (&versions["clientVersion"]["gitVersion"], &versions["serverVersion"]["gitVersion"]);
    assert_eq!(client, server);
    assert!(server.as_str().context("no version of the server")?.starts_with("v1."));
    Ok(())
}

/// What an etcd that is too old would break.
#[tokio::test]
async fn a_watch_can_begin_with_what_exists() -> Result<()> {
    let client = RealCluster::shared().await.client()?;
    let request = http::Request::get(
        "/api/v1/namespaces/default/configmaps?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
    )
    .body(Vec::new())?;
    let events = client.request_text(request).await?;
    assert!(events.contains("k8s.io/initial-events-end"), "{events}");
    Ok(())
}

#[tokio::test]
async fn a_bare_api_takes_pods_and_leaves_nothing_behind() -> Result<()> {
    let options = Options { controllers: Controllers::Absent, disk: Disk::Durable };
    let cluster = RealCluster::start(options).await?;
    let directory = cluster.kubeconfig().parent().context("a kubeconfig without a directory")?.to_owned();
    let pids = cluster.pids();

    let client = cluster.client()?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({"metadata": {"name": "one"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    assert!(maps.list(&Default::default()).await?.items.is_empty(), "a controller made a ConfigMap");

    drop(cluster);
    assert!(!directory.exists(), "{} is still there", directory.display());
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} still runs");
    }
    Ok(())
}
