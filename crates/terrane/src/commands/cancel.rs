//! `terrane cancel`: stop a run.

use anyhow::{Context, bail};
use api::run::RunState;
use api::{TerraformRun, annotation};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::render;
use crate::arguments::Cancel;

pub(crate) async fn run(options: Cancel) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let runs = Api::<TerraformRun>::namespaced(client.clone(), &namespace);
    let name = &options.name;
    let found = runs.get_opt(name).await.with_context(|| format!("read run {namespace}/{name}"))?;
    let targets = match found {
        Some(run) if !is_open(&run) => {
            let result = run.status.and_then(|status| status.result);
            bail!("run {namespace}/{name} has ended: {}", result.map(|r| r.message).unwrap_or_default());
        }
        Some(run) => vec![run],
        None => open_runs_of(&client, &runs, &namespace, name).await?,
    };
    let mut canceled = Vec::new();
    for run in targets {
        let name = run.name_any();
        let wish =
            json!({ "metadata": { "annotations": { annotation::CANCEL: Timestamp::now().to_string() } } });
        let asked = runs
            .patch(&name, &PatchParams::default(), &Patch::Merge(wish))
            .await
            .with_context(|| format!("cancel run {namespace}/{name}"))?;
        canceled.push(asked);
    }
    match canceled.as_slice() {
        [one] => render::object(options.shape.output, one, || told(one)),
        several => render::deeds(options.shape.output, several, render::name_of, told),
    }
}

fn told(run: &TerraformRun) -> String {
    let runs_now = run.status.as_ref().is_some_and(|status| status.runner_pod.is_some());
    let what = if runs_now { "is asked to stop; it may first save its state" } else { "will not start" };
    format!("{} {what}", run.name_any())
}

async fn open_runs_of(
    client: &Client,
    runs: &Api<TerraformRun>,
    namespace: &str,
    layer: &str,
) -> anyhow::Result<Vec<TerraformRun>> {
    super::layer(client, namespace, layer).await?;
    let of_layer = ListParams::default().fields(&format!("spec.layer.name={layer}"));
    let found =
        runs.list(&of_layer).await.with_context(|| format!("list the runs of {namespace}/{layer}"))?;
    let open: Vec<TerraformRun> = found.items.into_iter().filter(is_open).collect();
    if open.is_empty() {
        bail!("layer {namespace}/{layer} has no run to cancel; `terrane get runs` shows those that ended");
    }
    Ok(open)
}

fn is_open(run: &TerraformRun) -> bool {
    !run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal)
}
