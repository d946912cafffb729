//! Who asks and what they may do. On a cluster both are the Kubernetes API's to say; on one machine a session or a token for machines
//! says it too, by what it was made with.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::credential::{Grant, Scope, csrf};
use crate::{Refusal, Service};

/// The header in which a page repeats the word that `/api/v1/session` told it.
pub(crate) const CSRF_HEADER: &str = "x-terrane-csrf";

/// How the service learns who asks and what they may.
#[derive(Debug, Clone)]
pub enum Reviews {
    /// By TokenReviews and SubjectAccessReviews, which are rights over the whole cluster.
    Cluster,
    /// Of these namespaces alone, with no right over the cluster: the API is asked with the caller's own token who that is, and by a
    /// LocalSubjectAccessReview what they may.
    Namespaces(BTreeSet<String>),
}

/// Whoever a token proves to the Kubernetes API itself, or a credential of this machine; a runner's token, made for the datastore, proves
/// nobody here.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) proof: Proof,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// By what a person is known.
#[derive(Debug, Clone)]
pub(crate) enum Proof {
    /// A token that the Kubernetes API knows.
    Bearer(SecretString),
    /// A token of this machine.
    Token(Grant),
    /// A session of this machine, by what its cookie holds.
    Session { grant: Grant, cookie: SecretString },
}

/// One right, as roles spell it. Without a name it is about all of a kind; without a namespace about all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right<'a> {
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Right<'_> {
    /// The scope of a token that covers it.
    fn scope(&self) -> Scope {
        match (self.verb, self.resource, self.subresource) {
            (_, _, Some(api::service::subresource::STATE)) => Scope::State,
            ("get" | "list" | "watch", _, _) => Scope::Read,
            ("create", "terraformapprovals", _) => Scope::Approve,
            _ => Scope::Write,
        }
    }
}

impl Grant {
    /// A right over all namespaces is covered by no list of them.
    pub(crate) fn covers(&self, right: &Right<'_>) -> bool {
        let in_place = self.namespaces.is_empty() || self.namespaces.contains(right.namespace);
        in_place && self.scopes.contains(&right.scope())
    }
}

