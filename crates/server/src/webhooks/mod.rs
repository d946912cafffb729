//! `/webhooks`: what Git hosts say when somebody has pushed. Whoever sends it is nobody to Kubernetes and proves only that it knows the
//! secret of one repository, over the raw bytes, before anything of them is read.
//!
//! The path names the repository, so that one secret is tried and not those of all; where few repositories have one, a path without a name
//! is enough. What comes of a delivery is a wish in the status of that
//! repository, `look now`, written before the answer; the controllers ask the remote and believe that alone. The service does this with
//! rights of its own, the only ones it has to write anything: see `docs/adr`.

mod deliveries;
mod limits;
mod secrets;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::TerraformRepository;
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::webhook::{Delivery, Noted, note};
use forge::Host;
use forge::address::Address;
use forge::event::{Encoding, Push, Said};
use forge::proof::Proof;
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::cache::Key;
use crate::may::named;
use crate::text::Text;
use crate::{Refusal, Service};

pub use deliveries::Deliveries;
pub(crate) use limits::Limits;
pub(crate) use secrets::Keys;

use deliveries::Outcome;

/// The largest body. GitHub sends up to 25 MB, for a push of thousands of commits: that one is refused, and found by the next poll.
const LARGEST: usize = 5 * 1024 * 1024;
/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a write is tried again that somebody else was faster than.
const TRIES: u32 = 10;

/// The most repositories with a secret, and namespaces with repositories, among which the one is looked for that a delivery is meant for:
/// every secret is tried on the whole body.
const TRIED: usize = 100;

/// What a delivery is for, as its path says.
#[derive(Debug)]
pub(crate) struct Aimed {
    host: Host,
    /// Of a path that names no repository: whichever has the secret that it was made with.
    key: Option<Key>,
}

impl Aimed {
    async fn read(parts: &mut Parts, service: &Arc<Service>) -> Result<Host, Refusal> {
        let host = named(parts, service, "host").await?;
        host.parse().map_err(|error: forge::Unknown| Refusal::NotFound(error.to_string()))
    }
}

impl FromRequestParts<Arc<Service>> for Aimed {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        let host = Self::read(parts, service).await?;
        let namespace = named(parts, service, "namespace").await?;
        let key = (namespace.into(), named(parts, service, "name").await?.into());
        Ok(Self { host, key: Some(key) })
    }
}

/// Aimed at no repository by its name.
#[derive(Debug)]
pub(crate) struct Unaimed(Aimed);

impl FromRequestParts<Arc<Service>> for Unaimed {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        Ok(Self(Aimed { host: Aimed::read(parts, service).await?, key: None }))
    }
}

/// What became of a delivery that was believed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Received {
    /// `recorded`, `covered`, `known` or `ignored`.
    outcome: &'static str,
    /// Why.
    message: String,
}

/// Take a delivery of a Git host's webhook
///
/// It proves itself as its host does: GitHub, Gitea, Forgejo and Bitbucket sign the body with HMAC-SHA256, GitLab sends its token or signs by it, Azure
/// DevOps logs in with basic authentication. A push of a branch or tag has the repository looked at now; everything else is
/// answered and ignored.
#[utoipa::path(
    post, operation_id = "takeDelivery", tag = "webhooks",
    path = "/webhooks/{host}/{namespace}/{name}",
    params(
        ("host" = String, Path, description = "`github`, `gitlab`, `gitea`, `bitbucket` or `azuredevops`"),
        ("namespace" = String, Path),
        ("name" = String, Path, description = "The TerraformRepository"),
    ),
    request_body(content = String, content_type = "application/json", description = "What the host sends; GitHub and Gitea also as a form"),
    responses(
        (status = 200, body = Received, description = "Nothing had to be written down"),
        (status = 202, body = Received, description = "Written down; the repository will be looked at"),
    ),
    security(()),
)]
pub(crate) async fn take(
    aimed: Aimed,
    State(service): State<Arc<Service>>,
    request: Request,
) -> Result<Response, Refusal> {
    service.answer(aimed, request).await
}

/// Take a delivery of a Git host's webhook, for whichever repository has the secret that it was made with
///
/// As the path with namespace and name, which is the better one: here the secrets of all repositories are tried, so there may be a hundred
/// of them at most, and a stranger who fails too often keeps this path from being heard for a minute.
#[utoipa::path(
    post, operation_id = "takeAnyDelivery", tag = "webhooks",
    path = "/webhooks/{host}",
    params(("host" = String, Path, description = "`github`, `gitlab`, `gitea`, `bitbucket` or `azuredevops`")),
    request_body(content = String, content_type = "application/json", description = "What the host sends; GitHub and Gitea also as a form"),
    responses(
        (status = 200, body = Received, description = "Nothing had to be written down"),
        (status = 202, body = Received, description = "Written down; the repository will be looked at"),
    ),
    security(()),
)]
pub(crate) async fn take_any(
    Unaimed(aimed): Unaimed,
    State(service): State<Arc<Service>>,
    request: Request,
) -> Result<Response, Refusal> {
    service.answer(aimed, request).await
}

