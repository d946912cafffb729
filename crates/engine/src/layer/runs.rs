//! How a wish becomes a run. The same wish always makes the same name.

use api::image::{BuiltImage, PinnedImage};
use api::run::{Action, Artifact, LayerRef, Mode, Trigger, Undone};
use api::setup::Setup;
use api::text::{CommitId, ObjectName, Sha256};
use api::{TerraformLayer, TerraformRun, TerraformRunSpec, annotation, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::core::ObjectMeta;

use super::expiry::expires;
use super::history::{History, Plan, bundle_of};
use super::need::{self, Need, unknown};
use super::{
    Observed, annotated, build as built, known_inputs, known_setup, name_of, outputs, policy, state_of,
};
use crate::image;
use crate::names::{self, Wish};

/// What makes one run another than the next, and what it is given.
pub(super) struct Wanted<'a> {
    pub(super) mode: Mode,
    pub(super) revision: &'a CommitId,
    pub(super) token: &'a str,
    pub(super) trigger: Trigger,
    pub(super) preceding: u32,
    /// The files, where they are known from an earlier run; else the newest of the revision.
    pub(super) files: Option<Files>,
    /// The state that it is about, where that is known better than by the layer's place.
    pub(super) state: Option<Sha256>,
    pub(super) inputs: Option<Sha256>,
    pub(super) setup: Option<Setup>,
    pub(super) undoes: Option<Undone>,
}

/// What a run worked on.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) bundle: Option<Sha256>,
    pub(super) image: Option<PinnedImage>,
    /// Whether its pod was a container of that image.
    pub(super) in_image: bool,
}

impl Files {
    /// As the run was told.
    pub(super) fn of(run: &TerraformRun) -> Self {
        Self {
            bundle: run.spec.bundle.clone(),
            image: run.spec.image.clone(),
            in_image: crate::run::is_inside(run),
        }
    }
}

impl<'a> Wanted<'a> {
    fn given(revision: &'a CommitId, token: &'a str, trigger: Trigger, inputs: Option<Sha256>) -> Self {
        Self {
            mode: Mode::Normal,
            revision,
            token,
            trigger,
            preceding: 0,
            files: None,
            state: None,
            inputs,
            setup: None,
            undoes: None,
        }
    }

    /// With what the layer gives now.
    pub(super) fn new(seen: &Observed<'_>, revision: &'a CommitId, token: &'a str, trigger: Trigger) -> Self {
        let given = Self::given(revision, token, trigger, known_inputs(seen).cloned());
        Self { setup: Some(known_setup(seen)), ..given }
    }
}

pub(super) fn start_plan(seen: &Observed<'_>, wanted: Wanted<'_>) -> Need {
    build(seen, Action::Plan, Purpose::Code(None), wanted).map_or_else(nameless, |run| need::start(run, None))
}

/// The image of a commit. It is given nothing of the layer's variables.
pub(super) fn start_build(
    seen: &Observed<'_>,
    image: BuiltImage,
    revision: &CommitId,
    token: &str,
    trigger: Trigger,
) -> Need {
    let wanted = Wanted::given(revision, token, trigger, None);
    build(seen, Action::Build, Purpose::Image(image), wanted)
        .map_or_else(nameless, |run| need::start(run, None))
}

/// What a run is for.
enum Purpose {
    /// The code is planned, or what is named here of it is applied.
    Code(Option<Artifact>),
    Image(BuiltImage),
}

fn nameless() -> Need {
    unknown("the layer or its plan has no name or uid, so no run of it can be named")
}

/// The exact plan, in its own mode, on the files that it was made from.
pub(super) fn start_apply(seen: &Observed<'_>, plan: &Plan<'_>, trigger: Trigger) -> Need {
    let spec = &plan.run.spec;
    let artifact = plan.run.metadata.name.as_deref().and_then(|name| {
        Some(Artifact {
            run: ObjectName::new(name).ok()?,
            run_uid: plan.run.metadata.uid.clone()?,
            attempt: plan.attempt,
            sha256: plan.sha256.clone(),
            expires: Some(Time(expires(seen, plan))),
        })
    });
    let wanted = Wanted {
        mode: spec.mode,
        preceding: spec.preceding_failures,
        files: Some(Files::of(plan.run)),
        // Whoever changes this state takes its lock, from whatever layer they come.
        state: plan.state.cloned(),
        setup: spec.setup.clone(),
        undoes: spec.undoes.clone(),
        ..Wanted::given(&spec.layer.revision, "", trigger, spec.inputs.clone())
    };
    let run = artifact.and_then(|artifact| build(seen, Action::Apply, Purpose::Code(Some(artifact)), wanted));
    run.map_or_else(nameless, |run| need::start(run, Some(plan)))
}

