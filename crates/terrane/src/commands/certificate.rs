//! `terrane certificate`: a certificate for a Service, made in the cluster and kept in a Secret. For whoever installs from a file, which
//! can hold no key, or renders the chart without a cluster, where Helm would make another one each time.

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::{certifying, kubernetes};

const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// Make a certificate and keep it in a Secret, unless one is there
///
/// The Secret has tls.crt, tls.key and ca.crt, the authority, which signs nothing else. It is in the namespace of this pod, or of the
/// kubeconfig. A Secret that is there stays as it is: delete it for a new certificate, which is valid for ten years.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The Secret
    #[arg(long, value_name = "NAME")]
    secret: api::text::ObjectName,
    /// A name that the certificate is for; can be given again
    #[arg(long = "name", value_name = "DNS-NAME", required = true)]
    names: Vec<String>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = kubernetes::role_client().await?;
    let namespace = client.default_namespace().to_owned();
    let secrets = Api::<Secret>::namespaced(client, &namespace);
    let name = options.secret.as_str();
    if let Some(found) =
        secrets.get_opt(name).await.with_context(|| format!("read Secret {namespace}/{name}"))?
    {
        return check(&found, &format!("{namespace}/{name}"));
    }
    let made = certifying::certify(&options.names).context("make a certificate")?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app.kubernetes.io/part-of": "terrane" } },
        "type": "kubernetes.io/tls",
        "stringData": { CHAIN: made.chain, KEY: made.key, AUTHORITY: made.authority },
    }))
    .context("describe the Secret")?;
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => println!("made a certificate in Secret {namespace}/{name}"),
        // Another one was faster, and its certificate is as good.
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
            println!("Secret {namespace}/{name} is there already");
        }
        Err(error) => return Err(error).with_context(|| format!("make Secret {namespace}/{name}")),
    }
    Ok(())
}

fn check(found: &Secret, place: &str) -> anyhow::Result<()> {
    let has = |key: &str| found.data.as_ref().is_some_and(|data| data.contains_key(key));
    if let Some(missing) = [CHAIN, KEY, AUTHORITY].into_iter().find(|key| !has(key)) {
        bail!("Secret {place} is there without {missing}; add it, or delete the Secret for a new one");
    }
    println!("Secret {place} is there already");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_secret_that_is_there_must_be_whole() {
        let secret = |keys: &[&str]| -> Secret {
            let data: serde_json::Map<_, _> =
                keys.iter().map(|key| ((*key).to_owned(), json!("YQ=="))).collect();
            serde_json::from_value(json!({ "data": data })).unwrap()
        };
        check(&secret(&[CHAIN, KEY, AUTHORITY]), "a/b").unwrap();
        let error = check(&secret(&[CHAIN, KEY]), "a/b").unwrap_err().to_string();
        assert_eq!(error, "Secret a/b is there without ca.crt; add it, or delete the Secret for a new one");
    }
}
