//! What a layer whose code is an image says about that image.

use api::condition::{self, Truth};
use api::image::ImageStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{Observed, Source};

/// Whether the registry could not be read the last time.
const SYNC_FAILED: &str = "HasLastSyncFailed";
/// Whether the tag that is followed points to another image than it did.
pub const TAG_MOVED: &str = "IsImageTagMoved";

/// Why an image is planned that was not planned before.
pub(super) fn reason(image: &ImageStatus) -> String {
    let digest = image.digest.as_ref().map_or("", |digest| digest.as_str());
    // `sha256:` and the first digits.
    let short: String = digest.chars().take(19).collect();
    match (&image.tag, &image.moved_from) {
        (Some(tag), Some(_)) => format!("tag {tag} of {} was moved to another image, {short}", image.name),
        (Some(tag), None) => format!("image {}:{tag} ({short}) for {}", image.name, image.wanted),
        (None, _) => format!("image {}@{short}", image.name),
    }
}

/// A commit by its first digits, an image by its tag.
pub(super) fn short(seen: &Observed<'_>, source: &Source) -> String {
    let tag = seen.image.and_then(|image| image.status.as_ref()?.tag.as_ref());
    tag.map_or_else(|| source.relevant.short().to_owned(), ToString::to_string)
}

/// Sets the conditions that only such a layer has.
pub(super) fn tell(seen: &Observed<'_>, conditions: &mut Vec<Condition>) {
    let Some(decision) = seen.image else {
        condition::clear(conditions, SYNC_FAILED);
        condition::clear(conditions, TAG_MOVED);
        return;
    };
    let Some(image) = &decision.status else { return };
    let generation = seen.layer.metadata.generation;
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(conditions, kind, truth, reason, message, generation, seen.now);
    };
    match (&image.message, &image.digest) {
        (Some(why), _) => set(SYNC_FAILED, Truth::True, "RegistryUnreadable", why),
        (None, Some(_)) => set(SYNC_FAILED, Truth::False, "Synced", "the image is known"),
        (None, None) => set(SYNC_FAILED, Truth::Unknown, "NeverAsked", "the registry was not asked yet"),
    }
    match (&image.moved_from, &image.tag) {
        (Some(from), Some(tag)) => {
            let words = format!("tag {tag} of {} was {from} before, and is another image now", image.name);
            set(TAG_MOVED, Truth::True, "TagMoved", &words);
        }
        (Some(_) | None, _) => set(TAG_MOVED, Truth::False, "TagStayed", "the tag points to what it did"),
    }
}
