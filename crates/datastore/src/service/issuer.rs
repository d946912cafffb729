//! Tokens of service accounts, checked by the keys that their issuer publishes: for a datastore that may not ask for TokenReviews, which
//! are the whole cluster's. Only what the token itself says is settled here; whether its pod is still there is asked elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::identity::{Error, Proved};

/// Where an API server tells who signs its tokens, and by which keys.
const DISCOVERY: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";
/// How long keys are believed: one that was taken back works at most this much longer.
const KEYS_FOR: Duration = Duration::from_secs(300);
/// How soon keys are asked for again because of a token that names an unknown one: anybody can send such tokens.
const KEYS_AGAIN: Duration = Duration::from_secs(10);
/// Clocks may differ by this much.
const LEEWAY_SECONDS: i64 = 60;
/// What issuers of a cluster sign with; never a secret that both sides would know.
const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::ES256, Algorithm::ES384];

/// Where the issuer's name and keys come from.
#[derive(Clone)]
pub enum KeySource {
    /// The API server's own pages, which service accounts may read on most clusters
    /// (`system:service-account-issuer-discovery`).
    Api(kube::Client),
    /// A file with a JSON Web Key Set, read again as keys grow old.
    File { issuer: String, keys: PathBuf },
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Api(_) => f.write_str("Api"),
            Self::File { issuer, keys } => {
                f.debug_struct("File").field("issuer", issuer).field("keys", keys).finish()
            }
        }
    }
}

/// Who signs, and by which keys; asked for when needed.
#[derive(Debug)]
pub(super) struct Issuer {
    source: KeySource,
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    published: Arc<Published>,
    since: Instant,
}

#[derive(Debug)]
struct Published {
    issuer: String,
    keys: JwkSet,
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audiences,
    exp: i64,
    nbf: Option<i64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Bound>,
}

/// One audience may be written without a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Bound {
    namespace: String,
    pod: Option<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    uid: String,
}

impl Issuer {
    pub(super) fn new(source: KeySource) -> Self {
        Self { source, known: Mutex::default() }
    }

    /// Whom the token proves to the datastore at `now`, if its issuer signed it.
    pub(super) async fn prove(&self, token: &str, now: Timestamp) -> Result<Proved, Error> {
        let header = jsonwebtoken::decode_header(token)
            .map_err(|_| Error::Unauthenticated("it is no signed token".to_owned()))?;
        let key = header
            .kid
            .ok_or_else(|| Error::Unauthenticated("it does not say which key signed it".to_owned()))?;
        let published = self.published(&key).await?;
        check(&published, &key, header.alg, token, now)
    }

    /// The keys, asked for again when they are old or lack this one.
    async fn published(&self, key: &str) -> Result<Arc<Published>, Error> {
        // Held while asking, so that a crowd of callers asks once.
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref() {
            let age = known.since.elapsed();
            let is_there = known.published.keys.find(key).is_some();
            if (is_there && age < KEYS_FOR) || (!is_there && age < KEYS_AGAIN) {
                return Ok(Arc::clone(&known.published));
            }
        }
        let published = Arc::new(self.source.fetch().await?);
        *known = Some(Known { published: Arc::clone(&published), since: Instant::now() });
        Ok(published)
    }

    /// Whether name and keys of the issuer are there, or can be had.
    pub(super) async fn ready(&self) -> Result<(), Error> {
        let mut known = self.known.lock().await;
        if known.as_ref().is_none_or(|known| known.since.elapsed() >= KEYS_FOR) {
            let published = Arc::new(self.source.fetch().await?);
            *known = Some(Known { published, since: Instant::now() });
        }
        Ok(())
    }
}

impl KeySource {
    async fn fetch(&self) -> Result<Published, Error> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
        }
        let unusable = |place: &str, error: &dyn std::fmt::Display| {
            Error::Unavailable(format!("the keys of the tokens' issuer ({place}) cannot be used: {error}"))
        };
        match self {
            Self::Api(client) => {
                let discovery: Discovery = page(client, DISCOVERY).await?;
                let keys = page(client, KEYS).await?;
                Ok(Published { issuer: discovery.issuer, keys })
            }
            Self::File { issuer, keys } => {
                let place = keys.display().to_string();
                let text = tokio::fs::read_to_string(keys).await.map_err(|error| unusable(&place, &error))?;
                let keys = serde_json::from_str(&text).map_err(|error| unusable(&place, &error))?;
                Ok(Published { issuer: issuer.clone(), keys })
            }
        }
    }
}

async fn page<T: serde::de::DeserializeOwned>(client: &kube::Client, path: &str) -> Result<T, Error> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| Error::Unavailable(format!("{path}: {error}")))?;
    client.request(request).await.map_err(|error| {
        Error::Unavailable(format!(
            "{path} of the API server, which tells the keys of its tokens, cannot be read: {error}; bind the ClusterRole system:service-account-issuer-discovery, or give --issuer and --issuer-keys"
        ))
    })
}

