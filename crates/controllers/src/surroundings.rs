//! What is around Terraforms in the cluster: the URLs of its Ingresses and the logins that its Services lead to. One watch of each, for all
//! Terraforms, which are woken when something of it changes for them. Nothing is watched unless the administrator lets it be told.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::Terraform;
use engine::Read;
use engine::door::surroundings::{
    Found, Login, PROGRAMS, Surroundings as Observed, Urls, Whose, is_shown, login_of, urls_of,
};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::readable::{self, Kind};
use crate::source::Waiting;
use crate::{Context, Desk};

#[derive(Debug, Default)]
pub struct Surroundings {
    ingresses: Mutex<Part<BTreeSet<String>>>,
    services: Mutex<Part<Login>>,
    /// Of all Ingresses, by namespace; made anew when one of them changes.
    urls: Mutex<Option<Urls>>,
}

/// By namespace and name.
type Key = (String, String);

/// What is known by one watch.
#[derive(Debug)]
struct Part<T> {
    /// Nothing before the first list.
    known: Option<BTreeMap<Key, T>>,
    /// What the list that is under way has named.
    fresh: BTreeMap<Key, T>,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self { known: None, fresh: BTreeMap::new() }
    }
}

impl<T: PartialEq> Part<T> {
    /// The namespaces in which something changed. O(objects) for a list, else O(log objects).
    fn take_in<K: Resource>(&mut self, event: &Event<K>, of: impl Fn(&K) -> Option<T>) -> BTreeSet<String> {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => self.fresh.clear(),
            Event::InitApply(object) => {
                self.fresh.extend(of(object).map(|found| (key(object), found)));
            }
            Event::InitDone => {
                let fresh = std::mem::take(&mut self.fresh);
                let before = self.known.take().unwrap_or_default();
                let new = fresh.iter().filter(|(key, found)| before.get(*key) != Some(*found));
                let gone = before.keys().filter(|key| !fresh.contains_key(*key));
                let changed =
                    new.map(|(key, _)| key).chain(gone).map(|(namespace, _)| namespace.clone()).collect();
                self.known = Some(fresh);
                return changed;
            }
            Event::Apply(object) | Event::Delete(object) => {
                let found = of(object).filter(|_| matches!(event, Event::Apply(_)));
                let (key, known) = (key(object), self.known.get_or_insert_default());
                if known.get(&key) != found.as_ref() {
                    let namespace = key.0.clone();
                    match found {
                        Some(found) => known.insert(key, found),
                        None => known.remove(&key),
                    };
                    return BTreeSet::from([namespace]);
                }
            }
        }
        BTreeSet::new()
    }
}

impl Surroundings {
    /// Watches until told to stop.
    pub(crate) async fn work(
        &self,
        context: &Context,
        terraforms: Store<Handle<Terraform>>,
        stop: CancellationToken,
    ) {
        let whose = context.settings.told.whose;
        if whose == Whose::Nobodys {
            return;
        }
        let Context { client, namespaces, events, desk, .. } = context;
        let config = watcher::Config::default().any_semantic();
        let ingresses = readable::watch::<Ingress>(client, namespaces, config.clone(), events);
        let services = readable::watch::<Service>(client, namespaces, config.labels(PROGRAMS), events);
        let wake = |changed: &BTreeSet<String>| wake(&terraforms, whose, changed, desk);
        let hear_ingresses = hear(ingresses, |event| {
            let changed = locked(&self.ingresses).take_in(event, |ingress| Some(urls_of(ingress)));
            // A first list that is empty is news too.
            if !changed.is_empty() || matches!(event, Event::InitDone) {
                self.sum_up();
            }
            wake(&changed);
        });
        let hear_services = hear(services, |event| wake(&locked(&self.services).take_in(event, login_of)));
        stop.run_until_cancelled(async { tokio::join!(hear_ingresses, hear_services) }).await;
    }

    /// O(Ingresses).
    fn sum_up(&self) {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for ((namespace, _), urls) in locked(&self.ingresses).known.iter().flatten() {
            all.entry(namespace.clone()).or_default().extend(urls.iter().cloned());
        }
        *locked(&self.urls) = Some(Arc::new(all));
    }

