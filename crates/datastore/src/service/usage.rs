//! How much is kept, and of what. Nothing is opened: names and sizes are enough.

use std::collections::BTreeMap;

use futures::TryStreamExt;

use super::place::{Objects, STAGING};

/// What objects are kept for: the first part of their names. `other` is nothing of ours.
pub const AREAS: [&str; 6] = ["audit", "bundles", "runs", STAGING, "states", "other"];

/// What is kept in one area, as it rests: sealed, which is a little more than its content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub objects: u64,
    pub bytes: u64,
}

/// What is kept, by area, empty ones included. O(objects), a request to a bucket for each thousand.
pub async fn usage(objects: &Objects) -> Result<BTreeMap<&'static str, Held>, object_store::Error> {
    let mut held: BTreeMap<&'static str, Held> = AREAS.map(|area| (area, Held::default())).into();
    let mut found = objects.list(None);
    while let Some(meta) = found.try_next().await? {
        let first = meta.location.parts().next();
        let area = AREAS.into_iter().find(|area| first.as_ref().is_some_and(|part| part.as_ref() == *area));
        let area = held.entry(area.unwrap_or("other")).or_default();
        area.objects += 1;
        area.bytes = area.bytes.saturating_add(meta.size);
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use object_store::ObjectStoreExt;
    use object_store::path::Path;

    use super::*;
    use crate::service::Options;

    #[tokio::test]
    async fn each_area_is_counted_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let objects = Options::local_objects(directory.path()).unwrap();
        for (path, size) in
            [("runs/a/1/plan", 10), ("runs/a/1/log/0", 5), ("states/a/steps/1", 7), ("odd", 1)]
        {
            objects.put(&Path::from(path), vec![0; size].into()).await.unwrap();
        }
        let held = usage(&objects).await.unwrap();
        let of = |area: &str| (held[area].objects, held[area].bytes);
        assert_eq!((of("runs"), of("states"), of("other")), ((2, 15), (1, 7), (1, 1)));
        assert_eq!((of("bundles"), held.len()), ((0, 0), AREAS.len()));
    }
}
