//! What a process says about itself over HTTP: `/metrics`, and `/readyz`, which asks each thing it depends on instead of assuming
//! that it is there. Neither tells the name of anything, so both answer without credentials.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use api::text::Sha256;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use controllers::Metrics;
use datastore::service::{KubeReviewer, Objects, Place};

use crate::controllers_role::Offices;
use crate::definitions::Definitions;
use crate::exposition;
use crate::listening::Draining;
use crate::stored::Stored;
use crate::traffic::Traffic;

/// How long one thing may take to answer before it counts as away.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether a process that does not lead is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    /// It is the only one.
    MustLead,
    /// Another one leads, and this one waits for its turn.
    MayStandBy,
}

pub(crate) struct Signs {
    pub(crate) client: kube::Client,
    pub(crate) datastore: datastore::Client,
    pub(crate) metrics: Metrics,
    /// What is counted of webhooks, where the same process takes them.
    pub(crate) deliveries: server::Deliveries,
    /// What is counted of the datastore, where the same process is one.
    pub(crate) stored: Option<Stored>,
    pub(crate) offices: Offices,
    /// Where others see to the definitions.
    pub(crate) definitions: Option<Definitions>,
    pub(crate) duty: Duty,
}

/// Whether anybody may read the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figures {
    Open,
    Closed,
}

pub(crate) fn router(signs: Signs, figures: Figures) -> Router {
    let router = Router::new().route("/readyz", get(ready));
    let router = match figures {
        Figures::Open => router.route("/metrics", get(metrics)),
        Figures::Closed => router,
    };
    router.with_state(Arc::new(signs))
}

async fn metrics(State(signs): State<Arc<Signs>>, asked: HeaderMap) -> Response {
    let stored = signs.stored.as_ref().map(Stored::text).unwrap_or_default();
    exposition::answer(&asked, stored + &signs.deliveries.text() + &signs.metrics.text())
}

async fn ready(State(signs): State<Arc<Signs>>) -> Response {
    let (api, datastore) = tokio::join!(check_api(&signs.client), signs.check_datastore());
    let definitions = signs.definitions.as_ref().map(|definitions| ("definitions", definitions.check()));
    let checks = [("api", api), ("datastore", datastore), ("leader", signs.check_leader())];
    report(&definitions.into_iter().chain(checks).collect::<Vec<_>>())
}

/// How one thing is, in words, or why it is missing.
type Check = Result<String, String>;

