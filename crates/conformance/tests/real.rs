//! The suite on a real kube-apiserver with its controllers: this is what makes the cases true.

use conformance::{Target, cases, runner};
use testkit::cluster::RealCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_a_real_cluster() -> anyhow::Result<()> {
    let cluster = RealCluster::shared().await;
    let target = Target::on_port(cluster.config()?, cluster.token())?;
    runner::run(&target, &cases::all(), &[]).await
}
