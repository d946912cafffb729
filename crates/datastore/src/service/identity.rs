//! Who calls: a token becomes a `Caller`, by asking the Kubernetes API. What a caller may do is decided elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::text::Sha256;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;

use super::issuer::{Issuer, KeySource};
use crate::key::Attempt;

/// How long an answer is believed. A token that is revoked, or a pod that is gone, works at most this much longer.
const TRUST: Duration = Duration::from_secs(20);
const CACHE_SIZE: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Terrane's controllers, and administrators of the cluster.
    Controller,
    /// The HTTP service for people, which settles itself what each of them may do.
    Server,
    Runner(Runner),
}

/// A runner, as the Pod that its token is bound to proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    /// That of its run.
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub attempt: Attempt,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the token is not valid for the datastore: {0}")]
    Unauthenticated(String),
    #[error("{0} has no business in the datastore")]
    Stranger(String),
    #[error("the Kubernetes API could not be asked about a token: {0}")]
    Unavailable(String),
}

/// Turns tokens into callers.
pub trait Reviewer: Send + Sync + std::fmt::Debug {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Caller, Error>>;
}

/// Whom a token proves, as its signature says. Whether the pod is still there is another question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proved {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
}

/// How it is settled who signed a token.
#[derive(Debug)]
enum Proof {
    /// The API server says it. A TokenReview is a right over the whole cluster.
    Review,
    /// The keys that the issuer publishes say it, for pods of these namespaces and of Terrane itself.
    Keys { issuer: Issuer, namespaces: BTreeSet<String> },
}

/// Asks the Kubernetes API, and remembers its answer for seconds.
pub struct KubeReviewer {
    client: kube::Client,
    proof: Proof,
    /// Where pods build images for runs of other namespaces.
    builds: Option<String>,
    known: Mutex<HashMap<Sha256, (Instant, Arc<Caller>)>>,
}

impl std::fmt::Debug for KubeReviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeReviewer").field("proof", &self.proof).finish_non_exhaustive()
    }
}

/// A pod whose deletion was due this long ago speaks for nobody, as API servers have it.
const GONE_AFTER: SignedDuration = SignedDuration::from_secs(60);

impl KubeReviewer {
    /// By TokenReviews.
    pub fn new(client: kube::Client) -> Self {
        Self { client, proof: Proof::Review, builds: None, known: Mutex::default() }
    }

    /// The same, where the pods of builds are in this namespace and say by their labels whose they are. Only where an admission policy lets
    /// nobody else set these.
    pub fn with_builds(self, namespace: Option<String>) -> Self {
        Self { builds: namespace, ..self }
    }

    /// By the issuer's keys and a read of the pod, which needs no right over the whole cluster. Runners are those of `namespaces`.
    pub fn by_keys(client: kube::Client, source: KeySource, namespaces: BTreeSet<String>) -> Self {
        let proof = Proof::Keys { issuer: Issuer::new(source), namespaces };
        Self { client, proof, builds: None, known: Mutex::default() }
    }

