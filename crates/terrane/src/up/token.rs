//! Tokens of Terrane's own accounts for the datastore: asked for as on a cluster, kept in files of mode 0600, renewed at half their
//! life.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use api::{DATASTORE_AUDIENCE, SYSTEM_NAMESPACE};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

const LIFE: Duration = Duration::from_secs(3600);
const TRY_AGAIN: Duration = Duration::from_secs(15);

/// Whose token is kept where.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) account: &'static str,
    pub(super) file: PathBuf,
}

/// Renews every one of them.
pub(super) async fn renew(client: &Client, all: &[Kept]) -> anyhow::Result<()> {
    for Kept { account, file } in all {
        renew_one(client, account, file).await?;
    }
    Ok(())
}

async fn renew_one(client: &Client, account: &str, file: &Path) -> anyhow::Result<()> {
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: vec![DATASTORE_AUDIENCE.to_owned()],
            expiration_seconds: i64::try_from(LIFE.as_secs()).ok(),
            bound_object_ref: None,
        },
        ..TokenRequest::default()
    };
    let answer = Api::<ServiceAccount>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("ask for the token of {account}"))?;
    let token = answer.status.context("the API gave no token")?.token;
    write_private(file, &token).with_context(|| format!("write {}", file.display()))
}

/// Renames into place: whoever reads sees the old token or the new one.
fn write_private(file: &Path, token: &str) -> std::io::Result<()> {
    let next = file.with_extension("next");
    let mut out =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    out.write_all(token.as_bytes())?;
    std::fs::rename(next, file)
}

/// Renews for ever. A failure is tried again while the old token still holds: a disk that is full now may have room soon.
pub(super) async fn keep(client: &Client, all: &[Kept]) {
    let mut wait = LIFE / 2;
    loop {
        tokio::time::sleep(wait).await;
        wait = match renew(client, all).await {
            Ok(()) => LIFE / 2,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "a token for the datastore was not renewed; trying again"
                );
                TRY_AGAIN
            }
        };
    }
}
