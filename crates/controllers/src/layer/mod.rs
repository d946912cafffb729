//! The layer controller's loop: what it reads, and the decision on it. What it does about that is in `act`.

mod act;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::Declared;
use api::text::{PathGlob, Sha256};
use api::{TerraformApproval, TerraformLayer, TerraformRepository, TerraformRun, annotation};
use engine::layer::{Observed, Refusal, Source, bytes_kept, decide, gives_outputs};
use engine::outputs::{Outcome, Standing, recorded};
use engine::{Read, Wake, image};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use sources::{Interest, Module};

use self::act::Acted;
use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::source::{Branch, Followed, ImageAt, Place, Waiting};
use crate::{Context, inputs};

pub(crate) async fn reconcile(
    layer: Arc<Handle<TerraformLayer>>,
    context: Arc<Context>,
) -> Result<Wake, Error> {
    let namespace = layer.namespace().unwrap_or_default();
    let api = Api::<TerraformLayer>::namespaced(context.client.clone(), &namespace);
    let Some(mut layer) = api.get_opt(&layer.name_any()).await.map_err(doing("read the layer"))? else {
        context.desk.unfollow(&namespace, &layer.name_any());
        context.references.unfollow(&namespace, &layer.name_any());
        context.sizes.forget(&*layer);
        context.outputs.forget(&*layer);
        return Ok(Wake::OnChange);
    };
    context.desk.follow(&layer);
    let repository = observe_repository(&layer, &namespace, &context).await?;
    context.references.follow(&layer, repository.as_ref());
    let image = observe_image(&layer, &context);
    let source = match &image {
        Some(image) => image.source.clone(),
        None => observe_source(&layer, repository.as_ref(), &context),
    };
    let inputs = inputs::observe(&layer, repository.as_ref(), &context).await?;
    let declared = observe_declared(&layer, repository.as_ref(), &source, &context);
    // Before the runs: whoever had a word on a plan saw it, so its run is seen too, unless it is gone.
    let approvals = observe_approvals(&layer, &namespace, &context).await?;
    let runs = observe_runs(&layer, &namespace, &context).await?;
    let sizes = match bytes_kept(&layer, repository.as_ref()) {
        Some(_) => context.sizes.observe(&layer, &runs, &context.datastore).await,
        None => BTreeMap::new(),
    };
    let now = (context.now)();
    let seen = Seen { now, repository, source, image, declared, inputs, runs, approvals, sizes };
    let unknown = Outcome { places: recorded(&layer), standing: Standing::Unknown };
    let giver = gives_outputs(&seen.view(&layer, &unknown, None, &context));
    // Trouble with the objects of others is no reason to leave the layer alone.
    let (outputs, trouble) = match context.outputs.keep(&layer, giver, &context).await {
        Ok(outcome) => (outcome, None),
        Err(error) => (unknown, Some(error)),
    };
    let mut refused = None;
    loop {
        let decision = decide(&seen.view(&layer, &outputs, refused.as_ref(), &context));
        match act::act(&api, layer, decision, &context).await? {
            Acted::Whole(wake) => return trouble.map_or(Ok(wake), Err),
            // Met once: what is decided on it does not wish for a run.
            Acted::Refused { layer: written, why } => {
                layer = *written;
                refused = Some(why);
            }
        }
    }
}

/// What was read, beside the layer itself.
struct Seen {
    now: Timestamp,
    repository: Option<TerraformRepository>,
    source: Read<Result<Source, String>>,
    image: Option<image::Decision>,
    declared: Read<Result<Vec<Declared>, String>>,
    inputs: Read<Result<Option<Sha256>, String>>,
    runs: Vec<TerraformRun>,
    approvals: Vec<TerraformApproval>,
    sizes: BTreeMap<String, u64>,
}

impl Seen {
    fn view<'a>(
        &'a self,
        layer: &'a TerraformLayer,
        outputs: &Outcome,
        refused: Option<&'a Refusal>,
        context: &'a Context,
    ) -> Observed<'a> {
        Observed {
            now: self.now,
            layer,
            repository: self.repository.as_ref().map_or(Read::Absent, Read::Present),
            source: self.source.clone(),
            image: self.image.as_ref(),
            declared: &self.declared,
            inputs: self.inputs.clone(),
            runs: &self.runs,
            approvals: &self.approvals,
            sizes: &self.sizes,
            outputs: outputs.clone(),
            refused,
            settings: &context.settings,
        }
    }
}

async fn observe_repository(
    layer: &TerraformLayer,
    namespace: &str,
    context: &Context,
) -> Result<Option<TerraformRepository>, Error> {
    let api = Api::<TerraformRepository>::namespaced(context.client.clone(), namespace);
    let Some(name) = layer.spec.repository_name() else { return Ok(None) };
    api.get_opt(name.as_str()).await.map_err(doing("read the layer's repository"))
}

/// The image that the layer is pinned to, as far as its status and the desk know; nothing where its code is in a repository.
fn observe_image(layer: &TerraformLayer, context: &Context) -> Option<image::Decision> {
    let (look, looking) = followed(layer).map_or((None, false), |followed| context.desk.image(&followed));
    image::decide(&image::Observed {
        now: (context.now)(),
        layer,
        look: look.as_ref(),
        looking,
        settings: &context.settings,
    })
}

