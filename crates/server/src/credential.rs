//! Credentials of a machine's own Terrane, where there is no cluster that knows its people: the login link, the sessions that it opens,
//! and tokens for machines. Each is a Secret of the system namespace that holds a digest and never the thing itself, so they
//! outlive a restart and the service keeps nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use api::SYSTEM_NAMESPACE;
use api::text::{ObjectName, Sha256};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use rand::TryRngCore;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

/// The type of the Secrets, so that nobody takes them for others.
const TYPE: &str = "terrane.dev/credential";
const LABEL: &str = "terrane.dev/credential";
/// What a token for machines begins with.
const PREFIX: &str = "terrane_";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the operating system gave no random bytes: {0}")]
    Random(#[from] rand::rand_core::OsError),
    #[error("{0}")]
    Name(String),
    #[error("there is a token {0} already; `terrane token revoke {0}` ends it, or choose another name")]
    Exists(String),
    #[error("the Kubernetes API could not be asked to {doing}: {error}")]
    Api { doing: &'static str, error: Box<kube::Error> },
}

impl Error {
    fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |error| Self::Api { doing, error: Box::new(error) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The link that opens one session.
    Login,
    Session,
    /// For machines.
    Token,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Session => "session",
            Self::Token => "token",
        }
    }

    fn secret_name(self, id: &str) -> String {
        format!("terrane-{}-{id}", self.as_str())
    }
}

/// What the bearer of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// See layers, runs, repositories, logs, plans, masked outputs and events.
    Read,
    /// Ask for plans, suspend, cancel, and make and remove stacks.
    Write,
    /// Approve and reject plans.
    Approve,
    /// Read and change states, which hold every secret.
    State,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Approve, Self::State];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Approve => "approve",
            Self::State => "state",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| format!("{text} is no scope; there are read, write, approve and state"))
    }
}

/// What a credential allows, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who its bearer is to the API and in the history.
    pub user: String,
    pub scopes: BTreeSet<Scope>,
    /// None means all.
    pub namespaces: BTreeSet<String>,
    pub expires: Timestamp,
}

impl Grant {
    /// Everything, as whoever runs Terrane on their own machine may.
    pub fn everything(user: &str, expires: Timestamp) -> Self {
        Self { user: user.to_owned(), scopes: Scope::ALL.into(), namespaces: BTreeSet::new(), expires }
    }
}

/// A credential as it is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    pub id: String,
    pub grant: Grant,
    pub created: Option<Timestamp>,
    digest: String,
    meta: ObjectMeta,
}

/// Makes, finds and ends credentials. The client may read, make and delete Secrets of the system namespace.
#[derive(Clone)]
pub struct Credentials {
    secrets: Api<Secret>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    pub fn new(client: &Client) -> Self {
        Self { secrets: Api::namespaced(client.clone(), SYSTEM_NAMESPACE) }
    }

