//! Rotation: which keys the stored objects are sealed with, and sealing them anew with the newest. An object is replaced as a
//! whole by the same content, so whoever reads meanwhile gets one or the other; a broken off rotation is simply begun again.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use super::keyring::Keyring;
use super::place::{Objects, STAGING};
use super::seal::{self, Sealed, Sealer};
use super::store::{self, Store};
use super::upload::PART;
use crate::key::Key;

/// Objects looked at or replaced at the same time; each holds at most one part in memory.
const AT_ONCE: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the objects could not be listed: {0}")]
    List(object_store::Error),
    #[error("{path} could not be read or replaced: {source}")]
    Object { path: String, source: object_store::Error },
    #[error("{path} is nothing that Terrane has stored; remove it, or name another place")]
    Foreign { path: String },
    #[error(transparent)]
    Content(#[from] store::Error),
}

/// What a rotation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    pub objects: u64,
    /// Those that were sealed with an older key.
    pub changed: u64,
}

/// How many objects each key seals, by its id. O(objects), one small read for each.
pub async fn uses(objects: &Objects) -> Result<BTreeMap<String, u64>, Error> {
    let ids = paths(objects).map_ok(|path| async move { key_of(objects, &path).await });
    let found: Vec<Option<String>> = ids.try_buffer_unordered(AT_ONCE).try_collect().await?;
    let mut uses = BTreeMap::new();
    for id in found.into_iter().flatten() {
        *uses.entry(id).or_default() += 1;
    }
    Ok(uses)
}

/// Seals every object with the newest key that is not yet. O(objects), and the bytes of those that change.
pub async fn reseal(objects: &Objects, keys: Keyring) -> Result<Resealed, Error> {
    let newest = keys.infos().first().map(|key| key.id.clone());
    let store = Store::new(objects.clone(), Arc::new(keys));
    let (store, newest) = (&store, &newest);
    let work = paths(objects).map_ok(|path| async move {
        match key_of(objects, &path).await? {
            None => Ok(None),
            id if &id == newest => Ok(Some(false)),
            Some(_) => renew(store, &path).await.map(Some),
        }
    });
    let mut work = std::pin::pin!(work.try_buffer_unordered(AT_ONCE));
    let mut outcome = Resealed::default();
    while let Some(changed) = work.try_next().await? {
        outcome.objects += u64::from(changed.is_some());
        outcome.changed += u64::from(changed == Some(true));
    }
    Ok(outcome)
}

fn paths(objects: &Objects) -> impl futures::Stream<Item = Result<Path, Error>> {
    let staging = Path::from(STAGING);
    objects
        .list(None)
        .map_err(Error::List)
        .map_ok(|meta| meta.location)
        .try_filter(move |path| std::future::ready(!path.prefix_matches(&staging)))
}

/// The id of the key that an object is sealed with; nothing for one that was deleted meanwhile.
async fn key_of(objects: &Objects, path: &Path) -> Result<Option<String>, Error> {
    let header = match objects.get_range(path, 0..seal::KEY_ID_END).await {
        Ok(header) => header,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(Error::Object { path: path.to_string(), source }),
    };
    match seal::key_id(&header) {
        Some(id) => Ok(Some(hex::encode(id))),
        None => Err(Error::Foreign { path: path.to_string() }),
    }
}

/// Replaces an object by the same content, sealed with the newest key and as new as if it had just been stored. Whether it was replaced: one
/// that was deleted or replaced meanwhile stays as it is.
pub(super) async fn renew(store: &Store, path: &Path) -> Result<bool, Error> {
    let failed = |source| Error::Object { path: path.to_string(), source };
    let key = Key::from_path(path.as_ref()).ok_or_else(|| Error::Foreign { path: path.to_string() })?;
    let found = match store.objects.get(path).await {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(false),
        Err(source) => return Err(failed(source)),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    let sealed = |source| store::Error::Sealed { path: path.to_string(), source };
    let mut opened = store.unseal(&key, found).await?;
    let mut out = Sealed::default();
    let digest = store::digest_bytes(&opened.sha256);
    let mut sealer = Sealer::new(&store.keys, &key, &opened.tenant, &digest, &mut out).map_err(sealed)?;
    let mut upload = None;
    while let Some(piece) = opened.content.try_next().await? {
        sealer.push(&piece, &mut out).map_err(sealed)?;
        while let Some(part) = out.part(PART) {
            let parts = match &mut upload {
                Some(parts) => parts,
                None => upload.insert(store.objects.put_multipart(path).await.map_err(failed)?),
            };
            parts.put_part(PutPayload::from_iter(part)).await.map_err(failed)?;
        }
    }
    sealer.finish(&mut out).map_err(sealed)?;
    match upload {
        // Whoever deletes a run while a large artefact of it is replaced leaves that one behind: it is sealed, and nothing refers
        // to it. Small ones are replaced only as long as they are what was read, where the store can tell.
        Some(mut parts) => {
            parts.put_part(PutPayload::from_iter(out.rest())).await.map_err(failed)?;
            parts.complete().await.map_err(failed)?;
        }
        None => {
            let options = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
            let payload = PutPayload::from_iter(out.rest());
            match store.objects.put_opts(path, payload.clone(), options).await {
                Ok(_) => {}
                Err(object_store::Error::Precondition { .. }) => return Ok(false),
                Err(
                    object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
                ) => {
                    store.objects.put(path, payload).await.map_err(failed)?;
                }
                Err(source) => return Err(failed(source)),
            }
        }
    }
    Ok(true)
}
