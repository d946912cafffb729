//! What is counted about requests to a role that serves others, for Prometheus. No label holds the name of an object.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use server::Deliveries;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    code: u16,
}

/// Cheap to clone; all clones count together.
#[derive(Clone)]
pub(crate) struct Traffic(Arc<Inner>);

struct Inner {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Histogram,
    under_way: Gauge,
    deliveries: Deliveries,
}

impl Default for Traffic {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("terrane");
        let requests = Family::default();
        let help = "Requests that were answered, by the code of the answer";
        registry.register("http_requests", help, requests.clone());
        // 1 ms to about 16 s.
        let durations = Histogram::new(exponential_buckets(0.001, 4.0, 8));
        let help = "How long requests took until their answer began";
        registry.register_with_unit("http_request_duration", help, Unit::Seconds, durations.clone());
        let under_way = Gauge::default();
        registry.register(
            "http_requests_under_way",
            "Requests whose answer has not begun",
            under_way.clone(),
        );
        Self(Arc::new(Inner { registry, requests, durations, under_way, deliveries: Deliveries::default() }))
    }
}

/// Counts a request as under way for as long as it is, also when whoever asked goes away.
struct UnderWay<'a>(&'a Gauge);

impl<'a> UnderWay<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Traffic {
    /// The same service, with its requests counted.
    pub(crate) fn count(&self, service: Router) -> Router {
        service.layer(middleware::from_fn_with_state(self.clone(), counted))
    }

    /// Where deliveries of webhooks are counted, beside the requests that bring them.
    pub(crate) fn deliveries(&self) -> Deliveries {
        self.0.deliveries.clone()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = self.0.deliveries.text();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0.registry);
        text
    }
}

async fn counted(State(traffic): State<Traffic>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = known(request.method());
    let under_way = UnderWay::new(&traffic.0.under_way);
    let response = next.run(request).await;
    drop(under_way);
    traffic.0.durations.observe(began.elapsed().as_secs_f64());
    traffic.0.requests.get_or_create(&Answered { method, code: response.status().as_u16() }).inc();
    response
}

/// Anybody can make up a method; each would be a series of its own.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
