//! Who asks and what they may do: both are the Kubernetes API's to say.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use kube::core::ObjectMeta;

use crate::{Refusal, Service};

/// How the service learns who asks and what they may.
#[derive(Clone)]
pub enum Reviews {
    /// By TokenReviews and SubjectAccessReviews, which are rights over the whole cluster.
    Cluster,
    /// Of these namespaces alone, with no right over the cluster: the API is asked with the caller's own token who that is, and by a
    /// LocalSubjectAccessReview what they may.
    Namespaces {
        /// Sends no credentials of its own.
        bare: kube::Client,
        names: BTreeSet<String>,
    },
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster => f.write_str("Cluster"),
            Self::Namespaces { names, .. } => f.debug_tuple("Namespaces").field(names).finish(),
        }
    }
}

/// Whoever a token proves to the Kubernetes API itself; a runner's token, made for the datastore, proves nobody here.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// One right, as roles spell it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Service {
    /// Settles who asks and that they may; the first thing every handler does, before it reads anything.
    pub(crate) async fn admit(&self, headers: &HeaderMap, right: Right<'_>) -> Result<Person, Refusal> {
        let person = self.person(headers).await?;
        self.check(&person, right).await?;
        Ok(person)
    }

    async fn person(&self, headers: &HeaderMap) -> Result<Person, Refusal> {
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim)
            .filter(|token| !token.is_empty())
            .ok_or_else(|| {
                Refusal::Unauthenticated(
                    "the request has no bearer token; send the one that your kubeconfig holds".to_owned(),
                )
            })?;
        let user = match &self.reviews {
            Reviews::Cluster => self.reviewed(token).await?,
            Reviews::Namespaces { bare, .. } => introduced(bare, token).await?,
        };
        match user.username.filter(|name| !name.is_empty()) {
            Some(name) => Ok(Person {
                name,
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
        let spec = SubjectAccessReviewSpec {
            user: Some(person.name.clone()),
            uid: person.uid.clone(),
            groups: Some(person.groups.clone()),
            extra: Some(person.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(api::GROUP.to_owned()),
                version: Some(api::VERSION.to_owned()),
                verb: Some(right.verb.to_owned()),
                resource: Some(right.resource.to_owned()),
                subresource: right.subresource.map(str::to_owned),
                namespace: Some(right.namespace.to_owned()),
                name: Some(right.name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let is_allowed = match &self.reviews {
            Reviews::Cluster => self.allowed(spec).await?,
            Reviews::Namespaces { names, .. } if names.contains(right.namespace) => {
                self.allowed_within(right.namespace, spec).await?
            }
            Reviews::Namespaces { names, .. } => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                return Err(Refusal::Forbidden(format!(
                    "this Terrane does not look after namespace {}, only after {}",
                    right.namespace,
                    names.join(", ")
                )));
            }
        };
        if is_allowed {
            return Ok(());
        }
        tracing::warn!(user = person.name, ?right, "refused");
        Err(Refusal::Forbidden(refused(&person.name, right)))
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
}
