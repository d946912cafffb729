//! Logging in on one machine: a link that works once opens a session, which a cookie proves. Who guesses is slowed down, and a restart
//! does not forget that.

use std::sync::Arc;

use api::SYSTEM_NAMESPACE;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::answers::Asked;
use crate::credential::{self, Credentials, Kind};
use crate::may::Caller;
use crate::person::Proof;
use crate::{Refusal, Service};

/// How long a session lasts.
pub const SESSION: SignedDuration = SignedDuration::from_hours(12);
/// How long a login link waits to be used.
pub const LINK: SignedDuration = SignedDuration::from_hours(1);

/// How many wrong words are heard in a while, and how long that is.
const TRIES: u32 = 10;
const WHILE: SignedDuration = SignedDuration::from_mins(1);
const ATTEMPTS: &str = "terrane-login-attempts";

/// Sessions and tokens of one machine.
#[derive(Clone)]
pub struct Local {
    pub credentials: Credentials,
    /// May read and write ConfigMaps of the system namespace.
    pub client: Client,
    /// The cookie's name. Cookies know no ports, so that two services of one host need two names.
    pub cookie: String,
    /// A client that acts as a user who may do everything: what a credential of this machine allows was checked before.
    pub acting: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

impl From<credential::Error> for Refusal {
    fn from(error: credential::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Link {
    /// The word of the link that `terrane up` and `terrane login` print.
    once: Option<String>,
}

/// Open a session by a login link, which works once
#[utoipa::path(
    get, operation_id = "login", tag = "session",
    path = "/login",
    params(Link),
    security(()),
    responses((status = 303, description = "The session is open; its cookie is set")),
)]
pub(crate) async fn login(
    State(service): State<Arc<Service>>,
    Asked(link): Asked<Link>,
) -> Result<Response, Refusal> {
    let Some(local) = &service.local else {
        return Err(Refusal::NotFound(
            "there are no sessions here; send the token of your kubeconfig as `Authorization: Bearer TOKEN`"
                .to_owned(),
        ));
    };
    let Some(word) = link.once else {
        return Err(Refusal::BadRequest("`terrane login` prints a link that logs you in once".to_owned()));
    };
    let now = Timestamp::now();
    let attempts = Attempts::read(&local.client).await?;
    if let Some(seconds) = attempts.wait(now) {
        let message = format!("too many logins failed; try again in {seconds} seconds");
        return Err(Refusal::TooOften { message, seconds });
    }
    let Some(mut grant) = local.credentials.use_login(&word, now).await? else {
        attempts.failed(&local.client, now).await?;
        return Err(Refusal::Unauthenticated(
            "this link is not the newest, was used, or has expired; `terrane login` prints another"
                .to_owned(),
        ));
    };
    grant.expires = now.checked_add(SESSION).unwrap_or(now);
    let cookie = local.credentials.make_session(&grant, now).await?;
    let cookie = format!(
        "{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
        local.cookie,
        cookie.expose_secret(),
        SESSION.as_secs()
    );
    let mut cookie = HeaderValue::from_str(&cookie)
        .map_err(|_| Refusal::Unavailable("the cookie cannot be written".to_owned()))?;
    cookie.set_sensitive(true);
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Who the caller is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Session {
    user: String,
    /// `session`, `token`, or `kubernetes` for a token that the Kubernetes API knows.
    by: &'static str,
    /// What the credential is made for; absent where roles of the Kubernetes API say it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<&'static str>,
    /// Where it counts; absent for everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Of a session: what the header `x-terrane-csrf` of requests that change something must hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    csrf: Option<String>,
}

/// Who the caller is, and what its credential is made for
#[utoipa::path(
    get, operation_id = "getSession", tag = "session",
    path = "/api/v1/session",
    responses((status = 200, body = Session)),
)]
pub(crate) async fn session(Caller(person): Caller) -> Json<Session> {
    let (by, grant, csrf) = match person.proof {
        Proof::Bearer(_) => ("kubernetes", None, None),
        Proof::Token(grant) => ("token", Some(grant), None),
        Proof::Session { grant, cookie } => {
            ("session", Some(grant), Some(credential::csrf(cookie.expose_secret())))
        }
    };
    Json(Session {
        user: person.name,
        by,
        scopes: grant.iter().flat_map(|grant| &grant.scopes).map(|scope| scope.as_str()).collect(),
        namespaces: grant.iter().flat_map(|grant| &grant.namespaces).cloned().collect(),
        expires_at: grant.map(|grant| grant.expires.to_string()),
        csrf,
    })
}