    /// How it is settled who signed a token, if that can be done now as far as one can tell without a token.
    pub async fn ready(&self) -> Result<&'static str, Error> {
        match &self.proof {
            Proof::Review => Ok("the API is asked who they are"),
            Proof::Keys { issuer, .. } => {
                issuer.ready().await.map(|()| "the keys of the tokens' issuer are known")
            }
        }
    }

    async fn ask(&self, token: &str) -> Result<Caller, Error> {
        match &self.proof {
            Proof::Review => self.ask_for_review(token).await,
            Proof::Keys { issuer, namespaces } => {
                let now = Timestamp::now();
                let proved = issuer.prove(token, now).await?;
                self.caller_of(proved, namespaces, now).await
            }
        }
    }

    /// Whom a proved token speaks for: its pod must be there, be the same one, and run as the account that the token names.
    async fn caller_of(
        &self,
        proved: Proved,
        namespaces: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Caller, Error> {
        let Proved { namespace, account, pod, pod_uid } = proved;
        let is_part = namespace == api::SYSTEM_NAMESPACE
            && [api::CONTROLLER_ACCOUNT, api::SERVER_ACCOUNT].contains(&account.as_str());
        if !is_part && !namespaces.contains(&namespace) && self.builds.as_ref() != Some(&namespace) {
            return Err(Error::Stranger(format!(
                "system:serviceaccount:{namespace}:{account}, of a namespace that this datastore does not serve,"
            )));
        }
        let found = self.pod(&namespace, &pod).await?;
        let runs_as = found.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        if runs_as.unwrap_or("default") != account {
            return Err(Error::Stranger(format!(
                "the pod {namespace}/{pod}, which runs as another account,"
            )));
        }
        if found.metadata.deletion_timestamp.as_ref().is_some_and(|due| is_long_past(due.0, now)) {
            return Err(Error::Unauthenticated(format!("its pod {namespace}/{pod} is gone")));
        }
        ensure_same(&found, &namespace, &pod, &pod_uid)?;
        if !is_part {
            return runner_of(&found, namespace, pod, pod_uid, self.builds.as_deref()).map(Caller::Runner);
        }
        Ok(if account == api::CONTROLLER_ACCOUNT { Caller::Controller } else { Caller::Server })
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Error> {
        Api::<Pod>::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
            .ok_or_else(|| Error::Unauthenticated(format!("its pod {namespace}/{name} is gone")))
    }

    async fn ask_for_review(&self, token: &str) -> Result<Caller, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: Some(vec![api::DATASTORE_AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let answer = Api::<TokenReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Err(Error::Unauthenticated(
                status.error.unwrap_or_else(|| "it is unknown or expired".to_owned()),
            ));
        }
        // An API server that knows nothing of audiences would call any token good.
        if !status.audiences.unwrap_or_default().iter().any(|audience| audience == api::DATASTORE_AUDIENCE) {
            return Err(Error::Unauthenticated("it was made for another audience".to_owned()));
        }
        let user = status.user.unwrap_or_default();
        let name = user.username.unwrap_or_default();
        let is_account =
            |account: &str| name == format!("system:serviceaccount:{}:{account}", api::SYSTEM_NAMESPACE);
        let is_administrator = user.groups.unwrap_or_default().iter().any(|group| group == "system:masters");
        if is_account(api::CONTROLLER_ACCOUNT) || is_administrator {
            return Ok(Caller::Controller);
        }
        if is_account(api::SERVER_ACCOUNT) {
            return Ok(Caller::Server);
        }
        let Some(namespace) = name
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'))
            .map(|(namespace, _)| namespace.to_owned())
        else {
            return Err(Error::Stranger(name));
        };
        let extra = user.extra.unwrap_or_default();
        let claim = |key: &str| extra.get(key).and_then(|values| values.first()).cloned();
        let (Some(pod), Some(pod_uid)) =
            (claim("authentication.kubernetes.io/pod-name"), claim("authentication.kubernetes.io/pod-uid"))
        else {
            return Err(Error::Stranger(format!("{name}, whose token is not bound to a pod,")));
        };
        let found = self.pod(&namespace, &pod).await?;
        runner_of(&found, namespace, pod, pod_uid, self.builds.as_deref()).map(Caller::Runner)
    }

    fn remembered(&self, digest: &Sha256) -> Option<Caller> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, caller) = known.get(digest)?;
        (since.elapsed() < TRUST).then(|| Caller::clone(caller))
    }

    fn remember(&self, digest: Sha256, caller: &Caller) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHE_SIZE {
            known.retain(|_, (since, _)| since.elapsed() < TRUST);
        }
        // Full of fresh answers: asking again is better than growing.
        if known.len() < CACHE_SIZE {
            known.insert(digest, (Instant::now(), Arc::new(caller.clone())));
        }
    }
}

impl Reviewer for KubeReviewer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Caller, Error>> {
        Box::pin(async move {
            let digest = Sha256::of(token.as_bytes());
            if let Some(caller) = self.remembered(&digest) {
                return Ok(caller);
            }
            let caller = self.ask(token).await?;
            self.remember(digest, &caller);
            Ok(caller)
        })
    }
}

/// Whether a moment is so long ago that clocks cannot be the reason.
fn is_long_past(due: Timestamp, now: Timestamp) -> bool {
    now.duration_since(due) > GONE_AFTER
}

fn ensure_same(pod: &Pod, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
    if pod.metadata.uid.as_deref() == Some(uid) {
        return Ok(());
    }
    Err(Error::Unauthenticated(format!("its pod {namespace}/{name} is gone, another has its name")))
}

