//! The HTTP service for people and programs: layers, runs, repositories, logs, plans, outputs, states and the audit, with the rights that
//! the Kubernetes API gives to whoever asks.
//!
//! It decides nothing about layers and keeps nothing that could not be read again: who asks is settled by a TokenReview or a credential of
//! the machine, what they may by a SubjectAccessReview (see [`Reviews`] for a service of a few namespaces), and what they change is
//! written in their own name. Bytes come from the datastore as a stream.
//!
//! Webhooks of Git hosts (`webhooks`) are the one thing that nobody asks in their own name.

mod answers;
mod cache;
pub mod credential;
mod login;
mod may;
mod paging;
mod person;
mod recent;
mod refusal;
mod swagger;
mod text;
mod tfstacks;
mod v1;
mod views;
mod webhooks;

use std::sync::Arc;

use api::{TerraformLayer, TerraformRepository, TerraformRun};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use cache::Cache;
use views::{LayerSummary, Repository, RunSummary};

pub use login::{LINK, Local, SESSION};
pub use person::Reviews;
pub use refusal::{Problem, Refusal};
pub use webhooks::Deliveries;

/// The largest body of a request, but for states.
pub(crate) const BODY_LIMIT: usize = 1024 * 1024;

/// What the service is made of.
#[derive(Clone)]
pub struct Options {
    /// May create what `reviews` needs, and read, list and watch layers, runs and repositories; for webhooks also read the Secret
    /// [`api::service::WEBHOOK_SECRETS`] and patch the status of repositories.
    pub client: kube::Client,
    /// Sends no credentials of its own: what a person changes is written with that person's token.
    pub bare: kube::Client,
    pub reviews: Reviews,
    /// Speaks for Terrane's controllers.
    pub datastore: datastore::Client,
    /// Sessions and tokens, where this is the Terrane of one machine.
    pub local: Option<Local>,
    /// Where deliveries of webhooks are counted.
    pub deliveries: Deliveries,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("datastore", &self.datastore).finish_non_exhaustive()
    }
}

struct Service {
    client: kube::Client,
    bare: kube::Client,
    reviews: Reviews,
    datastore: datastore::Client,
    local: Option<Local>,
    layers: Cache<LayerSummary>,
    runs: Cache<RunSummary>,
    repositories: Cache<Repository>,
    recent: recent::Answers,
    deliveries: Deliveries,
    limits: webhooks::Limits,
    keys: webhooks::Keys,
}

/// The service as a router, to be merged with others on one port, and what must be polled for its lists to be true. It does not end.
pub fn service(options: Options) -> (Router, impl Future<Output = ()> + Send) {
    let Options { client, bare, reviews, datastore, local, deliveries } = options;
    let service = Arc::new(Service {
        client: client.clone(),
        bare,
        reviews: reviews.clone(),
        datastore,
        local,
        layers: Cache::new(),
        runs: Cache::new(),
        repositories: Cache::new(),
        recent: recent::Answers::default(),
        deliveries,
        limits: webhooks::Limits::default(),
        keys: webhooks::Keys::default(),
    });
    let (layers, runs, repositories) =
        (service.layers.clone(), service.runs.clone(), service.repositories.clone());
    let keeping = async move {
        tokio::join!(
            layers.keep::<TerraformLayer>(client.clone(), reviews.clone()),
            runs.keep::<TerraformRun>(client.clone(), reviews.clone()),
            repositories.keep::<TerraformRepository>(client, reviews),
        );
    };
    let (routes, document) = described().split_for_parts();
    let router = routes
        .merge(swagger::router(finished(document)))
        .fallback(async || {
            Refusal::NotFound("there is nothing at this path; /swagger shows what there is".to_owned())
        })
        .method_not_allowed_fallback(async || {
            Refusal::MethodNotAllowed(
                "the path does not know this method; /swagger shows which it knows".to_owned(),
            )
        })
        .layer(middleware::from_fn(guarded))
        .with_state(service);
    (router, keeping)
}

/// What the service answers to, as OpenAPI 3.1.
pub fn document() -> OpenApi {
    finished(described().into_openapi())
}

