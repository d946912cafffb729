//! The layer for clients in the same process. Over the port the identity comes from a token instead (`authenticating`); both leave it in
//! the request's extensions, where the API's router finds it, lets it act as somebody else if it asks for that and may, and checks rights.

use axum::Router;

use super::Identity;

/// Every request through the returned router is made by `identity`.
pub fn as_identity(router: Router, identity: Identity) -> Router {
    router.layer(axum::Extension(identity))
}
