//! `terrane login`: another link for the HTTP service of one's own machine, in the place of the one before.

use ::server::credential::Credentials;
use anyhow::{Context, bail};
use api::SYSTEM_NAMESPACE;
use api::service::{ANNOUNCEMENT, SESSIONS, URL};
use clap::Args;
use embedded::auth::identity::ADMINISTRATOR;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use secrecy::ExposeSecret;

use crate::arguments::Target;

/// Print a link that logs you in to the HTTP service of `terrane up` once
///
/// It opens a session of 12 hours as the administrator of this machine, and works for an hour, once; the link that was printed before
/// works no longer. Needs the kubeconfig of `terrane up`. On a cluster there are no sessions: people send the token of their kubeconfig.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (client, _) = super::connect(&options.target).await?;
    let url = own_service(&client).await?;
    let expires = Timestamp::now().checked_add(::server::LINK).context("find out when a link expires")?;
    let word = Credentials::new(&client).make_login(ADMINISTRATOR, expires).await?;
    println!("{url}/login?once={}", word.expose_secret());
    Ok(())
}

/// Where the service is that has sessions and tokens of its own.
pub(super) async fn own_service(client: &Client) -> anyhow::Result<String> {
    let place = format!("ConfigMap {SYSTEM_NAMESPACE}/{ANNOUNCEMENT}");
    let announced = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .get_opt(ANNOUNCEMENT)
        .await
        .with_context(|| format!("read {place}, which says where Terrane's HTTP service is"))?;
    let Some(data) = announced.and_then(|map| map.data) else {
        bail!(
            "{place} is missing, so Terrane's HTTP service cannot be found; is Terrane running on this API?"
        );
    };
    if !data.contains_key(SESSIONS) {
        bail!(
            "the HTTP service of this cluster knows people by the tokens of the Kubernetes API alone; `kubectl create token NAME --duration 720h` makes one for a program, and its roles say what it may"
        );
    }
    data.get(URL).cloned().with_context(|| format!("{place} has no key {URL}"))
}
