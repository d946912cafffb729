//! Asking a registry: where it is, who may be connected to, how to log in, and how much of an answer is read.

use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use api::image::{DOCKER_HUB, ImagePlace};
use futures::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};

use super::error::Error;
use super::login::{Challenge, Login, challenge};
use super::push::Content;
use crate::remote::{Addresses, may_connect};

/// What is read of an answer that is not a blob.
pub(super) const ANSWER_LIMIT: u64 = 4 * 1024 * 1024;
const TOKEN_LIMIT: u64 = 256 * 1024;
const REDIRECTS: usize = 5;

/// An administrator's word that images below one name are read from another registry, such as a mirror. Only such a one may be spoken to
/// in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryRewrite {
    /// A host, perhaps with the beginning of a path.
    from: String,
    to: Url,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a rewrite of registries; write FROM=TO with a host and a URL, such as docker.io=https://mirror.example/hub"
)]
pub struct InvalidRegistryRewrite(String);

impl FromStr for RegistryRewrite {
    type Err = InvalidRegistryRewrite;

    fn from_str(text: &str) -> Result<Self, InvalidRegistryRewrite> {
        let bad = || InvalidRegistryRewrite(text.to_owned());
        let (from, to) = text.split_once('=').ok_or_else(bad)?;
        let from = from.trim_end_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte);
        let to = Url::parse(to).map_err(|_| bad())?;
        let is_right = !from.is_empty()
            && from.bytes().all(is_plain)
            && !from.contains("//")
            && ["http", "https"].contains(&to.scheme())
            && to.username().is_empty()
            && to.password().is_none()
            && to.query().is_none()
            && to.fragment().is_none();
        if is_right { Ok(Self { from: from.to_owned(), to }) } else { Err(bad()) }
    }
}

impl RegistryRewrite {
    /// The host, perhaps with the beginning of a path, whose images are elsewhere.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// Where they are, as names of images begin.
    pub fn to_place(&self) -> String {
        let host = self.to.host_str().unwrap_or_default();
        let port = self.to.port().map(|port| format!(":{port}")).unwrap_or_default();
        let path = self.to.path().trim_matches('/');
        let slash = if path.is_empty() { "" } else { "/" };
        format!("{host}{port}{slash}{path}")
    }

    /// The host, where all images there are meant.
    pub(super) fn whole_registry(&self) -> Option<&str> {
        (!self.from.contains('/')).then_some(self.from.as_str())
    }
}

impl std::fmt::Display for RegistryRewrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

/// Where the images of one name are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Scheme, host and port.
    origin: Url,
    pub(super) path: String,
    /// The administrator has named it.
    is_named: bool,
}

impl Target {
    /// The longest rewrite that covers the image wins. O(rewrites).
    pub(super) fn of(
        place: &ImagePlace,
        rewrites: &[RegistryRewrite],
        addresses: Addresses,
    ) -> Result<Self, Error> {
        let whole = place.to_string();
        let forbidden = |why: &str| Error::Forbidden { image: whole.clone(), why: why.to_owned() };
        let covering = place.covered_by(rewrites.iter().map(|rewrite| (rewrite.from.as_str(), rewrite)));
        if let Some((rewrite, rest)) = covering {
            let prefix = rewrite.to.path().trim_matches('/');
            let parts = [prefix, rest.as_str()].into_iter().filter(|part| !part.is_empty());
            let path = parts.collect::<Vec<_>>().join("/");
            let mut origin = rewrite.to.clone();
            origin.set_path("/");
            return Ok(Self { origin, path, is_named: true });
        }
        let host = if place.host == DOCKER_HUB { "registry-1.docker.io" } else { place.host.as_str() };
        let is_own = addresses == Addresses::OwnToo && is_loopback(host);
        let scheme = if is_own { "http" } else { "https" };
        let origin = Url::parse(&format!("{scheme}://{host}/"))
            .map_err(|_| forbidden("its host is not a host name or an address"))?;
        Ok(Self { origin, path: place.path.clone(), is_named: false })
    }

    /// Host, and port where it is not the scheme's own.
    pub(super) fn authority(&self) -> String {
        let host = self.origin.host_str().unwrap_or_default();
        match self.origin.port() {
            Some(port) => format!("{host}:{port}"),
            // What is not told a port takes that of https.
            None if self.is_in_clear() => format!("{host}:80"),
            None => host.to_owned(),
        }
    }

    pub(super) fn is_in_clear(&self) -> bool {
        self.origin.scheme() == "http"
    }

