//! One request from start to end: where it leads, who asks and whether they may, then the verb.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};

use super::negotiate::{self, Accept};
use super::request::{self, ListOptions, Params, ResourcePath, Route, Verb};
use super::status::{Result, Status};
use super::{Api, discovery, list, openapi, pod_log, verbs, watch};
use crate::auth::{Attributes, Identity, Refusal, impersonation};
use crate::kinds::strategy::Part;
use crate::kinds::{Builtin, Kind, Kinds};
use crate::store::Snapshot;

/// A request for a resource, with everything that a verb needs but the body.
pub(crate) struct Call {
    pub verb: Verb,
    pub path: ResourcePath,
    pub params: Params,
    pub headers: HeaderMap,
    pub identity: Identity,
    pub kind: Arc<Kind>,
    pub kinds: Arc<Kinds>,
    /// What was stored when the request came in.
    pub snapshot: Snapshot,
    pub accept: Accept,
}

impl Call {
    /// The namespace of the objects asked for: `None` for all, or where there are none.
    pub fn namespace(&self) -> Option<&str> {
        Some(self.path.namespace.as_str()).filter(|ns| !ns.is_empty() && self.kind.is_namespaced())
    }

    pub fn key(&self) -> crate::store::Key {
        crate::store::Key::new(
            self.kind.collection.clone(),
            self.namespace().unwrap_or_default(),
            &self.path.name,
        )
    }
}

pub(crate) async fn serve(State(api): State<Arc<Api>>, request: Request) -> Response {
    let head_only = request.method() == Method::HEAD;
    let mut response = match answer(&api, request).await {
        Ok(response) => response,
        Err(status) => status.into_response(),
    };
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache, private"));
    if head_only { response.map(|_| Body::empty()) } else { response }
}

async fn answer(api: &Arc<Api>, request: Request) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let requester = parts.extensions.get::<Identity>().cloned().ok_or_else(Refusal::unauthorized)?;
    let params = Params::parse(&parts.uri);
    let path = match Route::parse(parts.uri.path()) {
        Route::Resource(path) => path,
        Route::Other => {
            return other(api, &parts.method, parts.uri.path(), &params, parts.headers, &requester);
        }
    };
    let Some(verb) = request::verb(&parts.method, &path, &params) else {
        return Err(Status::method_not_allowed());
    };
    let identity = authorize(
        api,
        &requester,
        &mut parts.headers,
        &path.attributes(verb, path.asked_name(verb, &params)),
    )?;
    let snapshot = api.store.snapshot();
    let kinds = api.registry.at(&snapshot);
    let Some(kind) = kinds.find(&path.group, &path.version, &path.resource).cloned() else {
        // Within a group that is built in, an unknown resource is the API's to refuse; elsewhere nobody listens.
        let known = kinds.builtin().any(|kind| *kind.group == *path.group && *kind.version == *path.version);
        return if known { Err(Status::unknown_resource()) } else { Ok(not_served()) };
    };
    if kind.builtin().is_none()
        && kind.is_namespaced()
        && path.namespace.is_empty()
        && !matches!(verb, Verb::List | Verb::Watch)
    {
        return Ok(not_served());
    }
    check_path(&kind, &path, verb)?;
    let accept = negotiate::accept(&kind, &parts.headers, &params)?;
    let call = Call { verb, path, params, headers: parts.headers, identity, kind, kinds, snapshot, accept };
    dispatch(api, call, body).await
}

/// The one place where rights are checked: those of who is acted as, once it is clear that the requester may act as them.
fn authorize(
    api: &Api,
    requester: &Identity,
    headers: &mut HeaderMap,
    attributes: &Attributes<'_>,
) -> Result<Identity> {
    let authorizer = &api.options.authorizer;
    let identity = impersonation::resolve(requester, headers, attributes, authorizer)?;
    authorizer.require(&identity, attributes)?;
    Ok(identity)
}