/// The run and attempt of a pod: the labels say them, the owner reference proves the run. In the namespace of builds, where no owner can be
/// named, the builders' account and the labels prove it: whoever may make pods there cannot set these.
fn runner_of(
    pod: &Pod,
    namespace: String,
    name: String,
    uid: String,
    builds: Option<&str>,
) -> Result<Runner, Error> {
    let stranger = |why: &str| Error::Stranger(format!("the pod {namespace}/{name}, {why},"));
    ensure_same(pod, &namespace, &name, &uid)?;
    let labels = pod.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).cloned();
    let (Some(run_uid), Some(attempt)) = (label(api::label::RUN_UID), label(api::label::ATTEMPT)) else {
        return Err(stranger("which has no labels of a run"));
    };
    let served = if builds == Some(namespace.as_str()) {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        if account != Some(api::BUILDER_ACCOUNT) {
            return Err(stranger("which is among builds and no builder"));
        }
        label(api::label::RUN_NAMESPACE).ok_or_else(|| stranger("which builds for no namespace"))?
    } else {
        let owned = pod.metadata.owner_references.iter().flatten().any(|owner| {
            owner.kind == "TerraformRun"
                && owner.api_version == format!("{}/{}", api::GROUP, api::VERSION)
                && owner.uid == run_uid
        });
        if !owned {
            return Err(stranger("which no TerraformRun owns"));
        }
        namespace.clone()
    };
    let number = attempt.parse().map_err(|_| stranger("whose attempt is not a number"))?;
    let attempt = Attempt::new(run_uid, number).map_err(|_| stranger("whose run has no uid"))?;
    Ok(Runner { namespace: served, pod: name, pod_uid: uid, attempt })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(labels: &[(&str, &str)], owner_kind: &str, owner_uid: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {
                "uid": "pod-uid",
                "labels": labels.iter().copied().collect::<HashMap<_, _>>(),
                "ownerReferences": [
                    {"apiVersion": "terrane.dev/v1alpha1", "kind": owner_kind, "name": "r", "uid": owner_uid}
                ]
            }
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_speaks_for_the_run_that_owns_it_and_for_no_other() {
        let labels = [("terrane.dev/run-uid", "run-1"), ("terrane.dev/attempt", "2")];
        let check =
            |pod: Pod, uid: &str| runner_of(&pod, "ns".to_owned(), "p".to_owned(), uid.to_owned(), None);
        let runner = check(pod(&labels, "TerraformRun", "run-1"), "pod-uid").unwrap();
        assert_eq!(runner.attempt, Attempt::new("run-1", 2).unwrap());
        assert!(check(pod(&labels, "TerraformRun", "run-2"), "pod-uid").is_err(), "another run owns it");
        assert!(check(pod(&labels, "Job", "run-1"), "pod-uid").is_err(), "no run owns it");
        assert!(
            check(pod(&labels, "TerraformRun", "run-1"), "old-uid").is_err(),
            "another pod with its name"
        );
        assert!(check(pod(&labels[..1], "TerraformRun", "run-1"), "pod-uid").is_err(), "no attempt");
    }

    #[test]
    fn a_builder_speaks_for_the_run_that_its_labels_name_and_only_among_builds() {
        let labels = [
            ("terrane.dev/run-uid", "run-1"),
            ("terrane.dev/attempt", "2"),
            ("terrane.dev/run-namespace", "team"),
        ];
        let builder = |labels: &[(&str, &str)], account: &str| -> Pod {
            serde_json::from_value(serde_json::json!({
                "metadata": { "uid": "pod-uid", "labels": labels.iter().copied().collect::<HashMap<_, _>>() },
                "spec": { "containers": [], "serviceAccountName": account },
            }))
            .unwrap()
        };
        let check = |pod: Pod, namespace: &str, builds: Option<&str>| {
            runner_of(&pod, namespace.to_owned(), "p".to_owned(), "pod-uid".to_owned(), builds)
        };
        let builds = Some("builds");
        let runner = check(builder(&labels, "terrane-builder"), "builds", builds).unwrap();
        assert_eq!(
            (runner.namespace.as_str(), runner.attempt),
            ("team", Attempt::new("run-1", 2).unwrap()),
            "it reads and writes what is its run's"
        );
        let refused = |pod: Pod, namespace: &str, builds: Option<&str>| {
            check(pod, namespace, builds).unwrap_err().to_string()
        };
        let told = refused(builder(&labels, "terrane-builder"), "team", builds);
        assert_eq!(told, "the pod team/p, which no TerraformRun owns, has no business in the datastore");
        let told = refused(builder(&labels, "terrane-builder"), "builds", None);
        assert!(told.contains("which no TerraformRun owns"), "{told}");
        let told = refused(builder(&labels, "default"), "builds", builds);
        assert!(told.contains("which is among builds and no builder"), "{told}");
        let told = refused(builder(&labels[..2], "terrane-builder"), "builds", builds);
        assert!(told.contains("which builds for no namespace"), "{told}");
        // An owner of that name in the builds' namespace would be somebody else's run.
        let owned = pod(&labels[..2], "TerraformRun", "run-1");
        assert!(check(owned, "builds", builds).is_err());
        let runner = check(pod(&labels, "TerraformRun", "run-1"), "ns", builds).unwrap();
        assert_eq!(runner.namespace, "ns", "what a tenant's pod says of other namespaces counts for nothing");
    }
}