fn described() -> OpenApiRouter<Arc<Service>> {
    let limited = OpenApiRouter::new()
        .routes(routes!(login::login))
        .routes(routes!(login::session, login::logout))
        .routes(routes!(v1::layers::list))
        .routes(routes!(v1::layers::one))
        .routes(routes!(v1::layers::sync))
        .routes(routes!(v1::layers::suspend))
        .routes(routes!(v1::layers::resume))
        .routes(routes!(v1::approvals::list, v1::approvals::decide))
        .routes(routes!(v1::history::history))
        .routes(routes!(v1::states::outputs))
        .routes(routes!(v1::states::versions))
        .routes(routes!(v1::states::version))
        .routes(routes!(v1::states::lock, v1::unlock::unlock))
        .routes(routes!(v1::runs::list))
        .routes(routes!(v1::runs::one))
        .routes(routes!(v1::runs::cancel))
        .routes(routes!(v1::artefacts::log))
        .routes(routes!(v1::log_events::log_events))
        .routes(routes!(v1::artefacts::plan_text))
        .routes(routes!(v1::artefacts::plan_json))
        .routes(routes!(v1::repositories::list))
        .routes(routes!(v1::repositories::one))
        .routes(routes!(v1::queue::list))
        .routes(routes!(v1::events::list))
        .routes(routes!(tfstacks::stacks::list, tfstacks::create::create))
        .routes(routes!(tfstacks::templates::list))
        .routes(routes!(
            tfstacks::stacks::one,
            tfstacks::update::replace,
            tfstacks::update::merge,
            tfstacks::stacks::delete
        ))
        .routes(routes!(tfstacks::requests::one))
        .routes(routes!(tfstacks::stacks::cancel))
        .routes(routes!(tfstacks::parts::logs))
        .routes(routes!(tfstacks::parts::log_events))
        .routes(routes!(tfstacks::parts::outputs))
        .layer(DefaultBodyLimit::max(BODY_LIMIT));
    // A state is streamed on to the datastore, which has a limit of its own.
    let states = OpenApiRouter::new()
        .routes(routes!(v1::states::state, v1::states::state_put))
        .layer(DefaultBodyLimit::disable());
    // A delivery is read by a limit of its own, after its headers were looked at.
    let webhooks = OpenApiRouter::new()
        .routes(routes!(webhooks::take))
        .routes(routes!(webhooks::take_any))
        .layer(DefaultBodyLimit::disable());
    let own = OpenApiBuilder::new().build();
    OpenApiRouter::with_openapi(own).merge(limited).merge(states).merge(webhooks)
}

/// What all operations have in common.
fn finished(mut document: OpenApi) -> OpenApi {
    // The version of the interface; that of the program is for those who have proved who they are.
    document.info = InfoBuilder::new()
        .title("Terrane")
        .version("v1")
        .description(Some(
            "Keeps infrastructure equal to its code. Every refusal is a problem as RFC 9457 has it.",
        ))
        .build();
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `terrane token create`, or one that the Kubernetes API knows"))
        .build();
    components.security_schemes.insert("bearer".to_owned(), SecurityScheme::Http(bearer).into());
    let cookie = ApiKeyValue::with_description(
        "terrane_PORT",
        "The session that /login opens; what changes something also needs the header x-terrane-csrf",
    );
    components
        .security_schemes
        .insert("session".to_owned(), SecurityScheme::ApiKey(ApiKey::Cookie(cookie)).into());
    let (name, schema) =
        (<Problem as utoipa::ToSchema>::name().into_owned(), <Problem as utoipa::PartialSchema>::schema());
    let mut parts = Vec::new();
    <Problem as utoipa::ToSchema>::schemas(&mut parts);
    components.schemas.extend(parts.into_iter().chain([(name, schema)]));
    let nothing: [String; 0] = [];
    document.security = Some(vec![
        SecurityRequirement::new("bearer", nothing.clone()),
        SecurityRequirement::new("session", nothing),
    ]);
    let problem = ResponseBuilder::new()
        .description("A problem")
        .content(
            "application/problem+json",
            ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build(),
        )
        .build();
    for item in document.paths.paths.values_mut() {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in all.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.iter_mut().for_each(|(status, response)| describe(status, response));
            responses.insert("default".to_owned(), problem.clone().into());
        }
    }
    document
}

/// OpenAPI wants words for every answer; without others they are those of the status.
fn describe(status: &str, response: &mut RefOr<utoipa::openapi::Response>) {
    if let RefOr::T(response) = response
        && response.description.is_empty()
    {
        let status = status.parse::<StatusCode>().ok();
        response.description =
            status.and_then(|status| status.canonical_reason()).unwrap_or("As asked").to_owned();
    }
}

/// What every answer tells a browser: to guess nothing, to show it in no frame of others, to keep it nowhere, and to say nowhere that it
/// was here.
async fn guarded(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
