//! Handlers for bundles. Everything else is deleted with the run that it belongs to; a bundle belongs to whichever runs name it, and only the
//! controllers know those. So this side keeps when each was last used, and deletes one only if that is as long ago as the caller believes.
//!
//! **A use is written down as the time at which the object was stored**: it is replaced by the same content, no more than twice a day. In one
//! process that and deleting take turns. Of several on one bucket, one may delete a bundle in the moment in which another writes its use
//! down, after more than a day without one; then the attempt that was about to name it finds nothing, fails, and its next one stores the
//! bundle again.

use std::sync::Arc;
use std::time::Duration;

use api::bundle::{Bundle, Bundles, RENEWED};
use api::text::Sha256;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures::TryStreamExt;
use jiff::Timestamp;
use object_store::path::Path as ObjectPath;
use serde::Deserialize;

use super::access::Operation;
use super::artefacts::{answer, stored};
use super::reseal::{self, renew};
use super::seal::content_size;
use super::store::{self, Put, Writing, written_at};
use super::{Error, Service, announced_digest};
use crate::key::Key;

type Shared = State<Arc<Service>>;

pub(super) async fn get(
    State(service): Shared,
    Path(sha256): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let sha256 = digest(sha256)?;
    service.authorise(&headers, &Operation::BundleRead(sha256.clone())).await?;
    Ok(answer(service.store.open(&Key::Bundle(sha256)).await?))
}

pub(super) async fn put(
    State(service): Shared,
    Path(sha256): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let sha256 = digest(sha256)?;
    service.authorise(&headers, &Operation::BundleWrite).await?;
    if announced_digest(&headers)? != sha256 {
        return Err(Error::BadRequest("a bundle is named by its own sha256".to_owned()));
    }
    // A bundle is shared by all layers of a repository and bound to no namespace; who may read it follows from the
    // description that names it.
    let key = Key::Bundle(sha256.clone());
    let writing = Writing { key: &key, tenant: "", sha256: &sha256, after: None };
    let put = service.store.put(writing, request.into_body().into_data_stream()).await?;
    match put {
        Put::Created => {}
        // It may be old, and just be going.
        Put::Same if use_now(&service, &key).await? => {}
        Put::Same => return Err(store::Error::Underway(key.path()).into()),
    }
    Ok(stored(put))
}

/// Whoever asks is about to name the bundle in a run: it stays for long enough. Not found where it is not there.
pub(super) async fn keep(
    State(service): Shared,
    Path(sha256): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Error> {
    let key = Key::Bundle(digest(sha256)?);
    service.authorise(&headers, &Operation::BundleWrite).await?;
    if use_now(&service, &key).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(store::Error::NotFound(key.path()).into())
    }
}

/// Every bundle, and when it was last used. O(bundles), a request to a bucket for each thousand.
pub(super) async fn list(State(service): Shared, headers: HeaderMap) -> Result<axum::Json<Bundles>, Error> {
    service.authorise(&headers, &Operation::BundleList).await?;
    let at = Timestamp::now();
    let mut bundles = Vec::new();
    let mut found = service.store.objects.list(Some(&ObjectPath::from(Key::BUNDLES)));
    let failed = |source| store::Error::Storage { path: Key::BUNDLES.to_owned(), source };
    while let Some(meta) = found.try_next().await.map_err(failed)? {
        let Some(Key::Bundle(sha256)) = Key::from_path(meta.location.as_ref()) else { continue };
        let size = content_size(meta.size).unwrap_or_default();
        bundles.push(Bundle { sha256, size, used_at: written_at(&meta) });
    }
    Ok(axum::Json(Bundles { at, bundles }))
}

#[derive(Deserialize)]
pub(super) struct Unused {
    unused_since: Option<Timestamp>,
}

/// Deletes a bundle that was not used since then; one that was stays. Repeating it changes nothing.
pub(super) async fn delete(
    State(service): Shared,
    Path(sha256): Path<String>,
    Query(Unused { unused_since }): Query<Unused>,
    headers: HeaderMap,
) -> Result<StatusCode, Error> {
    let key = Key::Bundle(digest(sha256)?);
    service.authorise(&headers, &Operation::BundleDelete).await?;
    let since = unused_since.ok_or_else(|| {
        Error::BadRequest("say since when the bundle was not used, as unused_since=TIME".to_owned())
    })?;
    let _turn = service.bundle_uses.lock().await;
    match service.store.written_at(&key).await? {
        Some(used) if used > since => {
            Err(Error::Conflict(format!("{} was used at {used}, so it stays", key.path())))
        }
        Some(_) => {
            service.store.delete(&key).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        None => Ok(StatusCode::NO_CONTENT),
    }
}

/// Whether the bundle is there. If so it is as good as new. O(1), and once in a while O(its size).
async fn use_now(service: &Service, key: &Key) -> Result<bool, Error> {
    match service.store.written_at(key).await? {
        None => return Ok(false),
        Some(at) if age(at) < RENEWED => return Ok(true),
        Some(_) => {}
    }
    let _turn = service.bundle_uses.lock().await;
    // Others may have asked for the same meanwhile.
    if service.store.written_at(key).await?.is_some_and(|at| age(at) < RENEWED) {
        return Ok(true);
    }
    let renewed =
        renew(&service.store, &ObjectPath::from(key.path())).await.map_err(|error| match error {
            reseal::Error::Content(error) => error,
            reseal::Error::List(source) | reseal::Error::Object { source, .. } => {
                store::Error::of(&key.path(), source)
            }
            reseal::Error::Foreign { path } => store::Error::NotFound(path),
        })?;
    // It was gone, or another process was faster.
    Ok(renewed || service.store.exists(key).await?)
}

/// Nothing for a time that is still to come.
fn age(at: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(at)).unwrap_or_default()
}

fn digest(text: String) -> Result<Sha256, Error> {
    Sha256::new(text).map_err(|error| Error::BadRequest(error.to_string()))
}