/// The same words whatever is missing: a stranger does not learn which repositories there are.
fn unproved(why: &str) -> Refusal {
    Refusal::Unauthenticated(format!(
        "the delivery was not believed: {why}; docs/webhooks.md says how a repository gets its secret"
    ))
}

const NO_PROOF: &str =
    "there is no such repository with a secret for webhooks, or what was sent was not made with that secret";

/// Why a delivery is not read.
enum Unbelieved {
    /// Who sent it cannot be told.
    Unasked(Refusal),
    /// In words for the log, and in those that whoever sent it is told.
    Failed(&'static str, Refusal),
}

impl Service {
    async fn answer(&self, aimed: Aimed, request: Request) -> Result<Response, Refusal> {
        let host = aimed.host;
        let taken = self.take_delivery(aimed, request).await;
        self.deliveries.count(host, taken.as_ref().map_or_else(Outcome::from, |(outcome, _)| *outcome));
        let (outcome, message) = taken?;
        let status = if outcome == Outcome::Recorded { StatusCode::ACCEPTED } else { StatusCode::OK };
        Ok((status, Json(Received { outcome: outcome.as_str(), message })).into_response())
    }

    async fn take_delivery(&self, aimed: Aimed, request: Request) -> Result<(Outcome, String), Refusal> {
        let Aimed { host, key } = aimed;
        let (Parts { headers, .. }, body) = request.into_parts();
        let proof = Proof::read(host, &headers).map_err(|missing| unproved(&missing.to_string()))?;
        let encoding = encoding(host, &headers)?;
        if declared(&headers).is_some_and(|length| length > LARGEST) {
            return Err(too_large());
        }
        // From memory, so that a stranger costs no request to the API.
        if let Some(key) = &key
            && !self.repositories.contains(key).await?
        {
            return Err(unproved(NO_PROOF));
        }
        // All that name no repository share one count.
        let place = key.clone().unwrap_or_default();
        let turn = self.limits.enter(&place).await?;
        let believed = match &key {
            Some(key) => self.believed(key, &proof, body).await.map(|body| (body, vec![key.clone()])),
            None => self.believed_by_any(&proof, body).await,
        };
        let (body, keys) = match believed {
            Ok(believed) => believed,
            Err(Unbelieved::Unasked(refusal)) => return Err(refusal),
            Err(Unbelieved::Failed(why, refusal)) => {
                turn.failed();
                tracing::warn!(namespace = %place.0, repository = %place.1, %host, why, "a webhook was refused");
                return Err(refusal);
            }
        };
        let said = forge::event::read(host, &headers, encoding, &body);
        match said
            .map_err(|error| Refusal::BadRequest(format!("the delivery is not what {host} sends: {error}")))?
        {
            Said::Other(why) => Ok((Outcome::Ignored, why)),
            Said::Push(push) => {
                let mut most = (Outcome::Ignored, "no repository has this secret".to_owned());
                for key in &keys {
                    let noted = self.note(host, key, &push).await?;
                    if noted.0.rank() >= most.0.rank() {
                        most = noted;
                    }
                }
                Ok(most)
            }
        }
    }

    /// The whole body of a delivery, and the repositories with whose secret it was made. O(repositories), and a digest of the body for each
    /// that has a secret, of which there are [`TRIED`] at most.
    async fn believed_by_any(&self, proof: &Proof, body: Body) -> Result<(Vec<u8>, Vec<Key>), Unbelieved> {
        let repositories = self.repositories.all().await.map_err(Unbelieved::Unasked)?;
        let namespaces: BTreeSet<&Text> = repositories.iter().map(|((namespace, _), _)| namespace).collect();
        let mut known = Vec::new();
        let mut unread = None;
        if namespaces.len() <= TRIED {
            for (key, _) in &repositories {
                match self.keys.of(&self.client, key).await {
                    Ok(Some(secrets)) => known.push((key, secrets)),
                    Ok(None) => {}
                    // One namespace that cannot be read keeps no other from being heard.
                    Err(refusal) => unread = Some(refusal),
                }
            }
        }
        if namespaces.len() > TRIED || known.len() > TRIED {
            return Err(Unbelieved::Unasked(Refusal::NotFound(
                "too many repositories are here for this path; let it end in /NAMESPACE/NAME of the TerraformRepository".to_owned(),
            )));
        }
        let body = received(body).await?;
        let keys: Vec<Key> = known
            .into_iter()
            .filter(|(_, secrets)| proof.holds(secrets, &body))
            .map(|(key, _)| key.clone())
            .collect();
        match (keys.is_empty(), unread) {
            (false, _) => Ok((body, keys)),
            (true, Some(unavailable)) => Err(Unbelieved::Unasked(unavailable)),
            (true, None) => {
                let why = "what was sent was made with no repository's secret";
                Err(Unbelieved::Failed(why, unproved(NO_PROOF)))
            }
        }
    }

