//! How much a datastore keeps, for Prometheus. It is counted now and then, because counting looks at every object's name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datastore::service::{Objects, Place, usage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// How often everything is counted.
const PAUSE: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AreaLabels {
    area: &'static str,
}

/// Cheap to clone; all clones tell the same.
#[derive(Clone)]
pub(crate) struct Stored(Arc<Inner>);

struct Inner {
    objects: Objects,
    registry: Registry,
    counts: Family<AreaLabels, Gauge>,
    bytes: Family<AreaLabels, Gauge>,
    /// Where there is a directory, it and the room that is left for it.
    free: Option<(PathBuf, Gauge)>,
}

impl Stored {
    pub(crate) fn new(place: &Place, objects: Objects) -> Self {
        let mut registry = Registry::with_prefix("terrane");
        let (counts, bytes) = (Family::default(), Family::default());
        registry.register("datastore_objects", "Objects that are kept, by what they are", counts.clone());
        let help = "What is kept, as it rests, by what it is";
        registry.register_with_unit("datastore", help, Unit::Bytes, bytes.clone());
        let free = match place {
            Place::Directory(directory) => {
                let free = Gauge::default();
                let help = "Room that is left where the datastore's directory is";
                registry.register_with_unit("datastore_free", help, Unit::Bytes, free.clone());
                Some((directory.clone(), free))
            }
            Place::Bucket(_) => None,
        };
        Self(Arc::new(Inner { objects, registry, counts, bytes, free }))
    }

    /// Counts again and again; never ends.
    pub(crate) async fn keep(&self) {
        loop {
            match usage(&self.0.objects).await {
                Ok(held) => {
                    for (area, held) in held {
                        let labels = AreaLabels { area };
                        self.0.counts.get_or_create(&labels).set(clamped(held.objects));
                        self.0.bytes.get_or_create(&labels).set(clamped(held.bytes));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "what the datastore keeps could not be counted; the figures are of before");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// In the format of OpenMetrics, to be followed by what else a process tells: the mark of the end is not there.
    pub(crate) fn text(&self) -> String {
        if let Some((directory, free)) = &self.0.free
            && let Ok(found) = rustix::fs::statvfs(directory)
        {
            free.set(clamped(found.f_bavail.saturating_mul(found.f_frsize)));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode_registry(&mut text, &self.0.registry);
        text
    }
}

fn clamped(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