/// What a person can ask for by an annotation. Its text names the wish, so one text is one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A plan towards the code.
    Sync,
    /// A plan that only refreshes.
    Look,
}

impl Asked {
    pub(super) const ALL: [Self; 2] = [Self::Sync, Self::Look];

    pub(super) const fn mode(self) -> Mode {
        match self {
            Self::Sync => Mode::Normal,
            Self::Look => Mode::RefreshOnly,
        }
    }

    const fn annotation(self) -> &'static str {
        match self {
            Self::Sync => annotation::SYNC,
            Self::Look => annotation::LOOK,
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Sync => "sync:",
            Self::Look => "look:",
        }
    }

    fn remembered(self, layer: &TerraformLayer) -> Option<&str> {
        let status = layer.status.as_ref()?;
        match self {
            Self::Sync => status.last_sync.as_deref(),
            Self::Look => status.last_look.as_deref(),
        }
    }

    fn token(self, text: &str) -> String {
        format!("{}{text}", self.prefix())
    }

    /// The token of a wish that no run answers yet.
    pub(super) fn unanswered(self, seen: &Observed<'_>, history: &History<'_>) -> Option<String> {
        let text = annotated(seen.layer, self.annotation())?;
        let is_remembered = self.remembered(seen.layer) == Some(text);
        (!is_remembered && self.answered(seen, history).is_none()).then(|| self.token(text))
    }

    /// The text on the layer, once a run answers it.
    pub(super) fn answered(self, seen: &Observed<'_>, history: &History<'_>) -> Option<String> {
        let text = annotated(seen.layer, self.annotation())?;
        let token = self.token(text);
        history
            .newest_first
            .iter()
            .any(|run| annotated_token(run) == Some(token.as_str()))
            .then(|| text.to_owned())
    }
}

/// Which wish a run answers; other runs have none.
const TOKEN_ANNOTATION: &str = api::annotation::TOKEN;

fn annotated_token(run: &TerraformRun) -> Option<&str> {
    run.metadata.annotations.as_ref()?.get(TOKEN_ANNOTATION).map(String::as_str)
}