    /// Whether both are in the same registry.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.origin.origin() == other.origin.origin()
    }

    pub(super) fn url(&self, rest: &str) -> Option<Url> {
        self.origin.join(&format!("/v2/{}/{rest}", self.path)).ok()
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.rsplit_once(':').map_or(host, |(name, _)| name);
    bare == "localhost"
        || bare.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The clients: one for registries that anybody may name, and one for those that the administrator has named.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    strict: reqwest::Client,
    trusting: reqwest::Client,
    addresses: Addresses,
}

impl Clients {
    pub(super) fn new(addresses: Addresses) -> Result<Self, Error> {
        let build = |addresses: Addresses| {
            reqwest::Client::builder()
                .connect_timeout(Duration::from_secs(20))
                .read_timeout(Duration::from_secs(60))
                .user_agent(concat!("terrane/", env!("CARGO_PKG_VERSION")))
                .redirect(redirects(addresses))
                .dns_resolver(std::sync::Arc::new(Resolver(addresses)))
                .build()
                .map_err(|error| Error::Client(chain(&error)))
        };
        Ok(Self { strict: build(addresses)?, trusting: build(Addresses::OwnToo)?, addresses })
    }

    fn of(&self, target: &Target) -> (&reqwest::Client, Addresses) {
        if target.is_named { (&self.trusting, Addresses::OwnToo) } else { (&self.strict, self.addresses) }
    }
}

/// Resolves names and refuses addresses where no registry should be. What was checked is what is connected to.
#[derive(Debug, Clone, Copy)]
struct Resolver(Addresses);

#[derive(Debug, thiserror::Error)]
#[error("its host {host} has the address {address}, which is not a place for a registry")]
struct RefusedAddress {
    host: String,
    address: IpAddr,
}

impl reqwest::dns::Resolve for Resolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let (host, rule) = (name.as_str().to_owned(), self.0);
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((host.as_str(), 0)).await?.take(16).collect();
            if let Some(refused) = found.iter().find(|address| !may_connect(address.ip(), rule)) {
                return Err(RefusedAddress { host, address: refused.ip() }.into());
            }
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

/// Registries hand out blobs elsewhere, so redirects are followed; never from https to clear, and never to an address that is refused.
/// Credentials do not go along to another host.
fn redirects(rule: Addresses) -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(move |attempt| {
        let was_secret = attempt.previous().last().is_some_and(|before| before.scheme() == "https");
        if attempt.previous().len() > REDIRECTS {
            return attempt.error("it redirects too often");
        }
        if was_secret && attempt.url().scheme() != "https" {
            return attempt.error("it redirects from https to a place that is not");
        }
        match refused_literal(attempt.url(), rule) {
            Some(refused) => attempt.error(refused),
            None => attempt.follow(),
        }
    })
}

/// An address in a URL is not resolved, and so not checked by the resolver.
fn refused_literal(url: &Url, rule: Addresses) -> Option<RefusedAddress> {
    let host = url.host_str()?;
    let address: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
    (!may_connect(address, rule)).then(|| RefusedAddress { host: host.to_owned(), address })
}

/// One conversation with a registry about one image.
pub(super) struct Session<'a> {
    clients: &'a Clients,
    pub(super) target: Target,
    /// As people know it.
    pub(super) image: String,
    login: Option<&'a Login>,
    authorization: Option<HeaderValue>,
}

impl<'a> Session<'a> {
    pub(super) fn new(clients: &'a Clients, target: Target, image: String, login: Option<&'a Login>) -> Self {
        Self { clients, target, image, login, authorization: None }
    }

    pub(super) fn url(&self, rest: &str) -> Result<Url, Error> {
        self.target.url(rest).ok_or_else(|| self.unusable("its name does not make a URL"))
    }

    pub(super) fn unusable(&self, why: impl Into<String>) -> Error {
        Error::Unusable { image: self.image.clone(), why: why.into() }
    }

    /// Asks, and logs in where the registry wants that. Only an answer that is a success comes back.
    pub(super) async fn ask(
        &mut self,
        method: Method,
        url: Url,
        accept: &'static str,
    ) -> Result<Response, Error> {
        self.tell(method, url, (ACCEPT, HeaderValue::from_static(accept)), &Content::Nothing).await
    }

    /// The same, with something to send.
    pub(super) async fn tell(
        &mut self,
        method: Method,
        url: Url,
        (name, value): (HeaderName, HeaderValue),
        content: &Content<'_>,
    ) -> Result<Response, Error> {
        let (client, rule) = self.clients.of(&self.target);
        if let Some(refused) = refused_literal(&url, rule) {
            return Err(Error::Forbidden { image: self.image.clone(), why: refused.to_string() });
        }
        let mut has_logged_in = false;
        loop {
            let mut request = client.request(method.clone(), url.clone()).header(&name, value.clone());
            if let Some(authorization) = &self.authorization {
                request = request.header(AUTHORIZATION, authorization.clone());
            }
            let request = content.attach(request).await?;
            let answer = request.send().await.map_err(|error| self.broken(&error))?;
            if answer.status() != StatusCode::UNAUTHORIZED || has_logged_in {
                return self.success(answer);
            }
            has_logged_in = true;
            self.authorization = Some(self.log_in(&answer).await?);
        }
    }