impl Service {
    /// Settles who asks; the first thing that happens to every request, before any of it is read.
    pub(crate) async fn person(&self, parts: &Parts) -> Result<Person, Refusal> {
        let headers = &parts.headers;
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim)
            .filter(|token| !token.is_empty());
        match (bearer, &self.local) {
            (Some(token), local) => {
                if let Some(local) = local
                    && let Some(kept) = local.credentials.token(token, Timestamp::now()).await?
                {
                    return Ok(of_this_machine(Proof::Token(kept.grant)));
                }
                self.bearer(token).await
            }
            (None, Some(local)) if let Some(cookie) = cookie(headers, &local.cookie) => {
                let kept = local.credentials.session(cookie, Timestamp::now()).await?;
                let grant = kept.ok_or_else(ended)?.grant;
                check_origin(parts, cookie)?;
                Ok(of_this_machine(Proof::Session { grant, cookie: SecretString::from(cookie) }))
            }
            (None, Some(_)) => Err(Refusal::Unauthenticated(
                "the request has no credentials; send a token of `terrane token create` or of your kubeconfig as `Authorization: Bearer TOKEN`, or log in by the link that `terrane login` prints".to_owned(),
            )),
            (None, None) => Err(Refusal::Unauthenticated(
                "the request has no bearer token; send the one that your kubeconfig holds".to_owned(),
            )),
        }
    }

    async fn bearer(&self, token: &str) -> Result<Person, Refusal> {
        let user = match &self.reviews {
            Reviews::Cluster => self.reviewed(token).await?,
            Reviews::Namespaces(_) => introduced(&self.bare, token).await?,
        };
        match user.username.filter(|name| !name.is_empty()) {
            Some(name) => Ok(Person {
                name,
                proof: Proof::Bearer(SecretString::from(token)),
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }),
            None => Err(unknown()),
        }
    }

    async fn reviewed(&self, token: &str) -> Result<UserInfo, Refusal> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            ..TokenReview::default()
        };
        let answer = Api::<TokenReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Refusal::api("check a token", &error))?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated == Some(true) { Ok(status.user.unwrap_or_default()) } else { Err(unknown()) }
    }

    pub(crate) async fn check(&self, person: &Person, right: Right<'_>) -> Result<(), Refusal> {
        if let Reviews::Namespaces(names) = &self.reviews
            && !names.contains(right.namespace)
        {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(Refusal::Forbidden(format!(
                "this Terrane does not look after namespace {}, only after {}",
                right.namespace,
                names.join(", ")
            )));
        }
        if self.allows(person, right).await? {
            return Ok(());
        }
        tracing::warn!(user = person.name, ?right, "refused");
        Err(Refusal::Forbidden(match &person.proof {
            Proof::Bearer(_) => refused(&person.name, right),
            Proof::Token(_) | Proof::Session { .. } => format!(
                "{} is not made for {} in namespace {}; `terrane token create` makes one with --scope and --namespaces",
                person.name,
                right.scope(),
                right.namespace
            ),
        }))
    }

    /// Whether somebody has a right; over all namespaces, where the right names none.
    pub(crate) async fn allows(&self, person: &Person, right: Right<'_>) -> Result<bool, Refusal> {
        match &person.proof {
            Proof::Token(grant) | Proof::Session { grant, .. } => return Ok(grant.covers(&right)),
            Proof::Bearer(_) => {}
        }
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let spec = SubjectAccessReviewSpec {
            user: Some(person.name.clone()),
            uid: person.uid.clone(),
            groups: Some(person.groups.clone()),
            extra: Some(person.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(if right.resource == "events" { "" } else { api::GROUP }.to_owned()),
                version: Some(if right.resource == "events" { "v1" } else { api::VERSION }.to_owned()),
                verb: Some(right.verb.to_owned()),
                resource: Some(right.resource.to_owned()),
                subresource: right.subresource.map(str::to_owned),
                namespace: given(right.namespace),
                name: given(right.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        match &self.reviews {
            Reviews::Cluster => self.allowed(spec).await,
            Reviews::Namespaces(names) if names.contains(right.namespace) => {
                self.allowed_within(right.namespace, spec).await
            }
            Reviews::Namespaces(_) => Ok(false),
        }
    }

    async fn allowed(&self, spec: SubjectAccessReviewSpec) -> Result<bool, Refusal> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Refusal::api("check a right", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    async fn allowed_within(&self, namespace: &str, spec: SubjectAccessReviewSpec) -> Result<bool, Refusal> {
        let metadata = ObjectMeta { namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
        let review = LocalSubjectAccessReview { metadata, spec, status: None };
        let answer = Api::<LocalSubjectAccessReview>::namespaced(self.client.clone(), namespace)
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Refusal::api("check a right", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// A client that acts as the person, so that the API itself decides and records who did what: the service has no right to write
    /// for others.
    pub(crate) fn acting(&self, person: &Person) -> Result<kube::Client, Refusal> {
        match (&person.proof, &self.local) {
            (Proof::Bearer(token), _) => {
                let mut value =
                    axum::http::HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))
                        .map_err(|_| unknown())?;
                value.set_sensitive(true);
                let bare = self.bare.clone();
                let with_token =
                    tower::service_fn(move |mut request: axum::http::Request<kube::client::Body>| {
                        request.headers_mut().insert(header::AUTHORIZATION, value.clone());
                        let bare = bare.clone();
                        async move { bare.send(request).await }
                    });
                Ok(kube::Client::new(with_token, "default"))
            }
            (Proof::Token(_) | Proof::Session { .. }, Some(local)) => Ok((local.acting)(&person.name)),
            (Proof::Token(_) | Proof::Session { .. }, None) => Err(unknown()),
        }
    }
}

fn of_this_machine(proof: Proof) -> Person {
    let name = match &proof {
        Proof::Token(grant) | Proof::Session { grant, .. } => grant.user.clone(),
        Proof::Bearer(_) => String::new(),
    };
    Person { name, proof, uid: None, groups: Vec::new(), extra: BTreeMap::new() }
}

/// The value of one cookie. One that is sent twice is nobody's: a neighbour on this host may have set the other.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut found = all.flat_map(|value| value.split(';')).filter_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// A browser sends the cookie whoever wrote the page. What changes something must come from this service's own page: its origin is ours,
/// and it knows the word that only such a page could read.
fn check_origin(parts: &Parts, cookie: &str) -> Result<(), Refusal> {
    if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("host").unwrap_or_default();
    let is_ours = match (text("origin"), text("sec-fetch-site")) {
        (Some(origin), None | Some("same-origin")) => {
            let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            !host.is_empty() && origin == Some(host)
        }
        (Some(_), Some(_)) | (None, _) => false,
    };
    if !is_ours {
        return Err(Refusal::Forbidden(
            "a session changes something only from this service's own page: the request's Origin is another, or missing; programs send a token instead (`terrane token create`)".to_owned(),
        ));
    }
    let given = text(CSRF_HEADER).unwrap_or_default();
    if bool::from(given.as_bytes().ct_eq(csrf(cookie).as_bytes())) {
        return Ok(());
    }
    Err(Refusal::Forbidden(format!(
        "a session changes something only with the header {CSRF_HEADER}, whose value GET /api/v1/session tells"
    )))
}

fn ended() -> Refusal {
    Refusal::Unauthenticated(
        "the session is unknown or has ended; `terrane login` prints a link for a new one".to_owned(),
    )
}

fn unknown() -> Refusal {
    Refusal::Unauthenticated(
        "the token is unknown to the Kubernetes API, or has expired; log in again".to_owned(),
    )
}

/// Who the API takes the bearer of a token for, asked with that token. Everybody who is authenticated may ask that of themselves
/// (`system:basic-user`); a token for another audience than the API's is refused by it.
async fn introduced(bare: &kube::Client, token: &str) -> Result<UserInfo, Refusal> {
    const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = serde_json::to_vec(&SelfSubjectReview::default())
        .map_err(|error| Refusal::Unavailable(format!("could not ask who bears a token: {error}")))?;
    let request = axum::http::Request::post(PATH)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(review)
        // The only part that is not ours is the token.
        .map_err(|_| unknown())?;
    match bare.request::<SelfSubjectReview>(request).await {
        Ok(answer) => Ok(answer.status.and_then(|status| status.user_info).unwrap_or_default()),
        Err(kube::Error::Api(answer)) if answer.code == 401 => Err(unknown()),
        Err(error) => Err(Refusal::api("ask who bears a token", &error)),
    }
}

/// The words name the right that is missing, so that whoever gives rights can copy them.
fn refused(user: &str, right: Right<'_>) -> String {
    let resource = match right.subresource {
        Some(subresource) => format!("{}/{subresource}", right.resource),
        None => right.resource.to_owned(),
    };
    let Right { verb, namespace, name, .. } = right;
    format!(
        "{user} may not {verb} {resource} of {name} in namespace {namespace}; ask for a role with verb {verb} on {resource} in apiGroup {}",
        api::GROUP
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_right_that_is_missing() {
        let right = Right {
            verb: "get",
            resource: "terraformruns",
            subresource: Some("log"),
            namespace: "prod",
            name: "db-plan-1",
        };
        assert_eq!(
            refused("anna", right),
            "anna may not get terraformruns/log of db-plan-1 in namespace prod; ask for a role with verb get on terraformruns/log in apiGroup terrane.dev"
        );
    }

    #[test]
    fn a_scope_covers_its_verbs_in_its_namespaces_and_nothing_else() {
        let right = |verb, resource, subresource, namespace| Right {
            verb,
            resource,
            subresource,
            namespace,
            name: "x",
        };
        let grant = |scope, namespaces: &[&str]| Grant {
            user: "u".to_owned(),
            scopes: [scope].into(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            expires: Timestamp::MAX,
        };
        let (layers, runs, approvals) = ("terraformlayers", "terraformruns", "terraformapprovals");
        for (verb, resource, subresource, scope) in [
            ("get", layers, None, Scope::Read),
            ("list", runs, None, Scope::Read),
            ("list", "events", None, Scope::Read),
            ("get", runs, Some("log"), Scope::Read),
            ("get", layers, Some("outputs"), Scope::Read),
            ("get", layers, Some("state"), Scope::State),
            ("update", layers, Some("state"), Scope::State),
            ("patch", layers, None, Scope::Write),
            ("create", layers, None, Scope::Write),
            ("delete", layers, None, Scope::Write),
            ("patch", runs, None, Scope::Write),
            ("create", approvals, None, Scope::Approve),
            ("delete", approvals, None, Scope::Write),
        ] {
            let asked = right(verb, resource, subresource, "team");
            for other in Scope::ALL {
                let expected = other == scope;
                assert_eq!(grant(other, &[]).covers(&asked), expected, "{other} {asked:?}");
                assert_eq!(grant(other, &["team"]).covers(&asked), expected, "{other} {asked:?}");
                assert!(!grant(other, &["elsewhere"]).covers(&asked), "{other} {asked:?}");
            }
            let everywhere = right(verb, resource, subresource, "");
            assert!(!grant(scope, &["team"]).covers(&everywhere), "{everywhere:?}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others_and_never_guessed() {
        let found = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, line.parse().unwrap());
            }
            cookie(&headers, "terrane").map(str::to_owned)
        };
        assert_eq!(found(&["a=b; terrane=x.y; c=d"]).as_deref(), Some("x.y"));
        assert_eq!(found(&["a=b", "terrane=x.y"]).as_deref(), Some("x.y"));
        for wrong in [&["terrane2=x"][..], &["xterrane=x"], &["terrane"], &[], &["terrane=a; terrane=b"]] {
            assert_eq!(found(wrong), None, "{wrong:?}");
        }
    }
}