    /// A new link, in the place of any other: the word that opens one session.
    pub async fn make_login(&self, user: &str, expires: Timestamp) -> Result<SecretString, Error> {
        let name = Kind::Login.secret_name("link");
        match self.secrets.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(answer)) if answer.code == 404 => {}
            Err(error) => return Err(Error::api("replace the login link")(error)),
        }
        let word = random()?;
        self.put(Kind::Login, "link", &word, &Grant::everything(user, expires)).await?;
        Ok(word)
    }

    /// What a login link grants, if the word is its own and nobody used it before: of several at once, one is let in.
    pub async fn use_login(&self, word: &str, now: Timestamp) -> Result<Option<Grant>, Error> {
        let Some(kept) = self.find(Kind::Login, "link", word, now).await? else { return Ok(None) };
        let exactly = Preconditions {
            uid: kept.meta.uid.clone(),
            resource_version: kept.meta.resource_version.clone(),
        };
        let once = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
        match self.secrets.delete(&kept.meta.name.unwrap_or_default(), &once).await {
            Ok(_) => Ok(Some(kept.grant)),
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(None),
            Err(error) => Err(Error::api("use up the login link")(error)),
        }
    }

    /// Opens a session, and removes those that have expired. Returns what its cookie holds. O(sessions).
    pub async fn make_session(&self, grant: &Grant, now: Timestamp) -> Result<SecretString, Error> {
        for old in self.list(Kind::Session).await? {
            if old.grant.expires <= now {
                self.end(Kind::Session, &old.id).await?;
            }
        }
        let mut id = [0_u8; 8];
        rand::rngs::OsRng.try_fill_bytes(&mut id)?;
        let (id, word) = (hex::encode(id), random()?);
        self.put(Kind::Session, &id, &word, grant).await?;
        Ok(SecretString::from(format!("{id}.{}", word.expose_secret())))
    }

    /// Whose session a cookie names.
    pub async fn session(&self, cookie: &str, now: Timestamp) -> Result<Option<Kept>, Error> {
        match cookie.split_once('.') {
            Some((id, word)) => self.find(Kind::Session, id, word, now).await,
            None => Ok(None),
        }
    }

    /// A token for machines, shown once.
    pub async fn make_token(&self, name: &ObjectName, grant: &Grant) -> Result<SecretString, Error> {
        if name.as_str().len() > 63 {
            return Err(Error::Name(format!("{name} is longer than 63 characters")));
        }
        let word = random()?;
        self.put(Kind::Token, name.as_str(), &word, grant).await?;
        Ok(SecretString::from(format!("{PREFIX}{name}_{}", word.expose_secret())))
    }

    /// Whose token this is. None of one that is not ours to know.
    pub async fn token(&self, text: &str, now: Timestamp) -> Result<Option<Kept>, Error> {
        match text.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('_')) {
            Some((name, word)) => self.find(Kind::Token, name, word, now).await,
            None => Ok(None),
        }
    }

    /// All of a kind, by name.
    pub async fn list(&self, kind: Kind) -> Result<Vec<Kept>, Error> {
        let of_kind = ListParams::default().labels(&format!("{LABEL}={}", kind.as_str()));
        let found = self.secrets.list(&of_kind).await.map_err(Error::api("list credentials"))?;
        Ok(found.items.into_iter().filter_map(|secret| read(kind, secret)).collect())
    }

    /// Ends one; false where there is none.
    pub async fn end(&self, kind: Kind, id: &str) -> Result<bool, Error> {
        // Only what can be a name becomes a part of an address.
        if ObjectName::new(id).is_err() {
            return Ok(false);
        }
        match self.secrets.delete(&kind.secret_name(id), &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(false),
            Err(error) => Err(Error::api("end a credential")(error)),
        }
    }

    async fn find(&self, kind: Kind, id: &str, word: &str, now: Timestamp) -> Result<Option<Kept>, Error> {
        if ObjectName::new(id).is_err() {
            return Ok(None);
        }
        let found =
            self.secrets.get_opt(&kind.secret_name(id)).await.map_err(Error::api("look for a credential"))?;
        let Some(kept) = found.and_then(|secret| read(kind, secret)) else { return Ok(None) };
        let given = digest(word);
        // Digests are compared in constant time, so that how long it takes says nothing about them.
        let is_right = bool::from(given.as_str().as_bytes().ct_eq(kept.digest.as_bytes()));
        Ok((is_right && now < kept.grant.expires).then_some(kept))
    }

    async fn put(&self, kind: Kind, id: &str, word: &SecretString, grant: &Grant) -> Result<(), Error> {
        let list = |words: Vec<&str>| ByteString(words.join(",").into_bytes());
        let data = BTreeMap::from([
            ("sha256".to_owned(), ByteString(digest(word.expose_secret()).as_str().as_bytes().to_vec())),
            ("user".to_owned(), ByteString(grant.user.clone().into_bytes())),
            ("scopes".to_owned(), list(grant.scopes.iter().map(|scope| scope.as_str()).collect())),
            ("namespaces".to_owned(), list(grant.namespaces.iter().map(String::as_str).collect())),
            ("expires".to_owned(), ByteString(grant.expires.to_string().into_bytes())),
        ]);
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(kind.secret_name(id)),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), kind.as_str().to_owned())])),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(data),
            ..Secret::default()
        };
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
                Err(Error::Exists(id.to_owned()))
            }
            Err(error) => Err(Error::api("keep a credential")(error)),
        }
    }
}

/// None of what is not whole: a credential that cannot be read grants nothing.
fn read(kind: Kind, secret: Secret) -> Option<Kept> {
    if secret.type_.as_deref() != Some(TYPE) {
        return None;
    }
    let id = secret.name_any().strip_prefix(&kind.secret_name(""))?.to_owned();
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?.0.clone();
        String::from_utf8(bytes).ok()
    };
    let words = |key: &str| -> Option<Vec<String>> {
        Some(text(key)?.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
    };
    let scopes = words("scopes")?.iter().map(|word| word.parse()).collect::<Result<_, String>>().ok()?;
    let grant = Grant {
        user: text("user")?,
        scopes,
        namespaces: words("namespaces")?.into_iter().collect(),
        expires: text("expires")?.parse().ok()?,
    };
    let created = secret.metadata.creation_timestamp.as_ref().map(|time| time.0);
    Some(Kept { id, grant, created, digest: text("sha256")?, meta: secret.metadata })
}

/// 256 bits from the operating system: nothing to guess, so a plain digest of it can be kept.
fn random() -> Result<SecretString, Error> {
    let mut bytes = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes)?;
    Ok(SecretString::from(hex::encode(bytes)))
}

fn digest(word: &str) -> Sha256 {
    Sha256::of(word.as_bytes())
}

/// What unsafe requests of a session's page must carry: follows from the cookie, which other origins cannot read.
pub(crate) fn csrf(cookie: &str) -> String {
    Sha256::of(format!("csrf of {cookie}").as_bytes()).as_str().to_owned()
}
