//! Who asks, by what they show: the administrator's token or a service account's, over the port.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::{HeaderMap, header};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::tokens::{self, Tokens};
use super::{Identity, Refusal};
use crate::store::Store;

/// Paths that answer without a credential, so that whatever starts the API can wait for it. `/version` is not among them: what
/// version runs is told to authenticated users only.
const OPEN_PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// Everything that turns a bearer token into an identity.
pub struct Authenticator {
    /// Only the digest is kept: a dump of this process's heap does not hand out the administrator's token.
    administrator: [u8; 32],
    tokens: Arc<Tokens>,
    store: Store,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

/// A token that holds, whom it proves and which of the wanted audiences it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    pub identity: Identity,
    pub audiences: Vec<String>,
}

impl Authenticator {
    pub fn new(administrator_token: &str, tokens: Arc<Tokens>, store: Store) -> Self {
        Authenticator { administrator: Sha256::digest(administrator_token).into(), tokens, store }
    }

    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Whom `token` proves to somebody of `audiences` (none: to this API).
    pub fn prove(&self, token: &str, audiences: &[String], now: Timestamp) -> Result<Proved, tokens::Error> {
        let own = [tokens::API_AUDIENCE.to_owned()];
        let audiences = if audiences.is_empty() { &own } else { audiences };
        let digest: [u8; 32] = Sha256::digest(token).into();
        if bool::from(digest.ct_eq(&self.administrator)) {
            // Made for this API alone: whoever else is shown it must not take its bearer for the administrator.
            let audiences: Vec<String> =
                audiences.iter().filter(|wanted| own.contains(wanted)).cloned().collect();
            if audiences.is_empty() {
                return Err(tokens::Error::Malformed);
            }
            return Ok(Proved { identity: Identity::administrator(), audiences });
        }
        self.tokens.verify(&self.store.snapshot(), token, audiences, now)
    }

    fn identify(&self, path: &str, headers: &HeaderMap, now: Timestamp) -> Result<Identity, Refusal> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return if OPEN_PATHS.contains(&path) {
                Ok(Identity::anonymous())
            } else {
                Err(Refusal::unauthorized())
            };
        };
        let token = bearer(value.as_bytes()).ok_or_else(Refusal::unauthorized)?;
        match self.prove(token, &[], now) {
            Ok(proved) => Ok(proved.identity),
            Err(error) => {
                tracing::debug!(%error, path, "a bearer token was refused");
                Err(Refusal::unauthorized())
            }
        }
    }
}

fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    let token = token.trim_start();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// For the port: each request must prove who makes it.
pub fn authenticating(router: Router, authenticator: Arc<Authenticator>) -> Router {
    router.layer(from_fn_with_state(authenticator, authenticate))
}

async fn authenticate(
    State(authenticator): State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let identity = authenticator.identify(request.uri().path(), request.headers(), Timestamp::now())?;
    // The token ends here: nothing behind this can log it or pass it on.
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(identity);
    Ok(next.run(request).await)
}
