//! The HTTP service as the command line uses it: found by its announcement in the API, asked with the person's own token.

use anyhow::{Context, bail};
use api::SYSTEM_NAMESPACE;
use api::service::{ANNOUNCEMENT, AUTHORITY, URL};
use http::{HeaderValue, Method, Request, Response, header};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use kube::client::{Body, ConfigExt};
use reqwest::Url;
use tower::{BoxError, Layer, ServiceExt};

use super::Connection;
use crate::arguments::ServiceAccountName;

/// The shortest life that a Kubernetes API gives a token.
const TOKEN_SECONDS: i64 = 600;

pub(super) struct Service {
    http: reqwest::Client,
    base: Url,
    authorization: HeaderValue,
}

impl Service {
    pub(super) async fn find(connection: &Connection) -> anyhow::Result<Self> {
        let place = format!("ConfigMap {SYSTEM_NAMESPACE}/{ANNOUNCEMENT}");
        let announced = Api::<ConfigMap>::namespaced(connection.client.clone(), SYSTEM_NAMESPACE)
            .get_opt(ANNOUNCEMENT)
            .await
            .with_context(|| format!("read {place}, which says where Terrane's HTTP service is"))?;
        let Some(data) = announced.and_then(|map| map.data) else {
            bail!(
                "{place} is missing, so Terrane's HTTP service cannot be found; is Terrane running on this API?"
            );
        };
        let url = data.get(URL).with_context(|| format!("{place} has no key {URL}"))?;
        let base = Url::parse(url).with_context(|| format!("{place} holds no usable address: {url}"))?;
        let mut http = reqwest::Client::builder()
            .connect_timeout(std::time::Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        match (base.scheme(), data.get(AUTHORITY)) {
            ("https", Some(pem)) => {
                let authority = reqwest::Certificate::from_pem(pem.as_bytes())
                    .with_context(|| format!("use {AUTHORITY} of {place}"))?;
                http = http.tls_certs_only([authority]);
            }
            ("https", None) => {}
            // A token travels only where nobody else can listen.
            ("http", _) if is_loopback(&base) => {}
            _ => bail!("{place} names {base}, where a token would travel in clear; it must be https"),
        }
        let authorization = authorization(connection).await?;
        Ok(Self { http: http.build().context("prepare the HTTP client")?, base, authorization })
    }

    /// Sends a request; an answer that is not a success becomes an error in the service's own words.
    pub(super) async fn send(&self, call: Call<'_>) -> anyhow::Result<reqwest::Response> {
        let mut url = self.base.clone();
        // Names from the command line are one segment each, whatever they contain.
        url.path_segments_mut()
            .map_err(|()| anyhow::anyhow!("{} cannot be the address of a service", self.base))?
            .pop_if_empty()
            .extend(["api", "v1", "namespaces"])
            .extend(call.path);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(call.query);
        }
        let mut request =
            self.http.request(call.method, url).header(header::AUTHORIZATION, self.authorization.clone());
        if let Some(body) = call.body {
            let sha256 = api::text::Sha256::of(&body);
            request = request.header(datastore::header::SHA256, sha256.as_str()).body(body);
        }
        let answer = request
            .send()
            .await
            .with_context(|| format!("reach Terrane's HTTP service at {}; is it running?", self.base))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.unwrap_or_default();
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => bail!("{}", problem.detail),
            Err(_) => bail!("Terrane's HTTP service at {} answered {status}", self.base),
        }
    }

    pub(super) async fn get(&self, path: &[&str]) -> anyhow::Result<reqwest::Response> {
        self.send(Call::get(path)).await
    }
}

/// What a refusal says to a person.
#[derive(serde::Deserialize)]
struct Problem {
    detail: String,
}

/// One request, below `/api/v1/namespaces`.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: &'a [&'a str],
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) body: Option<Vec<u8>>,
}