/// What the token proves, by these keys and at this time.
fn check(
    published: &Published,
    key: &str,
    algorithm: Algorithm,
    token: &str,
    now: Timestamp,
) -> Result<Proved, Error> {
    let refused = |why: &str| Error::Unauthenticated(why.to_owned());
    let found = published.keys.find(key).ok_or_else(|| refused("its issuer has no such key (any more)"))?;
    let is_public = match &found.algorithm {
        AlgorithmParameters::RSA(_) | AlgorithmParameters::EllipticCurve(_) => true,
        // Whoever can read a shared secret could sign with it.
        _ => false,
    };
    if !is_public || !ALGORITHMS.contains(&algorithm) {
        return Err(refused("it is signed in a way that issuers of a cluster do not use"));
    }
    let decoding = DecodingKey::from_jwk(found).map_err(|_| refused("its issuer's key cannot be used"))?;
    let mut validation = Validation::new(algorithm);
    validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
    // All of these are compared below, with words for whoever holds the token, and at the time that the caller gives.
    validation.validate_aud = false;
    validation.validate_exp = false;
    validation.validate_nbf = false;
    let claims: Claims = jsonwebtoken::decode(token, &decoding, &validation)
        .map_err(|_| refused("its signature or its content is wrong"))?
        .claims;
    if claims.iss != published.issuer {
        return Err(refused("another issuer than this cluster's made it"));
    }
    let is_ours = match &claims.aud {
        Audiences::One(audience) => audience == api::DATASTORE_AUDIENCE,
        Audiences::Several(audiences) => audiences.iter().any(|audience| audience == api::DATASTORE_AUDIENCE),
    };
    if !is_ours {
        return Err(refused("it was made for another audience"));
    }
    let seconds = now.as_second();
    if claims.exp.saturating_add(LEEWAY_SECONDS) < seconds {
        return Err(refused("it has expired"));
    }
    if claims.nbf.is_some_and(|from| from > seconds.saturating_add(LEEWAY_SECONDS)) {
        return Err(refused("it is not valid yet"));
    }
    // No TokenReview tells whether an unbound token was taken back: only a pod that is gone does.
    let pod = claims.kubernetes.and_then(|bound| Some((bound.namespace, bound.pod?)));
    let Some((namespace, pod)) = pod else {
        return Err(Error::Stranger(format!("{}, whose token is not bound to a pod,", claims.sub)));
    };
    let account = claims
        .sub
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'))
        .filter(|(of, _)| *of == namespace)
        .map(|(_, account)| account.to_owned());
    let Some(account) = account else { return Err(Error::Stranger(claims.sub)) };
    Ok(Proved { namespace, account, pod: pod.name, pod_uid: pod.uid })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jsonwebtoken::jwk::Jwk;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn key() -> EncodingKey {
        let pair = rcgen::KeyPair::generate().unwrap();
        EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap()
    }

    fn published(key: &EncodingKey) -> Published {
        let mut published = Jwk::from_encoding_key(key, Algorithm::ES256).unwrap();
        published.common.key_id = Some("one".to_owned());
        Published { issuer: "https://issuer".to_owned(), keys: JwkSet { keys: vec![published] } }
    }

    fn claims() -> Value {
        json!({
            "iss": "https://issuer", "sub": "system:serviceaccount:team:runner", "aud": ["terrane-datastore"],
            "exp": NOW + 600, "nbf": NOW, "iat": NOW,
            "kubernetes.io": { "namespace": "team", "pod": { "name": "p", "uid": "u" }, "serviceaccount": { "name": "runner", "uid": "s" } },
        })
    }

    fn checked(published: &Published, signing: &EncodingKey, claims: &Value) -> Result<Proved, Error> {
        let token = jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, signing).unwrap();
        check(published, "one", Algorithm::ES256, &token, Timestamp::from_second(NOW).unwrap())
    }

    #[test]
    fn a_token_of_the_issuer_proves_its_pod() {
        let signing = key();
        let published = published(&signing);
        let proved = checked(&published, &signing, &claims()).unwrap();
        assert_eq!(
            (&*proved.namespace, &*proved.account, &*proved.pod, &*proved.pod_uid),
            ("team", "runner", "p", "u")
        );
        let mut alone = claims();
        alone["aud"] = json!("terrane-datastore");
        assert!(checked(&published, &signing, &alone).is_ok(), "one audience, without a list");
        let mut late = claims();
        late["exp"] = json!(NOW - 59);
        assert!(checked(&published, &signing, &late).is_ok(), "clocks differ by less than a minute");
    }

    #[test]
    fn what_is_wrong_with_a_token_is_said_and_it_proves_nothing() {
        let signing = key();
        let published = published(&signing);
        for (field, value, words) in [
            ("iss", json!("https://other"), "another issuer"),
            ("aud", json!(["https://kubernetes.default.svc"]), "another audience"),
            ("exp", json!(NOW - 61), "has expired"),
            ("nbf", json!(NOW + 61), "not valid yet"),
            ("kubernetes.io", json!({ "namespace": "team" }), "not bound to a pod"),
            ("kubernetes.io", json!(null), "not bound to a pod"),
            ("sub", json!("system:serviceaccount:other:runner"), "no business"),
            ("sub", json!("jane"), "no business"),
        ] {
            let mut wrong = claims();
            wrong[field] = value;
            let error = checked(&published, &signing, &wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{field}: {error}");
        }
        let error = checked(&published, &key(), &claims()).unwrap_err().to_string();
        assert!(error.contains("signature"), "signed by another key: {error}");
    }

    #[test]
    fn a_published_key_is_no_shared_secret() {
        let signing = key();
        let published = published(&signing);
        // The classic mistake: the public key, which everybody knows, taken for a secret of both sides.
        let public = serde_json::to_string(&published.keys).unwrap();
        let secret = EncodingKey::from_secret(public.as_bytes());
        let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
        let now = Timestamp::from_second(NOW).unwrap();
        let error = check(&published, "one", Algorithm::HS256, &token, now).unwrap_err();
        assert!(error.to_string().contains("do not use"), "{error}");
        let error = check(&published, "two", Algorithm::ES256, &token, now).unwrap_err();
        assert!(error.to_string().contains("no such key"), "{error}");
    }
}