/// Whether the path has the form that this kind's objects have.
fn check_path(kind: &Kind, path: &ResourcePath, verb: Verb) -> Result<()> {
    let in_namespace = !path.namespace.is_empty() && &*kind.plural != "namespaces";
    if in_namespace && !kind.is_namespaced() {
        return Err(Status::unknown_resource());
    }
    if path.subresource.is_empty() {
        let named = !path.name.is_empty();
        let fits = match verb {
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => named,
            Verb::Create => !named && (in_namespace || !kind.is_namespaced()),
            Verb::List | Verb::Watch => true,
            Verb::DeleteCollection => in_namespace || !kind.is_namespaced(),
        };
        let known = kind.verbs.contains(&verb.as_str());
        // An object of a namespaced kind has no path outside a namespace.
        if named && kind.is_namespaced() && !in_namespace {
            return Err(Status::unknown_resource());
        }
        return match kind.builtin() {
            _ if fits && known => Ok(()),
            Some(Builtin::Service) if fits => Err(Status::no_services(verb.as_str())),
            _ => Err(Status::method_not_allowed()),
        };
    }
    match kind.subresource(&path.subresource) {
        None if kind.builtin().is_none() => Err(Status::not_found(kind, &path.name)),
        None if matches!(kind.builtin(), Some(Builtin::Pod)) && is_session(&path.subresource) => {
            Err(Status::no_sessions(&path.subresource, &path.name))
        }
        None => Err(Status::unknown_resource()),
        Some(sub) if sub.verbs.contains(&verb.as_str()) => Ok(()),
        Some(_) => Err(Status::method_not_allowed()),
    }
}

/// What would connect a client with a container, as `kubectl exec`, `cp`, `attach` and `port-forward` want it.
fn is_session(subresource: &str) -> bool {
    matches!(subresource, "exec" | "attach" | "portforward" | "proxy")
}

async fn dispatch(api: &Arc<Api>, call: Call, body: Body) -> Result<Response> {
    let part = match call.path.subresource.as_str() {
        "" => Part::Main,
        "status" => Part::Status,
        "finalize" => Part::Finalize,
        "log" => return pod_log::serve(api, &call).await,
        "binding" => return verbs::bind::serve(api, call, body).await,
        "token" => return verbs::review::token_request(api, call, body).await,
        _ => return Err(Status::unknown_resource()),
    };
    match call.verb {
        Verb::Get => verbs::get::serve(&call),
        Verb::List => list::serve(api, &call, &ListOptions::parse(&call.params, Verb::List)?),
        Verb::Watch => watch::serve(api, call),
        Verb::Create => match call.kind.builtin() {
            Some(
                Builtin::TokenReview
                | Builtin::SelfSubjectReview
                | Builtin::SubjectAccessReview
                | Builtin::LocalSubjectAccessReview
                | Builtin::SelfSubjectAccessReview
                | Builtin::SelfSubjectRulesReview,
            ) => verbs::review::serve(api, call, body).await,
            Some(Builtin::Binding) => verbs::bind::serve(api, call, body).await,
            _ => verbs::create::serve(api, call, body).await,
        },
        Verb::Update => verbs::update::serve(api, call, part, body).await,
        Verb::Patch => verbs::patch::serve(api, call, part, body).await,
        Verb::Delete => verbs::delete::serve(api, call, body).await,
        Verb::DeleteCollection => verbs::delete::serve_collection(api, call, body).await,
    }
}

fn other(
    api: &Api,
    method: &Method,
    path: &str,
    params: &Params,
    mut headers: HeaderMap,
    requester: &Identity,
) -> Result<Response> {
    let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let health = matches!(path, "/healthz" | "/livez" | "/readyz")
        || ["/livez/", "/readyz/", "/healthz/"].iter().any(|p| path.starts_with(p));
    if !health {
        let verb = method.as_str().to_ascii_lowercase();
        authorize(api, requester, &mut headers, &Attributes::path(&verb, path))?;
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    if health {
        return Ok(discovery::health(path, params));
    }
    let kinds = api.registry.at(&api.store.snapshot());
    if path == "/openapi/v2" {
        return openapi::v2::serve(&kinds, &headers);
    }
    if let Some(rest) = path.strip_prefix("/openapi/v3") {
        return openapi::serve(&kinds, rest).map_or_else(|| Ok(not_served()), Ok);
    }
    discovery::serve(&kinds, path, &headers)?.map_or_else(|| Ok(not_served()), Ok)
}

/// What a path gets that leads nowhere: plain text, as the real server answers before any API takes over.
fn not_served() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response()
}
