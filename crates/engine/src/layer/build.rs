//! The image that a layer's code is built into: which one a commit needs, and when it is built. A build is a run like others, and what
//! it came to is read from the runs: the same wish is the same run, and an image that is known is not built again.

use api::TerraformRun;
use api::image::{BuiltImage, ImageBuilder, ImageStatus, PinnedImage};
use api::layer::LayerState;
use api::run::{Action, Trigger, TriggerKind};
use api::text::{CommitId, ImageTag};

use super::history::{History, after, finished_at, has_failed, has_succeeded, ready_message, result_reason};
use super::history::{is_terminal, result_message};
use super::need::{Need, Standing, brief, hold};
use super::runs::{Asked, build_name, start_build};
use super::{Observed, Source, name_of, policy};
use crate::run::SUPERSEDED;
use crate::{Read, Wake, later, names};

/// What is to be done before this commit can be planned; nothing once its image is there, or where none is asked for.
pub(super) fn need(seen: &Observed<'_>, history: &History<'_>, source: &Source) -> Option<Need> {
    let revision = &source.relevant;
    let stuck = |reason, why: String| {
        Some(hold(LayerState::PlanNeeded, reason, why, Standing::Stuck, Wake::OnChange))
    };
    let image = match wish(seen, revision)? {
        Ok(image) => image,
        Err(why) => return stuck("ImageRefused", why),
    };
    if built(seen, revision).is_some() {
        return None;
    }
    if seen.settings.builds.is_none() {
        let why = format!(
            "image {image} is not there, and images are not built here; an administrator can let them be, by --build-images"
        );
        return stuck("BuildsOff", why);
    }
    let asked = Asked::Sync.unanswered(seen, history);
    let mut failed = newest_failed(history, &image, revision);
    let mut token = asked.clone().or_else(|| failed.map(after)).unwrap_or_default();
    // Of builds that ended in the same second each is followed once. O(runs kept).
    for _ in 0..=history.newest_first.len() {
        match history.named(&build_name(seen, &image, revision, &token)) {
            Some(run) => {
                failed = Some(run);
                token = after(run);
            }
            None => break,
        }
    }
    let again = failed
        .filter(|run| asked.is_none() && result_reason(run) != SUPERSEDED)
        .map(|run| (run, later(finished_at(run).unwrap_or(seen.now), policy::drift_interval(seen))));
    if let Some((run, again)) = again.filter(|(_, again)| seen.now < *again) {
        let why = format!(
            "the image was not built; a new commit or terrane sync {} tries again: {}",
            name_of(seen.layer),
            brief(result_message(run))
        );
        return Some(hold(LayerState::PlanNeeded, "BuildFailed", why, Standing::Stuck, Wake::At(again)));
    }
    let (kind, reason) = match asked {
        Some(_) => (TriggerKind::Manual, "asked for by hand".to_owned()),
        None => (TriggerKind::Commit, format!("image {image} is to hold commit {}", revision.short())),
    };
    Some(start_build(seen, image, revision, &token, Trigger { kind, by: None, reason }))
}

/// The image that a commit is built into, by name; or why it cannot be.
fn wish(seen: &Observed<'_>, revision: &CommitId) -> Option<Result<BuiltImage, String>> {
    let asked = seen.layer.spec.build.as_ref()?;
    let place = match asked.place() {
        Ok(place) => place,
        Err(why) => return Some(Err(why.to_string())),
    };
    let default = seen.settings.builds.as_ref().and_then(|builds| builds.base.clone());
    let base = asked.base.clone().or(default);
    let dockerfile = asked.dockerfile.clone();
    let builder = match (&seen.settings.builds, &dockerfile) {
        (Some(builds), None) => builds.builder.kind(),
        (Some(builds), Some(dockerfile)) => match builds.builder.kind() {
            ImageBuilder::Kaniko => ImageBuilder::Kaniko,
            ImageBuilder::Runner => {
                return Some(Err(format!(
                    "spec.build.dockerfile is {dockerfile}, and no Dockerfile is executed here; remove it, or let an administrator have \
                     images built by kaniko, by --build-images kaniko"
                )));
            }
        },
        // What was built before is still known.
        (None, Some(_)) => ImageBuilder::Kaniko,
        (None, None) => ImageBuilder::Runner,
    };
    let tag = names::built_tag(revision, base.as_ref(), builder, dockerfile.as_ref());
    let tag = ImageTag::new(tag).ok()?;
    Some(Ok(BuiltImage { host: place.host, path: place.path, tag, base, builder, dockerfile }))
}

