//! What a cluster does by itself: garbage collection, namespaces, default service accounts, custom resource definitions, expiry
//! of events, and what is there from the start.
//!
//! Each part is a [`reactor::Reactor`] over the store: it reads snapshots and events directly, which costs no serialization and is
//! never behind, and writes through the API's own router as `system:apiserver`, so that what it does is what any client could
//! have done. Nothing here is started by itself: [`Lifecycle::parts`] hands the loops to the supervisor.

mod accounts;
mod api;
pub mod catalog;
mod collector;
mod conditions;
mod definitions;
mod events;
mod feed;
mod install;
mod namespaces;
mod queue;
mod reactor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use http::{Method, StatusCode};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::store::{Collection, Key, Store};
use api::Api;
use catalog::Catalog;
use feed::{Feed, Scope, custom_resource_definitions};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{method} {path} was answered with {code}: {message}")]
    Api { method: Method, path: String, code: StatusCode, message: String },
    #[error("{path} cannot be asked: {why}")]
    Request { path: String, why: String },
    #[error("{0} is stored but its kind is not served")]
    NotServed(Key),
    #[error("{object} has an owner of kind {kind} in {api_version}, which is not served")]
    UnknownOwner { object: Key, api_version: String, kind: String },
    #[error("{object} cannot be read: {why}")]
    Unreadable { object: Key, why: String },
    #[error("the definition {name} was not established: {why}")]
    NotEstablished { name: String, why: String },
}

impl Error {
    /// Somebody else wrote in between: nothing is wrong, the next look sees what they wrote.
    fn is_conflict(&self) -> bool {
        matches!(self, Error::Api { code: StatusCode::CONFLICT, .. })
    }
}

/// One loop that runs as long as the server, and its name for the supervisor.
pub type Part = (&'static str, BoxFuture<'static, Result<(), Error>>);

/// Everything that the lifecycle needs.
#[derive(Clone)]
pub struct Lifecycle {
    store: Store,
    client: kube::Client,
    catalog: Arc<dyn Catalog>,
    authority: Arc<str>,
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifecycle").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

impl Lifecycle {
    /// `client` acts as the system; `authority` is the CA certificate, PEM, that pods are to trust.
    pub fn new(store: Store, client: kube::Client, catalog: Arc<dyn Catalog>, authority: &str) -> Self {
        Lifecycle { store, client, catalog, authority: authority.into() }
    }

    /// The loops, each to be run until the server ends.
    pub fn parts(&self) -> Vec<Part> {
        let Lifecycle { store, client, catalog, authority } = self.clone();
        let api = Api::new(client.clone(), api::Part::Controllers);
        let server = Api::new(client, api::Part::Server);
        let everything = Scope::Everything(catalog.builtin());
        let feed = |scope: Scope| Feed::new(store.clone(), scope);
        let only = |collections: Vec<Collection>| feed(Scope::Only(collections));
        vec![
            (
                "garbage collector",
                reactor::run(
                    collector::Collector::new(store.clone(), api.clone(), Arc::clone(&catalog)),
                    feed(everything.clone()),
                )
                .boxed(),
            ),
            (
                "namespace deletion",
                reactor::run(
                    namespaces::Namespaces::new(store.clone(), api.clone(), Arc::clone(&catalog)),
                    feed(everything),
                )
                .boxed(),
            ),
            (
                "namespace defaults",
                reactor::run(
                    accounts::Accounts::new(store.clone(), api.clone(), authority),
                    only(accounts::followed()),
                )
                .boxed(),
            ),
            (
                "custom resource definitions",
                reactor::run(
                    definitions::Definitions::new(store.clone(), server.clone(), Arc::clone(&catalog)),
                    only(vec![custom_resource_definitions()]),
                )
                .boxed(),
            ),
            (
                "event expiry",
                reactor::run(
                    events::Events::new(store.clone(), server, catalog),
                    only(vec![events::collection()]),
                )
                .boxed(),
            ),
        ]
    }

    /// Installs namespaces, roles and `definitions`, and waits until the definitions are served. The parts must be running.
    pub async fn install(&self, definitions: &[CustomResourceDefinition]) -> Result<(), Error> {
        install::install(&self.store, &Api::new(self.client.clone(), api::Part::Server), definitions).await?;
        install::wait_until_established(&self.store, definitions).await
    }
}