/// The image that the layer follows, where it can be looked for.
fn followed(layer: &TerraformLayer) -> Option<Followed> {
    let image = layer.spec.image.as_ref()?;
    let at = ImageAt {
        namespace: layer.namespace().unwrap_or_default(),
        place: image.place().ok()?,
        credentials: image.credentials.clone(),
    };
    Some(Followed { layer: layer.name_any(), at, wanted: image.wanted().ok()? })
}

/// What the layer's branch holds, as far as the repository's status and the desk know.
fn observe_source(
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
    context: &Context,
) -> Read<Result<Source, String>> {
    let (Some(repository), Some(followed)) = (repository, &layer.spec.branch) else { return Read::Absent };
    let branches = repository.status.as_ref().map_or(&[][..], |s| s.branches.as_slice());
    let Some(branch) = branches.iter().find(|b| b.name == followed.as_str()) else {
        return Read::Absent;
    };
    let Some(head) = &branch.latest_rev else {
        let why = branch.message.clone().unwrap_or_else(|| "the branch was never seen".to_owned());
        return Read::Present(Err(format!("branch {}: {why}", branch.name)));
    };
    let waiting = Waiting::Layer { namespace: layer.namespace().unwrap_or_default(), name: layer.name_any() };
    // A repository that is suspended is not looked at for its layers either.
    if let Some(wish) = wants_latest(layer).filter(|_| !repository.spec.suspend) {
        match context.desk.latest(&Place::of(repository), wish, waiting.clone()) {
            None => return Read::Unknown,
            // The repository's own controller writes down what was seen, and that wakes us.
            Some(Ok(heads)) if heads.refs.get(&followed.full()).is_some_and(|now| now != head) => {
                return Read::Unknown;
            }
            // What is known is planned, and the repository says what is wrong.
            Some(Ok(_) | Err(_)) => {}
        }
    }
    let followed = Branch { place: Place::of(repository), name: followed.clone() };
    // What may name a file may name a pattern.
    let files = layer.spec.variable_files.iter().filter_map(|file| PathGlob::new(file.as_str()).ok());
    let interest = Interest {
        path: layer.spec.path.clone(),
        trigger_paths: layer.spec.trigger_paths.iter().cloned().chain(files).collect(),
    };
    // What was seen before the layer was changed may have been another branch.
    let told = layer.status.as_ref().filter(|told| told.observed_generation == layer.metadata.generation);
    let before = told.and_then(|told| told.revision.branch.as_ref());
    let left = match before.filter(|before| *before != head) {
        None => None,
        Some(before) => match context.desk.goes_on(&followed.place, before, head, waiting.clone()) {
            Read::Present(Ok(false)) => Some(before.clone()),
            // What cannot be read is no reason to plan nothing.
            Read::Present(Ok(true) | Err(_)) => None,
            Read::Absent | Read::Unknown => return Read::Unknown,
        },
    };
    match context.desk.relevant(followed, head, interest, waiting) {
        Read::Present(Ok(relevant)) => Read::Present(Ok(Source { head: head.clone(), relevant, left })),
        Read::Present(Err(why)) => Read::Present(Err(why)),
        Read::Absent => Read::Absent,
        Read::Unknown => Read::Unknown,
    }
}

/// The wish for a plan of the newest commit, as long as no plan answers it.
fn wants_latest(layer: &TerraformLayer) -> Option<&str> {
    let annotations = layer.annotations();
    let wish =
        annotations.get(annotation::SYNC).filter(|wish| annotations.get(annotation::LATEST) == Some(wish))?;
    let answered = layer.status.as_ref().and_then(|status| status.last_sync.as_deref());
    (answered != Some(wish)).then_some(wish)
}

/// The variables that a template's code declares at its relevant commit; nobody asks that of another layer.
fn observe_declared(
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
    source: &Read<Result<Source, String>>,
    context: &Context,
) -> Read<Result<Vec<Declared>, String>> {
    let (Some(_), Some(repository), Read::Present(Ok(source))) = (&layer.spec.template, repository, source)
    else {
        return Read::Absent;
    };
    let waiting = Waiting::Layer { namespace: layer.namespace().unwrap_or_default(), name: layer.name_any() };
    let module = Module { path: layer.spec.path.clone(), variable_files: layer.spec.variable_files.clone() };
    context.desk.declared(&Place::of(repository), &source.relevant, module, waiting)
}

/// The runs of this incarnation of the layer. O(runs kept for the layer) here; the API looks through the runs of the namespace.
async fn observe_runs(
    layer: &TerraformLayer,
    namespace: &str,
    context: &Context,
) -> Result<Vec<TerraformRun>, Error> {
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), namespace);
    let ours = ListParams::default().fields(&format!("spec.layer.name={}", layer.name_any()));
    let runs = api.list(&ours).await.map_err(doing("list the layer's runs"))?;
    let uid = layer.uid();
    Ok(runs.items.into_iter().filter(|run| Some(&run.spec.layer.uid) == uid.as_ref()).collect())
}

/// Approvals name the layer; the plan they name decides whether they count. O(approvals of the layer).
async fn observe_approvals(
    layer: &TerraformLayer,
    namespace: &str,
    context: &Context,
) -> Result<Vec<TerraformApproval>, Error> {
    let api = Api::<TerraformApproval>::namespaced(context.client.clone(), namespace);
    let ours = ListParams::default().fields(&format!("spec.layer={}", layer.name_any()));
    Ok(api.list(&ours).await.map_err(doing("list the layer's approvals"))?.items)
}