    /// What is known now. Of Secrets only those are read that the administrator named.
    pub(crate) async fn observe(&self, context: &Context) -> Result<Observed, Error> {
        let told = &context.settings.told;
        if told.whose == Whose::Nobodys {
            return Ok(Observed::default());
        }
        let urls = locked(&self.urls).clone().map_or(Read::Unknown, Read::Present);
        let logins: Option<BTreeSet<Login>> =
            locked(&self.services).known.as_ref().map(|known| known.values().cloned().collect());
        let Some(logins) = logins else { return Ok(Observed { urls, logins: Read::Unknown }) };
        let mut found = Vec::new();
        for login in logins {
            let values = if is_shown(told, &login) { read(&login, context).await? } else { None };
            found.push(Found { login, values });
        }
        Ok(Observed { urls, logins: Read::Present(found) })
    }
}

/// What the Secret holds; nothing where it is not there or may not be read.
async fn read(login: &Login, context: &Context) -> Result<Option<BTreeMap<String, String>>, Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), &login.namespace);
    match secrets.get_opt(&login.secret).await {
        Ok(found) => {
            let data = found.and_then(|secret| secret.data);
            let text = |(key, value): (String, k8s_openapi::ByteString)| {
                Some((key, String::from_utf8(value.0).ok()?))
            };
            Ok(data.map(|data| data.into_iter().filter_map(text).collect()))
        }
        Err(kube::Error::Api(answer)) if answer.code == 403 => {
            let (namespace, name) = (&login.namespace, &login.secret);
            tracing::debug!(namespace, name, "the Secret of a login may not be read, and is only named");
            Ok(None)
        }
        Err(error) => Err(doing("read a login that is to be shown")(error)),
    }
}

/// Everything that a watch tells. That it is interrupted is said once, until it goes on: where the right is missing it never does.
async fn hear<K: Kind>(
    watch: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    mut tell: impl FnMut(&Event<K>),
) {
    let mut watch = pin!(watch);
    let mut is_interrupted = false;
    while let Some(event) = watch.next().await {
        match event {
            Ok(event) => {
                is_interrupted &= !matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_));
                tell(&event);
            }
            Err(error) if !is_interrupted => {
                is_interrupted = true;
                tracing::warn!(kind = %K::kind(&()), %error, "cannot be watched, so that Terraforms do not tell of it; this is tried again and not said again");
            }
            Err(_) => {}
        }
    }
}

/// O(Terraforms).
fn wake(terraforms: &Store<Handle<Terraform>>, whose: Whose, changed: &BTreeSet<String>, desk: &Desk) {
    if changed.is_empty() {
        return;
    }
    for terraform in terraforms.state() {
        let is_concerned = match whose {
            Whose::All => true,
            Whose::Own => changed.contains(&terraform.namespace().unwrap_or_default()),
            Whose::Nobodys => false,
        };
        if is_concerned {
            desk.wake(Waiting::from(&*terraform));
        }
    }
}

fn locked<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, label: &str) -> Service {
        let labels = json!({ "app.kubernetes.io/name": label });
        let metadata = json!({ "name": "web", "namespace": namespace, "labels": labels });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut part = Part::default();
        let mut changed =
            |event: Event<Service>| part.take_in(&event, login_of).into_iter().collect::<Vec<_>>();
        let nothing = Vec::<String>::new();
        assert_eq!(changed(Event::Init), nothing);
        assert_eq!(changed(Event::InitApply(service("a", "grafana"))), nothing);
        assert_eq!(changed(Event::InitApply(service("b", "shop"))), nothing);
        assert_eq!(changed(Event::InitDone), ["a"]);
        assert_eq!(changed(Event::Apply(service("a", "grafana"))), nothing);
        assert_eq!(changed(Event::Apply(service("b", "grafana"))), ["b"]);
        assert_eq!(changed(Event::Apply(service("b", "shop"))), ["b"], "it is another program now");
        assert_eq!(changed(Event::Delete(service("b", "shop"))), nothing);
        assert_eq!(changed(Event::Init), nothing);
        assert_eq!(changed(Event::InitApply(service("c", "argocd-server"))), nothing);
        assert_eq!(changed(Event::InitDone), ["a", "c"]);
        assert_eq!(part.known.unwrap().len(), 1);
    }
}