/// Whether the image of a commit has something below the code: a base, or what a Dockerfile says.
pub(super) fn is_laid_over(seen: &Observed<'_>, revision: &CommitId) -> bool {
    let image = wish(seen, revision).and_then(Result::ok);
    image.is_some_and(|image| image.base.is_some() || image.builder == ImageBuilder::Kaniko)
}

/// The image of a commit that was built as the layer asks for it now.
pub(super) fn built(seen: &Observed<'_>, revision: &CommitId) -> Option<PinnedImage> {
    run_of(seen, revision)?.status.as_ref()?.result.as_ref()?.image.clone()
}

/// The run that built it. O(runs kept).
pub(super) fn run_of<'a>(seen: &Observed<'a>, revision: &CommitId) -> Option<&'a TerraformRun> {
    let image = wish(seen, revision)?.ok()?;
    seen.runs.iter().find(|run| is_of(run, &image, revision) && has_succeeded(run))
}

fn newest_failed<'a>(
    history: &History<'a>,
    image: &BuiltImage,
    revision: &CommitId,
) -> Option<&'a TerraformRun> {
    history.newest_first.iter().copied().find(|run| is_of(run, image, revision) && has_failed(run))
}

fn is_of(run: &TerraformRun, image: &BuiltImage, revision: &CommitId) -> bool {
    run.spec.action == Action::Build
        && &run.spec.layer.revision == revision
        && run.spec.build.as_ref() == Some(image)
}

/// The builds that decisions on the relevant commit rest on.
pub(super) fn kept<'a>(
    seen: &Observed<'a>,
    history: &History<'a>,
    revision: &CommitId,
) -> [Option<&'a TerraformRun>; 2] {
    let image = wish(seen, revision).and_then(Result::ok);
    let failed = image.and_then(|image| newest_failed(history, &image, revision));
    // The same run as the history knows it.
    let built = run_of(seen, revision).and_then(|run| history.named(run.metadata.name.as_deref()?));
    [built, failed]
}

/// What people are told of it: the image of the relevant commit, or what keeps it from being there.
pub(super) fn told(seen: &Observed<'_>, history: &History<'_>) -> Option<ImageStatus> {
    let before = || seen.layer.status.as_ref().and_then(|status| status.image.clone());
    seen.layer.spec.build.as_ref()?;
    let Read::Present(Ok(source)) = &seen.source else { return before() };
    let image = wish(seen, &source.relevant)?.ok()?;
    let newest = history.newest_first.iter().copied();
    let newest = newest.filter(|run| is_of(run, &image, &source.relevant));
    let built = built(seen, &source.relevant);
    let trouble = match &built {
        Some(_) => None,
        None => newest.clone().find_map(trouble),
    };
    Some(ImageStatus {
        name: image.place().to_string(),
        wanted: source.relevant.to_string(),
        tag: built.as_ref().map(|_| image.tag.clone()),
        digest: built.map(|built| built.digest),
        moved_from: None,
        looked_at: None,
        message: trouble,
        asked: None,
    })
}

/// Why a build has not succeeded, if it was tried.
fn trouble(run: &TerraformRun) -> Option<String> {
    if is_terminal(run) {
        return Some(brief(result_message(run)));
    }
    let last = run.status.as_ref()?.attempts.iter().rev().find_map(|attempt| attempt.message.as_deref());
    last.map(brief).or_else(|| super::need::obstacle(run).map(|_| brief(ready_message(run))))
}
