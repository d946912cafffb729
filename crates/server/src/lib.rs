//! The HTTP service for people: logs, plans, outputs, states and the audit, with the rights that the Kubernetes API gives to whoever asks.
//!
//! It decides nothing about layers and keeps nothing: who asks is settled by a TokenReview, what they may by a
//! SubjectAccessReview (see [`Reviews`] for a service of a few namespaces), which run or layer is meant by a read of the API, and the bytes come from the datastore as a stream.

mod history;
mod layers;
mod person;
mod refusal;
mod runs;
mod unlock;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

pub use person::Reviews;
pub use refusal::Refusal;

/// What the service is made of.
#[derive(Clone)]
pub struct Options {
    /// May create what `reviews` needs, and read runs and layers.
    pub client: kube::Client,
    pub reviews: Reviews,
    /// Speaks for Terrane's controllers.
    pub datastore: datastore::Client,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("datastore", &self.datastore).finish_non_exhaustive()
    }
}

struct Service {
    client: kube::Client,
    reviews: Reviews,
    datastore: datastore::Client,
}

/// The service as a router; merge it with others on one port.
pub fn router(options: Options) -> Router {
    let service =
        Arc::new(Service { client: options.client, reviews: options.reviews, datastore: options.datastore });
    let run = "/api/v1/namespaces/{namespace}/runs/{name}";
    let layer = "/api/v1/namespaces/{namespace}/layers/{name}";
    Router::new()
        .route(&format!("{run}/log"), get(runs::log))
        .route(&format!("{run}/plan"), get(runs::plan_text))
        .route(&format!("{run}/plan.json"), get(runs::plan_json))
        .route(&format!("{layer}/history"), get(history::history))
        .route(&format!("{layer}/outputs"), get(layers::outputs))
        .route(&format!("{layer}/state"), get(layers::state).put(layers::state_put))
        .route(&format!("{layer}/state/versions"), get(layers::versions))
        .route(&format!("{layer}/state/versions/{{version}}"), get(layers::version))
        .route(&format!("{layer}/state/lock"), get(layers::lock).delete(unlock::unlock))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(service)
}
