//! Carries out what was decided about a Terraform. An object is made, or changed and deleted as the one that was read; what the API
//! refuses is told, and keeps nothing else from being done.

use api::{Terraform, TerraformLayer, TerraformRepository, WORKLOAD_FINALIZER};
use engine::door::terraform::{Effect, Refused};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Context;
use crate::door::{api, create, refusal};
use crate::error::{Error, doing};

const REPOSITORY: &str = "TerraformRepository";
const LAYER: &str = "TerraformLayer";

pub(super) async fn act(
    terraform: &Terraform,
    effects: Vec<Effect>,
    context: &Context,
) -> Result<Vec<Refused>, Error> {
    let (namespace, name) = (terraform.namespace().unwrap_or_default(), terraform.name_any());
    let layers = api::<TerraformLayer>(&context.client, &namespace);
    let repositories = api::<TerraformRepository>(&context.client, &namespace);
    let mut refused = Vec::new();
    for effect in effects {
        let (kind, done) = match effect {
            Effect::AddFinalizer => {
                let kept = terraform.finalizers().iter().map(String::as_str).chain([WORKLOAD_FINALIZER]);
                let terraforms = api(&context.client, &namespace);
                let done = set_finalizers(&terraforms, terraform, kept.collect()).await;
                ("the finalizer of Terraform", done)
            }
            Effect::CreateRepository(made) => {
                (REPOSITORY, create(&repositories, &*made, "make the Terraform's repository").await)
            }
            Effect::CreateLayer(made) => (LAYER, create(&layers, &*made, "make the Terraform's layer").await),
            Effect::PatchRepository(patch) => {
                let changed = repositories.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                (REPOSITORY, changed.map(drop).map_err(doing("change the Terraform's repository")))
            }
            Effect::PatchLayer(patch) => {
                let changed = layers.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                (LAYER, changed.map(drop).map_err(doing("change the Terraform's layer")))
            }
            Effect::DeleteLayer(uid) => (LAYER, delete(&layers, &name, uid).await),
        };
        let words = refusal("Terraform", &name, done)?;
        refused.extend(words.map(|words| Refused { kind, words }));
    }
    Ok(refused)
}

/// Lets it go, once nothing is left that it stands for.
pub(super) async fn let_go(api: &Api<Terraform>, terraform: &Terraform) -> Result<(), Error> {
    let kept = terraform.finalizers().iter().map(String::as_str);
    let kept = kept.filter(|finalizer| *finalizer != WORKLOAD_FINALIZER).collect();
    set_finalizers(api, terraform, kept).await
}

async fn set_finalizers(
    api: &Api<Terraform>,
    terraform: &Terraform,
    finalizers: Vec<&str>,
) -> Result<(), Error> {
    let patch = json!({ "metadata": {
        "resourceVersion": terraform.metadata.resource_version, "finalizers": finalizers,
    } });
    let changed =
        api.patch_metadata(&terraform.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    changed.map(drop).map_err(doing("change the Terraform's finalizers"))
}

async fn delete(api: &Api<TerraformLayer>, name: &str, uid: String) -> Result<(), Error> {
    let exactly_this = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(name, &exactly_this).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("delete the Terraform's layer")(error)),
    }
}