    /// The whole body of a delivery that was made with the repository's secret.
    async fn believed(&self, key: &Key, proof: &Proof, body: Body) -> Result<Vec<u8>, Unbelieved> {
        let failed = |why| Unbelieved::Failed(why, unproved(NO_PROOF));
        let secrets = self.keys.of(&self.client, key).await.map_err(Unbelieved::Unasked)?;
        let secrets = secrets
            .ok_or_else(|| failed("Secret terrane-webhooks has no key of its name that can be used"))?;
        let mismatch = || failed("what was sent was not made with the repository's secret");
        if proof.is_in_headers() && !proof.holds(&secrets, &[]) {
            return Err(mismatch());
        }
        let body = received(body).await?;
        if proof.holds(&secrets, &body) { Ok(body) } else { Err(mismatch()) }
    }

    /// Writes down that the repository is to be looked at, where what was pushed is not known already. Only on what was read.
    async fn note(&self, host: Host, key: &Key, push: &Push) -> Result<(Outcome, String), Refusal> {
        let (namespace, name) = key;
        let unavailable = |doing: &str, error: &kube::Error| {
            // The API's own words are for the log: whoever sent this is a stranger to it.
            tracing::warn!(%namespace, repository = %name, %host, %error, "could not {doing} for a webhook");
            Refusal::Unavailable(
                "the Kubernetes API could not be asked to write the delivery down; send it again, or wait for the next poll".to_owned(),
            )
        };
        let repositories = Api::<TerraformRepository>::namespaced(self.client.clone(), namespace);
        let delivery = Delivery { host: host.as_str(), heads: &push.heads };
        for _ in 0..TRIES {
            let found = repositories.get_opt(name).await;
            let repository = found
                .map_err(|error| unavailable("read a repository", &error))?
                .ok_or_else(|| unproved(NO_PROOF))?;
            let url = repository.spec.repository.url.as_str();
            if !Address::read(url).is_some_and(|address| push.is_about(&address)) {
                let message =
                    format!("it is about another repository than {url}, which {namespace}/{name} names");
                return Ok((Outcome::Ignored, message));
            }
            let webhook = match note(&repository, &delivery, Timestamp::now()) {
                Noted::Known => {
                    return Ok((Outcome::Known, "what was pushed has been seen already".to_owned()));
                }
                Noted::Covered => {
                    return Ok((Outcome::Covered, "a look that has not begun yet will see it".to_owned()));
                }
                Noted::Record(webhook) => webhook,
            };
            let wish = json!({
                "metadata": { "resourceVersion": repository.resource_version() },
                "status": { "webhook": webhook },
            });
            match repositories.patch_status(name, &PatchParams::default(), &Patch::Merge(wish)).await {
                Ok(_) => return Ok((Outcome::Recorded, format!("{namespace}/{name} will be looked at now"))),
                // Somebody else wrote first: what stands there now may be enough.
                Err(kube::Error::Api(answer)) if answer.code == 409 => {}
                Err(error) => return Err(unavailable("write to a repository's status", &error)),
            }
        }
        Err(Refusal::Unavailable(format!(
            "{namespace}/{name} changes too fast to write the delivery down; send it again, or wait for the next poll"
        )))
    }
}

fn encoding(host: Host, headers: &HeaderMap) -> Result<Encoding, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes()).unwrap_or_default();
    Encoding::read(host, kind).ok_or_else(|| {
        Refusal::WrongType(format!(
            "deliveries of {host} must be JSON, with the header content-type: application/json"
        ))
    })
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large() -> Refusal {
    Refusal::TooLarge(format!("the body is larger than {LARGEST} bytes; the next poll finds what was pushed"))
}

async fn received(body: Body) -> Result<Vec<u8>, Unbelieved> {
    let slow = |_| Refusal::TooSlow(format!("the body did not arrive within {} seconds", PATIENCE.as_secs()));
    let reading = tokio::time::timeout(PATIENCE, whole(body)).await;
    let body = reading.map_err(slow).and_then(|read| read);
    body.map_err(|refusal| Unbelieved::Failed("its body did not arrive whole", refusal))
}

/// Never more than the limit is held.
async fn whole(body: Body) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Refusal::BadRequest(format!("the body broke off: {error}")))?;
        if bytes.len() + chunk.len() > LARGEST {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
