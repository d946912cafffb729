//! The suite on a real kube-apiserver with its controllers: this is what makes the cases true.

use conformance::{Scope, Target, cases, runner};
use testkit::cluster::RealCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_a_real_cluster() -> anyhow::Result<()> {
    let cluster = RealCluster::shared().await;
    let target = Target::on_port(cluster.config()?, cluster.token())?;
    let scope = Scope::new(target.clone(), "setup")?;
    let definitions: Vec<_> =
        api::custom_resources().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    scope.install_known(&definitions).await?;
    runner::run(&target, &cases::all(), &[]).await
}
