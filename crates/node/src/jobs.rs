//! placeholder
use kube::Client;
pub async fn run(_client: Client) {
    std::future::pending().await
}
