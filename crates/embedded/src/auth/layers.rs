//! The layers around the API's router: who asks (by token over the port, by construction in process), then impersonation.
//!
//! ```text
//! port:       authenticating ─┐
//!                             ├─► impersonating ─► the API's router, which checks rights
//! in process: as_identity ────┘
//! ```

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::{Authorizer, Identity, Refusal, impersonation};

/// For clients in the same process: every request through the returned router is made by `identity`.
pub fn as_identity(router: Router, identity: Identity) -> Router {
    router.layer(axum::Extension(identity))
}

/// Beneath both of the above and above the API's own router: acts as whom the `Impersonate-*` headers name, if allowed.
pub fn impersonating(router: Router, authorizer: Arc<Authorizer>) -> Router {
    router.layer(from_fn_with_state(authorizer, impersonate))
}

async fn impersonate(
    State(authorizer): State<Arc<Authorizer>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let requester = request.extensions().get::<Identity>().cloned().ok_or_else(Refusal::unauthorized)?;
    let identity = impersonation::resolve(&requester, request.headers_mut(), &authorizer)?;
    request.extensions_mut().insert(identity);
    Ok(next.run(request).await)
}
