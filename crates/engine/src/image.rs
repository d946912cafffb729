//! When the registry of a layer's image is asked, and which image the layer is pinned to.
//!
//! What was found stands in the layer's status, so a new process asks nobody before it is time. A look that fails leaves the layer with
//! the image that it has, and says so.

use std::time::Duration;

use api::image::{ImageSource, ImageStatus, PinnedImage, Wanted};
use api::text::{CommitId, ImageDigest, ImageTag};
use api::{TerraformLayer, annotation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::layer::Source;
use crate::{Read, Settings, Wake, later, schedule};

/// How soon a registry is asked again that could not be read, where it is not asked more often anyway.
const FAILED_AGAIN: Duration = Duration::from_secs(120);

/// What one look at a registry found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub at: Timestamp,
    /// Or why the registry could not be read.
    pub found: Result<Found, String>,
    /// The value of the sync annotation that it was begun for.
    pub asked: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub tag: Option<ImageTag>,
    pub digest: ImageDigest,
}

#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub layer: &'a TerraformLayer,
    /// The newest look for this very wish since this process started.
    pub look: Option<&'a Look>,
    /// A look is under way.
    pub looking: bool,
    pub settings: &'a Settings,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Ask the registry now. It answers this value of the sync annotation, if there is one.
    pub look: Option<Option<String>>,
    /// The image that the layer is pinned to.
    pub source: Read<Result<Source, String>>,
    pub status: Option<ImageStatus>,
    pub wake: Wake,
}

/// Nothing for a layer whose code is in a repository.
pub fn decide(seen: &Observed<'_>) -> Option<Decision> {
    let image = seen.layer.spec.image.as_ref()?;
    let (place, wanted) = match (image.place(), image.wanted()) {
        (Ok(place), Ok(wanted)) => (place, wanted),
        (Err(why), _) | (_, Err(why)) => {
            let source = Read::Present(Err(why.to_string()));
            return Some(Decision { look: None, source, status: None, wake: Wake::OnChange });
        }
    };
    let unknown = ImageStatus {
        name: place.to_string(),
        wanted: wanted.to_string(),
        tag: None,
        digest: None,
        moved_from: None,
        looked_at: None,
        message: None,
        asked: None,
    };
    if let Wanted::Digest(digest) = wanted {
        let status = ImageStatus { digest: Some(digest), ..unknown };
        let source = source(&status);
        return Some(Decision { look: None, source, status: Some(status), wake: Wake::OnChange });
    }
    // Of another image, or of another constraint, nothing is known.
    let before = seen.layer.status.as_ref().and_then(|status| status.image.clone());
    let before = before.filter(|known| known.name == unknown.name && known.wanted == unknown.wanted);
    let status = told(seen, before.unwrap_or(unknown));
    let wish = seen.layer.metadata.annotations.as_ref().and_then(|all| all.get(annotation::SYNC)).cloned();
    let is_asked = wish.is_some() && wish != status.asked;
    let due = due(seen, image, &status);
    let is_resting = seen.layer.spec.suspend || seen.layer.metadata.deletion_timestamp.is_some();
    let is_due = !is_resting && (is_asked || due <= seen.now);
    let (look, wake) = match () {
        () if is_resting || seen.looking => (None, Wake::OnChange),
        () if is_due => (Some(wish), Wake::OnChange),
        () => (None, Wake::At(due)),
    };
    // Whoever asks by hand wants to know what there is now.
    let source = if is_asked && !is_resting { Read::Unknown } else { source(&status) };
    Some(Decision { look, source, status: Some(status), wake })
}

/// What is known after the newest look. A registry that fails in the same way again is nothing to write.
fn told(seen: &Observed<'_>, before: ImageStatus) -> ImageStatus {
    let Some(look) = seen.look else { return before };
    let looked_at = Time(whole_second(look.at));
    if before.looked_at.as_ref().is_some_and(|known| known.0 > looked_at.0) {
        return before;
    }
    let asked = look.asked.clone().or_else(|| before.asked.clone());
    let found = match &look.found {
        Ok(found) => found,
        Err(why) => return ImageStatus { message: Some(why.clone()), asked, ..before },
    };
    let is_same_tag = before.tag == found.tag;
    let moved_from = match before.digest {
        Some(digest) if is_same_tag && digest != found.digest => Some(digest),
        Some(_) if is_same_tag => before.moved_from,
        Some(_) | None => None,
    };
    ImageStatus {
        tag: found.tag.clone(),
        digest: Some(found.digest.clone()),
        moved_from,
        looked_at: Some(looked_at),
        message: None,
        asked,
        ..before
    }
}

fn source(status: &ImageStatus) -> Read<Result<Source, String>> {
    match (status.digest.as_ref().and_then(ImageDigest::revision), &status.message) {
        (Some(revision), _) => {
            Read::Present(Ok(Source { head: revision.clone(), relevant: revision, left: None }))
        }
        (None, Some(why)) => Read::Present(Err(why.clone())),
        (None, None) => Read::Unknown,
    }
}

/// When the registry is asked again by itself.
fn due(seen: &Observed<'_>, image: &ImageSource, status: &ImageStatus) -> Timestamp {
    let read = status.looked_at.as_ref().map(|at| at.0);
    let Some(last) = read.max(seen.look.map(|look| look.at)) else { return seen.now };
    let interval = image.interval.map_or(seen.settings.image_interval, |span| span.get());
    let interval = interval.max(Duration::from_secs(1));
    let interval = if status.message.is_some() { interval.min(FAILED_AGAIN) } else { interval };
    let share = schedule::share(seen.layer.metadata.uid.as_deref().unwrap_or_default());
    later(last, schedule::jittered(interval, share))
}

/// The image that a revision of a layer is: that of an earlier run of it, else what is known now.
pub(crate) fn pinned<'a>(
    layer: &TerraformLayer,
    known: Option<&ImageStatus>,
    runs: impl IntoIterator<Item = &'a api::TerraformRun>,
    revision: &CommitId,
) -> Option<PinnedImage> {
    let source = layer.spec.image.as_ref()?;
    if let Some(run) = runs.into_iter().find(|run| &run.spec.layer.revision == revision) {
        return run.spec.image.clone();
    }
    let place = source.place().ok()?;
    let digest = ImageDigest::of_revision(revision)?;
    let tag =
        known.filter(|known| known.digest.as_ref() == Some(&digest)).and_then(|known| known.tag.clone());
    Some(PinnedImage { host: place.host, path: place.path, tag, digest })
}

/// Status holds whole seconds; a rounded value compares equal to what the API gives back.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
