//! The HTTP service as the command line uses it: found by its announcement in the API, asked with the person's own token.

use anyhow::{Context, bail};
use api::SYSTEM_NAMESPACE;
use api::service::{ANNOUNCEMENT, AUTHORITY, URL};
use http::{HeaderValue, Method, Request, Response, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::client::{Body, ConfigExt};
use reqwest::Url;
use tower::{BoxError, Layer, ServiceExt};

use super::Connection;

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
        let authorization = authorization(&connection.config).await?;
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
        match serde_json::from_slice::<datastore::Refusal>(&body) {
            Ok(refusal) => bail!("{}", refusal.message),
            Err(_) => bail!("Terrane's HTTP service at {} answered {status}", self.base),
        }
    }

    pub(super) async fn get(&self, path: &[&str]) -> anyhow::Result<reqwest::Response> {
        self.send(Call::get(path)).await
    }
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

/// The header that the kubeconfig's user sends, whatever it comes from: a token, a file, a credential plugin.
async fn authorization(config: &kube::Config) -> anyhow::Result<HeaderValue> {
    let layer = config.auth_layer().context("prepare the credentials of the kubeconfig")?.context(
        "the kubeconfig has no token for Terrane's HTTP service, which cannot check client certificates; use a user with a token, such as one of `kubectl create token`",
    )?;
    let echo = tower::service_fn(|request: Request<Body>| async move {
        Ok::<_, BoxError>(Response::new(request.headers().get(header::AUTHORIZATION).cloned()))
    });
    let sent = layer
        .layer(echo)
        .oneshot(Request::new(Body::empty()))
        .await
        .map_err(|error| anyhow::anyhow!("get a token from the kubeconfig: {error}"))?
        .into_body();
    sent.context("the kubeconfig's credentials give no token")
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[tokio::test]
    async fn the_token_of_the_kubeconfig_is_sent_and_a_certificate_alone_is_explained() {
        let mut config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        config.auth_info.token = Some("abc".to_owned().into());
        assert_eq!(authorization(&config).await.unwrap(), "Bearer abc");
        let mut config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        config.auth_info.client_certificate_data = Some("YQ==".to_owned());
        config.auth_info.client_key_data = Some("YQ==".to_owned().into());
        let error = authorization(&config).await.unwrap_err();
        assert!(error.to_string().contains("kubectl create token"), "{error}");
    }
}
