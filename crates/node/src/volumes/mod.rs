//! The directory of a pod: its volumes, its home and its temporary files.
//!
//! ```text
//! <pods>/<directory>/           the node's, readable by the pod
//!     home/  tmp/               the pod's own
//!     volumes/<name>/           emptyDir: the pod's own; all others: the node's, readable by the pod
//!     termination/<container>   the pod's own file in the node's directory
//! ```
//!
//! Where that directory is, and who the pod's user is, is decided by the pod's record.

mod payload;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Container, Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::env::{Environment, expand};
use crate::fields::Facts;
use crate::mounts::Mounts;
use crate::sources::{Needed, Sources};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {source}")]
    Payload { volume: String, source: payload::Error },
    #[error("could not write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("could not read what the volumes of the pod refer to: {0}")]
    Api(#[source] Box<kube::Error>),
    #[error("could not get a token of service account {account:?}: {source}")]
    Token { account: String, source: Box<kube::Error> },
    #[error("the API answered the request for a token of service account {account:?} without one")]
    EmptyToken { account: String },
    #[error("container {container:?} mounts volume {volume:?}, which the pod does not have")]
    NoVolume { container: String, volume: String },
    #[error("the subPath {0:?} leads out of its volume")]
    BadSubPath(String),
}

/// How often changed Secrets and ConfigMaps are looked for, as a kubelet does.
const REFRESH: SignedDuration = SignedDuration::from_secs(60);
const DEFAULT_TOKEN_SECONDS: i64 = 3600;
/// A token is renewed when a fifth of its life is left, or once a day if it lives longer.
const LONGEST_TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// The place of one pod on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDirectory {
    pub path: PathBuf,
    pub owner: Option<u32>,
}

/// The tokens that a pod's volumes hold, kept in memory so that a refresh asks only for what is due.
#[derive(Debug, Default)]
pub struct Tokens {
    held: BTreeMap<payload::TokenKey, Held>,
}

struct Held {
    value: String,
    renew_at: Timestamp,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("renew_at", &self.renew_at).finish_non_exhaustive()
    }
}

impl PodDirectory {
    pub fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    pub fn temporary(&self) -> PathBuf {
        self.path.join("tmp")
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.path.join("volumes").join(name)
    }

    pub fn termination(&self, container: &str) -> PathBuf {
        self.path.join("termination").join(container)
    }

    /// The directories that the pod may write to, for a confinement by path.
    pub fn writable(&self, pod: &Pod) -> Vec<PathBuf> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let empty =
            volumes.filter(|volume| volume.empty_dir.is_some()).map(|volume| self.volume(&volume.name));
        [self.home(), self.temporary(), self.path.join("termination")].into_iter().chain(empty).collect()
    }

    /// Makes everything the pod needs before its first container. Can be repeated. Gives the time of the next refresh.
    pub async fn prepare(
        &self,
        client: &Client,
        pod: &Pod,
        facts: &Facts,
        tokens: &mut Tokens,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        for readable in [self.path.clone(), self.path.join("volumes"), self.path.join("termination")] {
            write::make_readable(&readable, self.owner).map_err(io(&readable))?;
        }
        for owned in [self.home(), self.temporary()] {
            write::make_owned(&owned, self.owner).map_err(io(&owned))?;
        }
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if volume.empty_dir.is_some() {
                let path = self.volume(&volume.name);
                write::make_owned(&path, self.owner).map_err(io(&path))?;
            }
        }
        self.refresh(client, pod, facts, tokens, now).await
    }

    /// Brings the volumes that the API provides up to date. `None`: there are none.
    pub async fn refresh(
        &self,
        client: &Client,
        pod: &Pod,
        facts: &Facts,
        tokens: &mut Tokens,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut next: Option<Timestamp> = None;
        for (key, projection) in volumes.iter().flat_map(payload::tokens) {
            if tokens.held.get(&key).is_none_or(|held| held.renew_at <= now) {
                let held = fetch_token(client, namespace, pod, projection, now).await?;
                tokens.held.insert(key.clone(), held);
            }
            let renew_at = tokens.held.get(&key).map(|held| held.renew_at);
            next = [next, renew_at].into_iter().flatten().min();
        }
        let needed = Needed::by_volumes(volumes);
        if !needed.is_empty() || volumes.iter().any(|v| v.downward_api.is_some() || v.projected.is_some()) {
            next = [next, now.checked_add(REFRESH).ok()].into_iter().flatten().min();
        }
        let sources =
            Sources::fetch(client, namespace, &needed).await.map_err(|error| Error::Api(Box::new(error)))?;
        let values: BTreeMap<_, _> =
            tokens.held.iter().map(|(key, held)| (key.clone(), held.value.clone())).collect();
        for volume in volumes {
            let built = payload::build(volume, pod, &sources, &values, facts)
                .map_err(|source| Error::Payload { volume: volume.name.clone(), source })?;
            if let Some(files) = built {
                let path = self.volume(&volume.name);
                if write::put(&path, &files, self.owner).map_err(|source| Error::Io { path, source })?
                    == write::Written::Changed
                {
                    tracing::debug!(pod = pod.metadata.name, volume = volume.name, "volume written");
                }
            }
        }
        Ok(next)
    }

    /// The translation of a container's mount paths; makes the subdirectories of its own volumes that it mounts.
    pub fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        environment: &Environment,
    ) -> Result<Mounts, Error> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut pairs = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = volumes.iter().find(|volume| volume.name == mount.name).ok_or_else(|| {
                Error::NoVolume { container: container.name.clone(), volume: mount.name.clone() }
            })?;
            let root = self.volume(&volume.name);
            let below = match (&mount.sub_path, &mount.sub_path_expr) {
                (Some(path), _) => path.clone(),
                (None, Some(expression)) => expand(expression, environment),
                (None, None) => String::new(),
            };
            let relative = PathBuf::from(&below);
            if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(Error::BadSubPath(below));
            }
            if volume.empty_dir.is_some() {
                write::make_beneath(&root, &relative, self.owner)
                    .map_err(|source| Error::Io { path: root.join(&relative), source })?;
            }
            pairs.push((mount.mount_path.clone(), join(&root, &relative)));
        }
        let termination = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
        pairs.push((termination.to_owned(), self.termination(&container.name)));
        Ok(Mounts::new(pairs))
    }

    /// The working directory, made if it lies in a volume of the pod's own, as container runtimes make it.
    pub fn working_directory(&self, mounts: &Mounts, wanted: Option<&str>) -> Result<PathBuf, Error> {
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Ok(self.home()) };
        let Some((root, below)) = mounts.locate(wanted) else { return Ok(PathBuf::from(wanted)) };
        let path = join(root, &below);
        if !path.is_dir() {
            write::make_beneath(root, &below, self.owner)
                .map_err(|source| Error::Io { path: path.clone(), source })?;
        }
        Ok(path)
    }

    /// An empty termination message for a container that is about to start.
    pub fn reset_termination(&self, container: &str) -> Result<PathBuf, Error> {
        let path = self.termination(container);
        write::make_owned_file(&path, self.owner)
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        Ok(path)
    }
}

