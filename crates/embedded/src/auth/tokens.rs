//! Service-account tokens: made by `POST serviceaccounts/NAME/token`, proved on each request.
//!
//! A token is a JWT signed with a key that never leaves the data directory. It may be bound to a Pod, a Secret or a Node, and
//! stops holding when that object goes: the store is asked each time. Time comes in as a parameter.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Refusal;
use super::authentication::Proved;
use super::identity::{BoundTo, Identity, NamedUid, service_account_user};
use super::refusal::{FieldError, quoted_list};
use crate::schema::wording::quoted;
use crate::store::{Collection, Key, Snapshot};

/// Who signs, and for whom a token is that names no audience.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
pub const API_AUDIENCE: &str = ISSUER;

const DEFAULT_SECONDS: i64 = 60 * 60;
const MINIMUM_SECONDS: i64 = 10 * 60;
const MAXIMUM_SECONDS: i64 = 1 << 32;
/// Clocks may differ by this much, and an object that is being deleted still counts for as long.
const LEEWAY: SignedDuration = SignedDuration::from_secs(60);

/// Why a token does not hold. Told in a TokenReview, never to whoever sent the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid bearer token")]
    Malformed,
    #[error("token audiences {} is invalid for the target audiences {}", quoted_list(.token), quoted_list(.wanted))]
    Audience { token: Vec<String>, wanted: Vec<String> },
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("serviceaccounts {} not found", quoted(.0))]
    NoAccount(String),
    #[error("service account {namespace}/{name} has been deleted")]
    AccountDeleted { namespace: String, name: String },
    #[error("service account UID ({live}) does not match claim ({claimed})")]
    AccountReplaced { live: String, claimed: String },
    #[error("{kind} UID ({live}) does not match service account {kind} ref claim ({claimed})")]
    Replaced { kind: &'static str, live: String, claimed: String },
    #[error("service account token has been invalidated")]
    Invalidated,
}

