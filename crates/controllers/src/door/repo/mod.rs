//! The loop of Repos: what it reads, and the decision on it. What it does about that is in `act`.

mod act;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Repo, TerraformLayer, TerraformRepository, TerraformRun};
use engine::Wake;
use engine::door::repo::{Observed, decide, report, shown};
use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::{Context, status};

pub(crate) async fn reconcile(repo: Arc<Handle<Repo>>, context: Arc<Context>) -> Result<Wake, Error> {
    let namespace = repo.namespace().unwrap_or_default();
    let api = Api::<Repo>::namespaced(context.client.clone(), &namespace);
    let Some(mut repo) = api.get_opt(&repo.name_any()).await.map_err(doing("read the Repo"))? else {
        return Ok(Wake::OnChange);
    };
    let (name, client) = (repo.name_any(), || context.client.clone());
    let repositories = Api::<TerraformRepository>::namespaced(client(), &namespace);
    let repository = repositories.get_opt(&name).await.map_err(doing("read the Repo's repository"))?;
    let layers = Api::<TerraformLayer>::namespaced(client(), &namespace);
    let layer = layers.get_opt(&name).await.map_err(doing("read the Repo's layer"))?;
    let runs = observe_runs(layer.as_ref(), &namespace, &context).await?;
    let jobs = observe_jobs(&shown(&repo, layer.as_ref(), &runs), &namespace, &context).await?;
    let seen = Observed {
        now: (context.now)(),
        repo: &repo,
        repository: repository.as_ref(),
        layer: layer.as_ref(),
        runs: &runs,
        jobs: &jobs,
        settings: &context.settings,
    };
    let refused = act::act(&repo, decide(&seen), &context).await?;
    // Last: a Job whose end stands in the status is not looked at again.
    let report = report(&seen, &refused);
    let before = repo.status.take().unwrap_or_default();
    if before != report.status {
        repo.status = Some(report.status);
        let written = status::replace(&api, &repo, "write the Repo's status").await?;
        let after = written.status.as_ref().map_or(&[][..], |status| &status.conditions);
        context.events.tell(&written, &before.conditions, after);
    }
    Ok(report.wake)
}

/// The runs of this incarnation of the layer. O(runs kept for the layer).
async fn observe_runs(
    layer: Option<&TerraformLayer>,
    namespace: &str,
    context: &Context,
) -> Result<Vec<TerraformRun>, Error> {
    let Some(layer) = layer else { return Ok(Vec::new()) };
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), namespace);
    let ours = ListParams::default().fields(&format!("spec.layer.name={}", layer.name_any()));
    let runs = api.list(&ours).await.map_err(doing("list the runs of the Repo's layer"))?;
    let uid = layer.uid();
    Ok(runs.items.into_iter().filter(|run| Some(&run.spec.layer.uid) == uid.as_ref()).collect())
}

/// Those that are there. One read for each attempt that has not ended, which is one at a time.
async fn observe_jobs(
    names: &[String],
    namespace: &str,
    context: &Context,
) -> Result<BTreeMap<String, Job>, Error> {
    let api = Api::<Job>::namespaced(context.client.clone(), namespace);
    let mut jobs = BTreeMap::new();
    for name in names {
        let found = api.get_opt(name).await.map_err(doing("read a Job of the Repo"))?;
        jobs.extend(found.map(|job| (name.clone(), job)));
    }
    Ok(jobs)
}
