//! The datastore without a socket: its client's requests go straight to its router, through whatever layers are around it.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use datastore::client::{Transport, Undelivered};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};

use super::{Actor, Seam};

/// Carries one actor's requests to a router in this process.
#[derive(Clone, Debug)]
pub struct InProcess {
    router: Router,
    actor: Actor,
}

impl InProcess {
    pub fn new(router: Router, actor: Actor) -> Self {
        Self { router, actor }
    }
}

impl Transport for InProcess {
    fn send(
        &self,
        request: Request<datastore::client::Body>,
    ) -> BoxFuture<'static, Result<Response<datastore::client::Body>, Undelivered>> {
        let router = self.router.clone();
        let service =
            self.actor.layer(Seam::Datastore).layer(tower::service_fn(move |request: Request<Body>| {
                let router = router.clone();
                async move {
                    Ok::<Response<Body>, Infallible>(
                        router.oneshot(request).await.unwrap_or_else(|never| match never {}),
                    )
                }
            }));
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes().to_vec();
            let response = service.oneshot(Request::from_parts(parts, Body::from(body))).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await?.to_bytes().to_vec();
            Ok(Response::from_parts(parts, body.into()))
        })
    }
}