fn build(seen: &Observed<'_>, action: Action, purpose: Purpose, wanted: Wanted<'_>) -> Option<TerraformRun> {
    let layer = seen.layer;
    let (artifact, built) = match purpose {
        Purpose::Code(artifact) => (artifact, None),
        Purpose::Image(image) => (None, Some(image)),
    };
    let sha256 = artifact.as_ref().map(|a| &a.sha256);
    let token =
        built.as_ref().map_or_else(|| wanted.token.to_owned(), |image| built_token(image, wanted.token));
    let name = names::run(Wish {
        layer: name_of(layer),
        layer_uid: layer.metadata.uid.as_deref()?,
        action,
        mode: wanted.mode,
        revision: wanted.revision,
        plan: sha256,
        inputs: wanted.inputs.as_ref(),
        setup: wanted.setup.as_ref(),
        token: &token,
    });
    let files = match (wanted.files, &built) {
        (_, Some(_)) => Files { bundle: None, image: None, in_image: false },
        (Some(files), None) => Files {
            bundle: files.bundle.or_else(|| known_files(seen, files.image.as_ref(), wanted.revision)),
            ..files
        },
        (None, None) => {
            let image = image_of(seen, wanted.revision);
            let in_image =
                image.is_some() && seen.settings.image_pods.is_some() && has_programs(seen, wanted.revision);
            Files { bundle: known_files(seen, image.as_ref(), wanted.revision), image, in_image }
        }
    };
    let mut run = TerraformRun::new(
        &name,
        TerraformRunSpec {
            layer: LayerRef {
                name: ObjectName::new(name_of(layer)).ok()?,
                uid: layer.metadata.uid.clone()?,
                revision: wanted.revision.clone(),
            },
            action,
            mode: wanted.mode,
            state: wanted
                .state
                .or_else(|| wanted.undoes.as_ref().map(|undone| undone.state.clone()))
                .unwrap_or_else(|| state_of(layer)),
            artifact,
            trigger: wanted.trigger,
            image: files.image,
            in_image: files.in_image,
            outputs: outputs::asks(seen) && wanted.mode != Mode::Destroy && built.is_none(),
            build: built,
            bundle: files.bundle,
            inputs: wanted.inputs,
            setup: wanted.setup,
            undoes: wanted.undoes,
            max_retries: policy::max_retries(seen),
            preceding_failures: wanted.preceding,
        },
    );
    run.metadata = ObjectMeta {
        namespace: layer.metadata.namespace.clone(),
        labels: Some(
            [(label::MANAGED_BY, "terrane"), (label::ACTION, action.as_str())]
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        ),
        annotations: Asked::ALL
            .iter()
            .any(|asked| wanted.token.starts_with(asked.prefix()))
            .then(|| [(TOKEN_ANNOTATION.to_owned(), wanted.token.to_owned())].into()),
        owner_references: if dependents_go_first(layer) {
            None
        } else {
            Some(vec![layer.controller_owner_ref(&())?])
        },
        ..run.metadata
    };
    Some(run)
}

/// The image that a revision of the layer is worked on as, where it is one.
fn image_of(seen: &Observed<'_>, revision: &CommitId) -> Option<PinnedImage> {
    if seen.layer.spec.build.is_some() {
        return built::built(seen, revision);
    }
    let known = seen.image.and_then(|image| image.status.as_ref());
    image::pinned(seen.layer, known, seen.runs, revision)
}

/// Whether the image may hold more than code. One that is built of code alone has nothing that could run it.
fn has_programs(seen: &Observed<'_>, revision: &CommitId) -> bool {
    seen.layer.spec.build.is_none() || built::is_laid_over(seen, revision)
}

/// The files of an image that an earlier run worked on: a registry need not be there, or have the image, to plan it again.
/// O(runs kept).
fn known_files(seen: &Observed<'_>, image: Option<&PinnedImage>, revision: &CommitId) -> Option<Sha256> {
    let image = Some(image?);
    let is_same =
        |run: &&TerraformRun| &run.spec.layer.revision == revision && run.spec.image.as_ref() == image;
    seen.runs.iter().filter(is_same).find_map(bundle_of).cloned()
}

/// Deleted in the foreground: the garbage collector takes every dependent before the layer, also the runs that destroy its
/// infrastructure. Those then belong to nobody, and the layer's own release deletes them.
fn dependents_go_first(layer: &TerraformLayer) -> bool {
    layer.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == "foregroundDeletion")
}

/// The same commit in another image is another wish.
fn built_token(image: &BuiltImage, token: &str) -> String {
    format!("{image} {token}")
}

/// The name that a build wished for now would have.
pub(super) fn build_name(
    seen: &Observed<'_>,
    image: &BuiltImage,
    revision: &CommitId,
    token: &str,
) -> String {
    names::run(Wish {
        layer: name_of(seen.layer),
        layer_uid: seen.layer.metadata.uid.as_deref().unwrap_or_default(),
        action: Action::Build,
        mode: Mode::Normal,
        revision,
        plan: None,
        inputs: None,
        setup: None,
        token: &built_token(image, token),
    })
}

/// The name that a plan wished for now would have.
pub(super) fn plan_name(seen: &Observed<'_>, mode: Mode, revision: &CommitId, token: &str) -> String {
    names::run(Wish {
        layer: name_of(seen.layer),
        layer_uid: seen.layer.metadata.uid.as_deref().unwrap_or_default(),
        action: Action::Plan,
        mode,
        revision,
        plan: None,
        inputs: known_inputs(seen),
        setup: Some(&known_setup(seen)),
        token,
    })
}