/// One line for each thing, as kube-apiserver writes them.
fn report(checks: &[(&str, Check)]) -> Response {
    let is_ready = checks.iter().all(|(_, result)| result.is_ok());
    let mut text = String::new();
    for (name, result) in checks {
        match result {
            Ok(how) => text.push_str(&format!("[+]{name} ok: {how}\n")),
            Err(why) => text.push_str(&format!("[-]{name} failed: {why}\n")),
        }
    }
    let (status, word) =
        if is_ready { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") };
    text.push_str(word);
    text.push('\n');
    (status, text).into_response()
}

async fn check_api(client: &kube::Client) -> Check {
    answered(client.apiserver_version()).await?;
    Ok("the Kubernetes API answers".to_owned())
}

/// `/readyz` of a datastore: it can tell who calls as long as the API answers, and can keep what it is given as long as its
/// directory is there or its bucket answers.
pub(crate) fn datastore_router(
    client: kube::Client,
    reviewer: Arc<KubeReviewer>,
    place: Place,
    objects: Objects,
    own: Own,
    stored: Stored,
) -> Router {
    let (draining, traffic) = (own.draining, own.traffic);
    let ready = async move || {
        let objects = match answered(place.check(&objects)).await {
            Ok(()) => Ok("the artefacts can be read".to_owned()),
            Err(why) => Err(format!("the artefacts cannot be read: {why}")),
        };
        let keys = answered(reviewer.ready()).await.map(|how| how.to_owned());
        let shutdown = check_draining(&draining);
        report(&[
            ("shutdown", shutdown),
            ("api", check_api(&client).await),
            ("callers", keys),
            ("artefacts", objects),
        ])
    };
    Router::new().route("/readyz", get(ready)).merge(traffic_router(traffic, Some(stored)))
}

/// What a role that serves others knows of itself.
#[derive(Clone, Default)]
pub(crate) struct Own {
    pub(crate) draining: Draining,
    pub(crate) traffic: Traffic,
}

fn check_draining(draining: &Draining) -> Check {
    if draining.has_begun() {
        Err("told to stop; requests under way finish, new ones belong elsewhere".to_owned())
    } else {
        Ok("not told to stop".to_owned())
    }
}

fn traffic_router(traffic: Traffic, stored: Option<Stored>) -> Router {
    let metrics = async move |asked: HeaderMap| {
        let stored = stored.as_ref().map(Stored::text).unwrap_or_default();
        exposition::answer(&asked, stored + &traffic.text())
    };
    Router::new().route("/metrics", get(metrics))
}

/// `/readyz` of the HTTP service for people: it can tell who asks as long as the API answers, and has something to show as long as
/// the datastore does.
pub(crate) fn server_router(
    client: kube::Client,
    datastore: datastore::Client,
    own: Own,
    figures: Figures,
) -> Router {
    let (draining, traffic) = (own.draining, own.traffic);
    let ready = async move || {
        let datastore = datastore.clone().with_patience(Duration::ZERO);
        let (api, datastore) = tokio::join!(check_api(&client), check_history(&datastore));
        report(&[("shutdown", check_draining(&draining)), ("api", api), ("datastore", datastore)])
    };
    let router = Router::new().route("/readyz", get(ready));
    match figures {
        Figures::Open => router.merge(traffic_router(traffic, None)),
        Figures::Closed => router,
    }
}

/// The history of a layer that cannot be there: asks the service, its object store and, for the token, the API.
async fn check_history(datastore: &datastore::Client) -> Check {
    let nobody = datastore::Subject::new(api::SYSTEM_NAMESPACE, "is-anybody-there")
        .map_err(|error| error.to_string())?;
    answered(datastore.audit_list(&nobody)).await?;
    Ok("the datastore answers".to_owned())
}

impl Signs {
    /// Looking for something that cannot be there asks the service, its object store and, for the token, the API.
    async fn check_datastore(&self) -> Check {
        let datastore = self.datastore.clone().with_patience(Duration::ZERO);
        answered(datastore.bundle_exists(&Sha256::of(b"is anybody there?"))).await?;
        Ok("the datastore answers".to_owned())
    }

    fn check_leader(&self) -> Check {
        let leaderships = self.offices.leaderships();
        let terms: Vec<(usize, u32)> =
            leaderships.iter().enumerate().filter_map(|(at, one)| Some((at, one.term()?))).collect();
        match (terms.as_slice(), leaderships.len(), self.duty) {
            ([], _, Duty::MayStandBy) => Ok("stands by".to_owned()),
            ([], _, Duty::MustLead) => Err("does not lead yet".to_owned()),
            ([(_, term)], 1, Duty::MustLead | Duty::MayStandBy) => Ok(format!("leads, term {term}")),
            (held, of, Duty::MustLead | Duty::MayStandBy) => {
                let held: Vec<String> = held.iter().map(|(shard, _)| shard.to_string()).collect();
                Ok(format!("leads shards {} of {of}", held.join(", ")))
            }
        }
    }
}

async fn answered<T, E: Display>(asking: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn the_figures_can_be_closed() {
        // Nobody listens there, and nobody has to.
        let client =
            kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let token = datastore::client::TokenSource::File("none".into());
        let datastore = datastore::Client::new("http://127.0.0.1:1", token).unwrap();
        for (figures, expected) in [(Figures::Open, StatusCode::OK), (Figures::Closed, StatusCode::NOT_FOUND)]
        {
            let router = server_router(client.clone(), datastore.clone(), Own::default(), figures);
            let request = Request::get("/metrics").body(Body::empty()).unwrap();
            assert_eq!(router.oneshot(request).await.unwrap().status(), expected, "{figures:?}");
        }
    }
}