impl<'a> Call<'a> {
    pub(super) fn get(path: &'a [&'a str]) -> Self {
        Self { method: Method::GET, path, query: &[], body: None }
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// How the HTTP service learns who asks: by the kubeconfig's own token, else by one of the ServiceAccount that the person named.
async fn authorization(connection: &Connection) -> anyhow::Result<HeaderValue> {
    if let Some(account) = &connection.service_account {
        return of_service_account(connection, account).await;
    }
    match of_kubeconfig(&connection.config).await? {
        Some(header) => Ok(header),
        None => bail!(
            "the kubeconfig's user has a client certificate, which Terrane's HTTP service cannot check; name a ServiceAccount that may read this with --service-account NAME (or TERRANE_SERVICE_ACCOUNT), and have the right to create serviceaccounts/token of it; with cluster rights: `kubectl create serviceaccount NAME -n {0} && kubectl create rolebinding NAME -n {0} --clusterrole terrane-viewer --serviceaccount {0}:NAME`",
            connection.namespace
        ),
    }
}

/// The header that the kubeconfig's user sends, whatever it comes from: a token, a file, a credential plugin. `None` where it is
/// known by a certificate.
async fn of_kubeconfig(config: &kube::Config) -> anyhow::Result<Option<HeaderValue>> {
    let Some(layer) = config.auth_layer().context("prepare the credentials of the kubeconfig")? else {
        return Ok(None);
    };
    let echo = tower::service_fn(|request: Request<Body>| async move {
        Ok::<_, BoxError>(Response::new(request.headers().get(header::AUTHORIZATION).cloned()))
    });
    let sent = layer
        .layer(echo)
        .oneshot(Request::new(Body::empty()))
        .await
        .map_err(|error| anyhow::anyhow!("get a token from the kubeconfig: {error}"))?;
    Ok(sent.into_body())
}

/// As `kubectl create token` does, with the rights of the kubeconfig's user.
async fn of_service_account(
    connection: &Connection,
    account: &ServiceAccountName,
) -> anyhow::Result<HeaderValue> {
    let namespace =
        account.namespace.as_ref().map_or(connection.namespace.as_str(), |namespace| namespace.as_str());
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(TOKEN_SECONDS),
            bound_object_ref: None,
        },
        ..TokenRequest::default()
    };
    let answer = Api::<ServiceAccount>::namespaced(connection.client.clone(), namespace)
        .create_token_request(account.name.as_str(), &PostParams::default(), &request)
        .await
        .with_context(|| format!("ask for a token of ServiceAccount {namespace}/{}", account.name))?;
    let token = answer.status.map(|status| status.token).unwrap_or_default();
    let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
        .with_context(|| format!("use the token of ServiceAccount {namespace}/{}", account.name))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::config::{KubeConfigOptions, Kubeconfig};

    #[test]
    fn tokens_travel_in_clear_on_loopback_only() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080", true),
            ("http://10.0.0.1:8080", false),
            ("http://localhost.evil.example", false),
            ("http://127.0.0.1.evil.example", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    fn config(user: &str) -> Kubeconfig {
        let cluster = "clusters: [{ name: c, cluster: { server: \"https://127.0.0.1:1\" } }]";
        let context = "contexts: [{ name: c, context: { cluster: c, user: u } }]\ncurrent-context: c";
        Kubeconfig::from_yaml(&format!("{cluster}\n{context}\nusers: [{{ name: u, user: {user} }}]")).unwrap()
    }

    async fn sent(user: &str) -> anyhow::Result<Option<HeaderValue>> {
        let config =
            kube::Config::from_custom_kubeconfig(config(user), &KubeConfigOptions::default()).await?;
        of_kubeconfig(&super::super::with_tidy_token(config)).await
    }

    #[tokio::test]
    async fn a_token_is_found_wherever_a_kubeconfig_can_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "from-a-file\n").unwrap();
        let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-a-plugin"}}"#;
        let answer = directory.path().join("credential.json");
        std::fs::write(&answer, credential).unwrap();
        let plugin = format!(
            "{{ exec: {{ apiVersion: client.authentication.k8s.io/v1, command: cat, args: [\"{}\"], interactiveMode: Never }} }}",
            answer.display()
        );
        for (user, expected) in [
            ("{ token: in-clear }".to_owned(), Some("Bearer in-clear")),
            (format!("{{ tokenFile: \"{}\" }}", file.display()), Some("Bearer from-a-file")),
            (plugin, Some("Bearer from-a-plugin")),
            ("{ client-certificate-data: YQ==, client-key-data: YQ== }".to_owned(), None),
        ] {
            let found = sent(&user).await.unwrap();
            assert_eq!(found.as_ref().map(|header| header.to_str().unwrap()), expected, "{user}");
        }
    }
}