    fn success(&self, answer: Response) -> Result<Response, Error> {
        let image = self.image.clone();
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(match self.login {
                Some(_) => Error::Unauthorised { image },
                None => Error::NeedsLogin { image },
            }),
            StatusCode::NOT_FOUND => Err(Error::NotFound { image }),
            StatusCode::TOO_MANY_REQUESTS => Err(Error::RateLimited { image }),
            status if status.is_server_error() => Err(Error::Failing { image, status: status.as_u16() }),
            status => Err(Error::NoRegistry { image, detail: format!("it answers {}", status.as_u16()) }),
        }
    }

    async fn log_in(&self, refusal: &Response) -> Result<HeaderValue, Error> {
        let image = || self.image.clone();
        let headers = refusal.headers().get_all(WWW_AUTHENTICATE);
        let asked = headers.iter().filter_map(|header| challenge(header.to_str().ok()?));
        // A token rather than the password itself.
        let asked = asked.max_by_key(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        let header = match (asked, self.login) {
            (_, Some(Login::Bearer(token))) => bearer(token),
            (Some(Challenge::Bearer { realm, service, scope }), login) => {
                let token = self.token(&realm, service.as_deref(), scope.as_deref(), login).await?;
                bearer(&token)
            }
            (Some(Challenge::Basic), Some(Login::Password { user, password })) => basic(user, password),
            (Some(Challenge::Basic), Some(Login::Refresh(_))) => {
                return Err(Error::Unauthorised { image: image() });
            }
            (Some(Challenge::Basic), None) => return Err(Error::NeedsLogin { image: image() }),
            (None, Some(_)) => return Err(Error::Unauthorised { image: image() }),
            (None, None) => return Err(Error::NeedsLogin { image: image() }),
        };
        let mut header = header.ok_or_else(|| self.unusable("its credentials cannot stand in a header"))?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// Asks the registry's own service for a token. It gets the account for this registry, and no other.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        login: Option<&Login>,
    ) -> Result<SecretString, Error> {
        let no_registry =
            |detail: &str| Error::NoRegistry { image: self.image.clone(), detail: detail.to_owned() };
        let mut url = Url::parse(realm).map_err(|_| no_registry("it asks for a token from no URL"))?;
        let (client, rule) = self.clients.of(&self.target);
        let is_clear = url.scheme() == "http" && self.target.origin.scheme() == "http";
        if url.scheme() != "https" && !is_clear {
            return Err(no_registry("it asks for a token from a place that is not https"));
        }
        if let Some(refused) = refused_literal(&url, rule) {
            return Err(Error::Forbidden { image: self.image.clone(), why: refused.to_string() });
        }
        let scope = scope.map_or_else(|| format!("repository:{}:pull", self.target.path), str::to_owned);
        let service = service.unwrap_or_default();
        let request = match login {
            Some(Login::Refresh(token)) => {
                let mut form = url.clone();
                form.query_pairs_mut()
                    .clear()
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("client_id", "terrane")
                    .append_pair("service", service)
                    .append_pair("scope", &scope)
                    .append_pair("refresh_token", token.expose_secret());
                let form = form.query().unwrap_or_default().to_owned();
                client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
            }
            Some(Login::Password { user, password }) => {
                url.query_pairs_mut().append_pair("service", service).append_pair("scope", &scope);
                client.get(url).basic_auth(user, Some(password.expose_secret()))
            }
            Some(Login::Bearer(_)) | None => {
                url.query_pairs_mut().append_pair("service", service).append_pair("scope", &scope);
                client.get(url)
            }
        };
        let answer = self.success(request.send().await.map_err(|error| self.broken(&error))?)?;
        let content = self.read(answer, TOKEN_LIMIT).await?;
        #[derive(serde::Deserialize)]
        struct Granted {
            token: Option<String>,
            access_token: Option<String>,
        }
        let granted: Granted =
            serde_json::from_slice(&content).map_err(|_| no_registry("its answer holds no token"))?;
        let token = granted.token.or(granted.access_token).filter(|token| !token.is_empty());
        token.map(SecretString::from).ok_or_else(|| no_registry("its answer holds no token"))
    }

    /// The whole of an answer, as long as it is not too large.
    pub(super) async fn read(&self, answer: Response, limit: u64) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        let mut pieces = answer.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| self.broken(&error))?;
            let size = u64::try_from(content.len().saturating_add(piece.len())).unwrap_or(u64::MAX);
            if size > limit {
                let detail = format!("an answer is larger than {limit} bytes");
                return Err(Error::NoRegistry { image: self.image.clone(), detail });
            }
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    pub(super) fn broken(&self, error: &reqwest::Error) -> Error {
        let image = self.image.clone();
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(found) = cause {
            if let Some(refused) = found.downcast_ref::<RefusedAddress>() {
                return Error::Forbidden { image, why: refused.to_string() };
            }
            cause = found.source();
        }
        Error::Unreachable { image, detail: chain(error) }
    }
}