impl Error {
    /// As a TokenReview tells it: whatever else is wrong, the bearer is not known by this token.
    pub fn to_review(&self) -> String {
        match self {
            Error::Malformed => self.to_string(),
            other => format!("[{}, {other}]", Error::Malformed),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the key that signs service-account tokens cannot be used: {0}")]
pub struct KeyError(#[from] jsonwebtoken::errors::Error);

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Private,
    nbf: i64,
    sub: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Private {
    namespace: String,
    serviceaccount: NamedUid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<NamedUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<NamedUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NamedUid>,
}

/// Signs and proves.
pub struct Tokens {
    signing: EncodingKey,
    proving: DecodingKey,
    validation: Validation,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// From a P-256 key pair: PKCS#8 and SubjectPublicKeyInfo, both PEM.
    pub fn new(private_pem: &str, public_pem: &str) -> Result<Self, KeyError> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["aud", "exp", "iss", "nbf", "sub"]);
        // Times and audiences are compared below, against the time and the audiences that the caller gives.
        validation.validate_aud = false;
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Ok(Tokens {
            signing: EncodingKey::from_ec_pem(private_pem.as_bytes())?,
            proving: DecodingKey::from_ec_pem(public_pem.as_bytes())?,
            validation,
        })
    }

    /// Answers `POST /api/v1/namespaces/NAMESPACE/serviceaccounts/NAME/token`.
    pub fn request(
        &self,
        snapshot: &Snapshot,
        namespace: &str,
        name: &str,
        mut request: TokenRequest,
        now: Timestamp,
    ) -> Result<TokenRequest, Refusal> {
        let account = existing(snapshot, "serviceaccounts", namespace, name)?;
        check_metadata(&request, namespace, name, &account.uid)?;
        if request.spec.audiences.is_empty() {
            request.spec.audiences = vec![API_AUDIENCE.to_owned()];
        }
        let seconds = *request.spec.expiration_seconds.get_or_insert(DEFAULT_SECONDS);
        check_expiration(seconds)?;
        let mut private = Private {
            namespace: namespace.to_owned(),
            serviceaccount: NamedUid { name: name.to_owned(), uid: account.uid.clone() },
            pod: None,
            secret: None,
            node: None,
        };
        if let Some(reference) = &request.spec.bound_object_ref {
            bind(snapshot, &mut private, reference)?;
        }
        let expires = now.checked_add(SignedDuration::from_secs(seconds));
        let expires = expires.map_err(|_| Refusal::internal("the expiration is out of range"))?;
        let claims = Claims {
            aud: request.spec.audiences.clone(),
            exp: expires.as_second(),
            iat: now.as_second(),
            iss: ISSUER.to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            kubernetes: private,
            nbf: now.as_second(),
            sub: service_account_user(namespace, name),
        };
        let token = jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.signing)
            .map_err(|error| Refusal::internal(&format!("failed to generate token: {error}")))?;
        request.metadata.name = Some(name.to_owned());
        request.metadata.namespace = Some(namespace.to_owned());
        request.metadata.uid = Some(account.uid);
        request.metadata.creation_timestamp = Some(Time(whole_seconds(now)));
        request.status =
            Some(TokenRequestStatus { expiration_timestamp: Time(whole_seconds(expires)), token });
        Ok(request)
    }

    /// Whom the token proves to one of `audiences`, as of `now` and the objects of `snapshot`.
    pub fn verify(
        &self,
        snapshot: &Snapshot,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<Proved, Error> {
        let claims: Claims = jsonwebtoken::decode(token, &self.proving, &self.validation)
            .map_err(|_| Error::Malformed)?
            .claims;
        let common: Vec<String> =
            audiences.iter().filter(|wanted| claims.aud.contains(wanted)).cloned().collect();
        if common.is_empty() {
            return Err(Error::Audience { token: claims.aud, wanted: audiences.to_vec() });
        }
        let seconds = now.as_second();
        if seconds - LEEWAY.as_secs() > claims.exp {
            return Err(Error::Expired);
        }
        if seconds + LEEWAY.as_secs() < claims.nbf {
            return Err(Error::NotYet);
        }
        let identity = live_identity(snapshot, &claims, now)?;
        Ok(Proved { identity, audiences: common })
    }
}

/// What of a stored object tokens care about.
struct Existing {
    uid: String,
    deleted: Option<Timestamp>,
    value: Value,
}

fn find(snapshot: &Snapshot, plural: &str, namespace: &str, name: &str) -> Option<Existing> {
    let key = Key::new(Collection::new("", plural), namespace, name);
    let value = snapshot.get(&key)?.value();
    let text = |field: &str| value.pointer(field).and_then(Value::as_str);
    Some(Existing {
        uid: text("/metadata/uid").unwrap_or_default().to_owned(),
        deleted: text("/metadata/deletionTimestamp").and_then(|time| time.parse().ok()),
        value,
    })
}

fn existing(snapshot: &Snapshot, plural: &str, namespace: &str, name: &str) -> Result<Existing, Refusal> {
    find(snapshot, plural, namespace, name).ok_or_else(|| Refusal::not_found("", plural, name))
}

fn check_metadata(request: &TokenRequest, namespace: &str, name: &str, uid: &str) -> Result<(), Refusal> {
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let invalid = |field, value: String, why| {
        let errors = [FieldError { field, value: value.into(), why }];
        Err(Refusal::invalid("authentication.k8s.io", "TokenRequest", name, &errors))
    };
    if let Some(other) = given(&request.metadata.name).filter(|other| other != name) {
        return invalid("metadata.name", other, "must match the service account name if specified");
    }
    if let Some(other) = given(&request.metadata.namespace).filter(|other| other != namespace) {
        return invalid("metadata.namespace", other, "must match the service account namespace if specified");
    }
    if let Some(other) = given(&request.metadata.uid).filter(|other| other != uid) {
        let why = format!(
            "the UID in the token request ({other}) does not match the UID of the service account ({uid})"
        );
        return Err(Refusal::conflict("authentication.k8s.io", "TokenRequest", name, &why));
    }
    Ok(())
}

fn check_expiration(seconds: i64) -> Result<(), Refusal> {
    let why = if seconds < MINIMUM_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAXIMUM_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let errors = [FieldError { field: "spec.expirationSeconds", value: seconds.into(), why }];
    Err(Refusal::invalid("authentication.k8s.io", "TokenRequest", "", &errors))
}

/// Puts the object that the token is to live and die with into the claims.
fn bind(snapshot: &Snapshot, claims: &mut Private, reference: &BoundObjectReference) -> Result<(), Refusal> {
    let api_version = reference.api_version.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let namespace = claims.namespace.clone();
    let bound = match (group, kind) {
        ("", "Pod") => {
            let pod = existing(snapshot, "pods", &namespace, name)?;
            let spec = |field: &str| pod.value.pointer(field).and_then(Value::as_str).unwrap_or_default();
            if spec("/spec/serviceAccountName") != claims.serviceaccount.name {
                let account = quoted(&claims.serviceaccount.name);
                return Err(Refusal::bad_request(format!(
                    "cannot bind token for serviceaccount {account} to pod running with different serviceaccount name."
                )));
            }
            let node = spec("/spec/nodeName");
            if !node.is_empty() {
                // A node that has gone is still named, so that whoever reads the token knows where the pod was.
                let uid = find(snapshot, "nodes", "", node).map(|node| node.uid).unwrap_or_default();
                claims.node = Some(NamedUid { name: node.to_owned(), uid });
            }
            claims.pod.insert(NamedUid { name: name.to_owned(), uid: pod.uid })
        }
        ("", "Node") => {
            let uid = existing(snapshot, "nodes", "", name)?.uid;
            claims.node.insert(NamedUid { name: name.to_owned(), uid })
        }
        ("", "Secret") => {
            let uid = existing(snapshot, "secrets", &namespace, name)?.uid;
            claims.secret.insert(NamedUid { name: name.to_owned(), uid })
        }
        _ => {
            let what = format!("{group}/{version}, Kind={kind}");
            return Err(Refusal::bad_request(format!("cannot bind token to object of type {what}")));
        }
    };
    match reference.uid.as_deref() {
        Some(uid) if !uid.is_empty() && uid != bound.uid => {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            Err(Refusal::conflict("", kind, name, &why))
        }
        _ => Ok(()),
    }
}

/// The account and what the token is bound to must still be the same objects. O(log objects).
fn live_identity(snapshot: &Snapshot, claims: &Claims, now: Timestamp) -> Result<Identity, Error> {
    let Private { namespace, serviceaccount, pod, secret, node } = &claims.kubernetes;
    let gone = |object: &Existing| object.deleted.is_some_and(|at| at < now - LEEWAY);
    let account = find(snapshot, "serviceaccounts", namespace, &serviceaccount.name)
        .ok_or_else(|| Error::NoAccount(serviceaccount.name.clone()))?;
    if account.uid != serviceaccount.uid {
        return Err(Error::AccountReplaced { live: account.uid, claimed: serviceaccount.uid.clone() });
    }
    if gone(&account) {
        let name = serviceaccount.name.clone();
        return Err(Error::AccountDeleted { namespace: namespace.clone(), name });
    }
    let alive = |kind: &'static str, plural: &str, namespace: &str, bound: &NamedUid| {
        let object = find(snapshot, plural, namespace, &bound.name).ok_or(Error::Invalidated)?;
        if object.uid != bound.uid {
            return Err(Error::Replaced { kind, live: object.uid, claimed: bound.uid.clone() });
        }
        if gone(&object) { Err(Error::Invalidated) } else { Ok(()) }
    };
    if let Some(secret) = secret {
        alive("secret", "secrets", namespace, secret)?;
    }
    match (pod, node) {
        // The node of a pod is told, not checked: the pod may outlive it for a while.
        (Some(pod), _) => alive("pod", "pods", namespace, pod)?,
        (None, Some(node)) => alive("node", "nodes", "", node)?,
        (None, None) => {}
    }
    let bound =
        BoundTo { credential_id: Some(format!("JTI={}", claims.jti)), pod: pod.clone(), node: node.clone() };
    Ok(Identity::bound_service_account(namespace, serviceaccount, &bound))
}

/// Kubernetes times have no fractions.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