/// Joining nothing would leave a slash at the end.
fn join(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) }
}

async fn fetch_token(
    client: &Client,
    namespace: &str,
    pod: &Pod,
    projection: &ServiceAccountTokenProjection,
    now: Timestamp,
) -> Result<Held, Error> {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned());
    let seconds = projection.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: projection.audience.iter().cloned().collect(),
            expiration_seconds: Some(seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        },
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let answer = accounts
        .create_token_request(&account, &PostParams::default(), &request)
        .await
        .map_err(|source| Error::Token { account: account.clone(), source: Box::new(source) })?;
    let status = answer.status.ok_or_else(|| Error::EmptyToken { account: account.clone() })?;
    Ok(Held { value: status.token, renew_at: renew_at(now, status.expiration_timestamp.0) })
}

fn renew_at(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = now.duration_until(expires);
    let used = SignedDuration::from_secs(life.as_secs().saturating_mul(4) / 5).min(LONGEST_TOKEN_LIFE);
    now.checked_add(used).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_is_renewed_when_a_fifth_of_its_life_is_left_or_after_a_day() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |seconds| now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        assert_eq!(renew_at(now, after(600)), after(480));
        assert_eq!(renew_at(now, after(365 * 86_400)), after(86_400));
        assert_eq!(renew_at(now, now), now);
    }

    #[test]
    fn a_mount_of_a_part_of_a_volume_is_made_and_stays_inside() {
        let root = tempfile::tempdir().unwrap();
        let directory = PodDirectory { path: root.path().to_owned(), owner: None };
        std::fs::create_dir_all(directory.volume("work")).unwrap();
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
            "volumes": [{"name": "work", "emptyDir": {}}]}}))
        .unwrap();
        let container = |mount: serde_json::Value| -> Container {
            serde_json::from_value(serde_json::json!({"name": "main", "volumeMounts": [mount]})).unwrap()
        };
        let environment: Environment = [("NAME".to_owned(), "n".to_owned())].into_iter().collect();
        let mounts = |mount| directory.mounts(&pod, &container(mount), &environment);

        let part = mounts(serde_json::json!({"name": "work", "mountPath": "/w", "subPathExpr": "a/$(NAME)"}))
            .unwrap();
        let real = root.path().join("volumes/work/a/n");
        assert!(real.is_dir());
        assert_eq!(part.rewrite("/w/x"), real.join("x").to_str().unwrap());
        assert_eq!(
            part.rewrite("echo >/dev/termination-log"),
            format!("echo >{}", directory.termination("main").display())
        );
        assert_eq!(directory.working_directory(&part, Some("/w/deep")).unwrap(), real.join("deep"));
        assert!(real.join("deep").is_dir());
        assert_eq!(directory.working_directory(&part, None).unwrap(), directory.home());
        assert_eq!(directory.working_directory(&part, Some("/usr")).unwrap(), Path::new("/usr"));

        let out = mounts(serde_json::json!({"name": "work", "mountPath": "/w", "subPath": "../../x"}));
        assert!(matches!(out, Err(Error::BadSubPath(_))));
        let none = mounts(serde_json::json!({"name": "other", "mountPath": "/w"})).unwrap_err();
        assert_eq!(
            none.to_string(),
            "container \"main\" mounts volume \"other\", which the pod does not have"
        );
    }
}
