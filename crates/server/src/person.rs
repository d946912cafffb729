//! Who asks and what they may do: both are the Kubernetes API's to say.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;

use crate::{Refusal, Service};

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
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            ..TokenReview::default()
        };
        let answer = Api::<TokenReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Refusal::api("check a token", &error))?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        match user.username.filter(|name| status.authenticated == Some(true) && !name.is_empty()) {
            Some(name) => Ok(Person {
                name,
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }),
            None => Err(Refusal::Unauthenticated(
                "the token is unknown to the Kubernetes API, or has expired; log in again".to_owned(),
            )),
        }
    }

    pub(crate) async fn check(&self, person: &Person, right: Right<'_>) -> Result<(), Refusal> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
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
            },
            ..SubjectAccessReview::default()
        };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Refusal::api("check a right", &error))?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        tracing::warn!(user = person.name, ?right, "refused");
        Err(Refusal::Forbidden(refused(&person.name, right)))
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