fn bearer(token: &SecretString) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()
}

fn basic(user: &str, password: &SecretString) -> Option<HeaderValue> {
    use base64::Engine;
    let pair = format!("{user}:{}", password.expose_secret());
    let text = base64::engine::general_purpose::STANDARD.encode(pair);
    HeaderValue::from_str(&format!("Basic {text}")).ok()
}

/// What happened and why, without the URL, which may hold what a registry signed for us alone.
fn chain(error: &reqwest::Error) -> String {
    let mut words = Vec::new();
    let mut cause = error.source();
    while let Some(found) = cause {
        words.push(found.to_string());
        cause = found.source();
    }
    words.last().cloned().unwrap_or_else(|| {
        if error.is_timeout() { "it took too long".to_owned() } else { "the request failed".to_owned() }
    })
}

/// The next page of a list, by its `Link` header: a reference below the same registry.
pub fn next_page(link: &str) -> Option<String> {
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_next = parameters.split(';').any(|parameter| {
        let parameter = parameter.trim().to_ascii_lowercase();
        parameter == "rel=\"next\"" || parameter == "rel=next"
    });
    (is_next && !target.is_empty() && target.len() <= 4096).then(|| target.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn target(host: &str, path: &str, rewrites: &[&str], addresses: Addresses) -> String {
        let rewrites: Vec<RegistryRewrite> = rewrites.iter().map(|text| text.parse().unwrap()).collect();
        let place = ImagePlace { host: host.to_owned(), path: path.to_owned() };
        Target::of(&place, &rewrites, addresses).unwrap().url("tags/list").unwrap().to_string()
    }

    #[test]
    fn a_registry_is_where_its_host_or_the_administrator_says() {
        use Addresses::{NotOwn, OwnToo};
        assert_eq!(
            target("docker.io", "library/a", &[], NotOwn),
            "https://registry-1.docker.io/v2/library/a/tags/list"
        );
        assert_eq!(target("ghcr.io", "a/b", &[], OwnToo), "https://ghcr.io/v2/a/b/tags/list");
        assert_eq!(target("127.0.0.1:5000", "a", &[], OwnToo), "http://127.0.0.1:5000/v2/a/tags/list");
        assert_eq!(target("localhost:5000", "a", &[], OwnToo), "http://localhost:5000/v2/a/tags/list");
        assert_eq!(target("localhost:5000", "a", &[], NotOwn), "https://localhost:5000/v2/a/tags/list");
        let rewrites = ["docker.io=http://127.0.0.1:5000", "docker.io/team=https://mirror.example/hub/"];
        assert_eq!(
            target("docker.io", "library/a", &rewrites, NotOwn),
            "http://127.0.0.1:5000/v2/library/a/tags/list"
        );
        assert_eq!(
            target("docker.io", "team/a", &rewrites, NotOwn),
            "https://mirror.example/v2/hub/a/tags/list"
        );
        assert_eq!(
            target("docker.io", "teams/a", &rewrites, NotOwn),
            "http://127.0.0.1:5000/v2/teams/a/tags/list"
        );
        for bad in [
            "",
            "docker.io",
            "docker.io=mirror",
            "=http://a",
            "docker.io=ftp://a",
            "docker.io=http://u:p@a/",
            "a b=http://c",
        ] {
            assert!(bad.parse::<RegistryRewrite>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_next_page_is_read_from_the_link_header() {
        let next = |link: &str| next_page(link);
        assert_eq!(
            next("</v2/a/tags/list?last=b&n=2>; rel=\"next\"").as_deref(),
            Some("/v2/a/tags/list?last=b&n=2")
        );
        assert_eq!(next("<https://other/x>; rel=next").as_deref(), Some("https://other/x"));
        for none in ["", "</x>", "</x>; rel=\"prev\"", "x; rel=\"next\"", "<>; rel=\"next\""] {
            assert_eq!(next(none), None, "{none}");
        }
    }
}
