//! What a runner is told: the run's own words, and what layer and repository say beside them.

use api::attempt::{BuildOrder, Description, GivenInputs, Kept, PlanSource};
use api::image::BuiltImage;
use api::inputs::Inputs;
use api::layer::Unusable;
use api::run::Mode;
use api::text::Sha256;
use api::{TerraformLayer, TerraformRepository, TerraformRun};

use super::Observed;
use crate::Builder;

pub(super) fn describe(
    seen: &Observed<'_>,
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
    bundle: &Sha256,
    attempt: u32,
    fence: u64,
) -> Option<Description> {
    let run = seen.run;
    // What is applied was planned with the same.
    let setup = run.spec.setup.clone().unwrap_or_else(|| layer.setup(repository));
    Some(Description {
        namespace: run.metadata.namespace.clone()?,
        layer: run.spec.layer.name.to_string(),
        layer_uid: run.spec.layer.uid.clone(),
        run: run.metadata.name.clone()?,
        run_uid: run.metadata.uid.clone()?,
        attempt,
        fence,
        action: run.spec.action,
        mode: run.spec.mode,
        revision: run.spec.layer.revision.clone(),
        bundle: bundle.clone(),
        image: run.spec.image.clone(),
        build: match &run.spec.build {
            Some(image) => Some(build_order(seen, layer, image)?),
            None => None,
        },
        path: setup.path,
        workspace: setup.workspace,
        tool: setup.tool,
        tool_version: setup.tool_version,
        terragrunt: setup.terragrunt,
        state: run.spec.state.clone(),
        backend: elsewhere(run, layer),
        plan: run.spec.artifact.as_ref().map(|artifact| PlanSource {
            run_uid: artifact.run_uid.clone(),
            attempt: artifact.attempt,
            sha256: artifact.sha256.clone(),
            expires: artifact.expires.as_ref().map(|at| at.0),
        }),
        inputs: match &run.spec.inputs {
            Some(digest) => Some(GivenInputs {
                inputs: match (inputs(seen, layer, repository), &run.spec.undoes) {
                    (Ok(inputs), _) => inputs,
                    // Only what can still be mounted is lost by that.
                    (Err(_), Some(_)) => Inputs::default(),
                    (Err(_), None) => return None,
                },
                key: seen.digest_key?.clone(),
                digest: digest.clone(),
            }),
            None => None,
        },
        outputs: run.spec.outputs,
        script: layer.status.as_ref().and_then(|status| status.script.clone()),
        kept: run
            .spec
            .undoes
            .as_ref()
            .map(|undone| Kept { run_uid: undone.run_uid.clone(), attempt: undone.attempt }),
        delete_workspace: run.spec.mode == Mode::Destroy && layer.spec.delete_workspace,
        timeout: layer.timeout(run.spec.action, repository),
    })
}

/// Nothing where images are not built any more.
fn build_order(seen: &Observed<'_>, layer: &TerraformLayer, image: &BuiltImage) -> Option<BuildOrder> {
    let login = layer.spec.build.as_ref()?.credentials.as_ref();
    let builds = seen.settings.builds.as_ref()?;
    Some(BuildOrder {
        image: image.clone(),
        login: login.map(|login| match &login.key {
            Some(key) => format!("key {key} of Secret {}", login.secret_name),
            None => format!("Secret {}", login.secret_name),
        }),
        registries: builds.registries.clone(),
        cache: match &builds.builder {
            Builder::Runner => None,
            Builder::Kaniko(kaniko) => kaniko.cache.clone(),
        },
    })
}

fn inputs(
    seen: &Observed<'_>,
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
) -> Result<Inputs, Unusable> {
    layer.inputs(repository, &seen.settings.backends, &seen.settings.overrides)
}

/// The state of an apply, where it is not the one that the datastore keeps for the layer.
fn elsewhere(run: &TerraformRun, layer: &TerraformLayer) -> Option<Sha256> {
    let here = match &run.spec.undoes {
        Some(undone) => undone.state.clone(),
        None => crate::layer::state_of(layer),
    };
    let is_elsewhere = run.spec.action.mutates() && run.spec.state != here;
    is_elsewhere.then(|| run.spec.state.clone())
}
