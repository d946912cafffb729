//! Carries out what was decided about a Repo. An object is made, or changed against the version that was read; what the API refuses is
//! told, and keeps nothing else from being done.

use api::{JOB_MANAGER, Repo, TerraformLayer, TerraformRepository};
use engine::door::repo::{Effect, Part, Refused, Why};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};

use crate::door::{api, create, refusal};
use crate::error::{Error, doing};
use crate::{Context, status};

pub(super) async fn act(repo: &Repo, effects: Vec<Effect>, context: &Context) -> Result<Vec<Refused>, Error> {
    let (namespace, name) = (repo.namespace().unwrap_or_default(), repo.name_any());
    let mut refused = Vec::new();
    for effect in effects {
        let (part, done) = match effect {
            Effect::CreateRepository(made) => {
                let doing = "make the Repo's repository";
                (Part::Repository, create(&api(&context.client, &namespace), &*made, doing).await)
            }
            Effect::CreateLayer(made) => {
                let doing = "make the Repo's layer";
                (Part::Layer, create(&api(&context.client, &namespace), &*made, doing).await)
            }
            Effect::PatchRepository(patch) => {
                let api = api::<TerraformRepository>(&context.client, &namespace);
                let changed = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                (Part::Repository, changed.map(drop).map_err(doing("change the Repo's repository")))
            }
            Effect::PatchLayer(patch) => {
                let api = api::<TerraformLayer>(&context.client, &namespace);
                let changed = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                (Part::Layer, changed.map(drop).map_err(doing("change the Repo's layer")))
            }
            Effect::CreateJob(job) => match create_job(&api(&context.client, &namespace), *job).await {
                Ok(None) => (Part::Job, Ok(())),
                Ok(Some(why)) => {
                    refused.push(Refused { part: Part::Job, why });
                    continue;
                }
                Err(error) => (Part::Job, Err(error)),
            },
            Effect::ReportJob(job) => {
                let written =
                    status::replace(&api(&context.client, &namespace), &*job, "report on a Job").await;
                (Part::Job, written.map(drop))
            }
        };
        let words = refusal("Repo", &name, done)?;
        refused.extend(words.map(|words| Refused { part, why: Why::Said(words) }));
    }
    Ok(refused)
}

/// Asked first, because a Job that lost its manager on the way would be anybody's.
async fn create_job(api: &Api<Job>, job: Job) -> Result<Option<Why>, Error> {
    let asking = PostParams { dry_run: true, ..PostParams::default() };
    let would_be = api.create(&asking, &job).await.map_err(doing("ask whether a Job can be made"))?;
    let manager = would_be.spec.and_then(|spec| spec.managed_by);
    if manager.as_deref() != Some(JOB_MANAGER) {
        return Ok(Some(Why::NotManaged));
    }
    let made = api.create(&PostParams::default(), &job).await.map_err(doing("make a Job"))?;
    tracing::info!(job = made.name_any(), "made a Job that shows a run");
    let told = Job { status: job.status, ..made };
    status::replace(api, &told, "report on a new Job").await.map(|_| None)
}