/// End the session
#[utoipa::path(
    delete, operation_id = "endSession", tag = "session",
    path = "/api/v1/session",
    responses((status = 204, description = "The session has ended")),
)]
pub(crate) async fn logout(
    State(service): State<Arc<Service>>,
    Caller(person): Caller,
) -> Result<Response, Refusal> {
    let (Proof::Session { cookie, .. }, Some(local)) = (&person.proof, &service.local) else {
        return Err(Refusal::Conflict(
            "there is no session to end: the request came with a token; `terrane token revoke` ends one"
                .to_owned(),
        ));
    };
    let id = cookie.expose_secret().split('.').next().unwrap_or_default();
    local.credentials.end(Kind::Session, id).await?;
    let gone = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", local.cookie);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, gone)]).into_response())
}

/// Failed logins of the last while, kept in the API.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    since: Option<Timestamp>,
    kept: Option<ConfigMap>,
}

impl Attempts {
    async fn read(client: &Client) -> Result<Self, Refusal> {
        let kept = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE)
            .get_opt(ATTEMPTS)
            .await
            .map_err(|error| Refusal::api("look for failed logins", &error))?;
        let text = |key: &str| kept.as_ref()?.data.as_ref()?.get(key);
        Ok(Self {
            failed: text("failed").and_then(|text| text.parse().ok()).unwrap_or(0),
            since: text("since").and_then(|text| text.parse().ok()),
            kept,
        })
    }

    /// For how many seconds nobody is heard.
    fn wait(&self, now: Timestamp) -> Option<u64> {
        let end = self.since?.checked_add(WHILE).ok()?;
        let left = end.duration_since(now).as_secs();
        (self.failed >= TRIES && left > 0).then(|| left.unsigned_abs())
    }

    /// Counts one more. Of several at once that read the same count, one is written and the others are refused.
    async fn failed(self, client: &Client, now: Timestamp) -> Result<(), Refusal> {
        let since = self.since.filter(|since| now.duration_since(*since) < WHILE);
        let failed = if since.is_some() { self.failed.saturating_add(1) } else { 1 };
        let data = [
            ("failed".to_owned(), failed.to_string()),
            ("since".to_owned(), since.unwrap_or(now).to_string()),
        ];
        let maps = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let meta = ObjectMeta { name: Some(ATTEMPTS.to_owned()), ..ObjectMeta::default() };
        let next = ConfigMap {
            metadata: self.kept.as_ref().map_or(meta, |kept| kept.metadata.clone()),
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        let written = match self.kept {
            Some(_) => maps.replace(ATTEMPTS, &PostParams::default(), &next).await,
            None => maps.create(&PostParams::default(), &next).await,
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.code == 409 => Err(Refusal::TooOften {
                message: "several logins failed at once; try again in a second".to_owned(),
                seconds: 1,
            }),
            Err(error) => Err(Refusal::api("count a failed login", &error)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_failed_too_often_waits_for_the_rest_of_the_while() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let attempts = |failed, since| Attempts { failed, since: Some(at(since)), kept: None };
        assert_eq!(attempts(TRIES - 1, 100).wait(at(101)), None);
        assert_eq!(attempts(TRIES, 100).wait(at(101)), Some(59));
        assert_eq!(attempts(TRIES, 100).wait(at(160)), None);
        assert_eq!(Attempts::default().wait(at(0)), None);
    }
}
