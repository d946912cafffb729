//! `terrane get`: a table for people, or the objects as they are.

use std::fmt::Debug;

use anyhow::Context;
use api::{
    Repo, Terraform, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository,
    TerraformRun, condition,
};
use comfy_table::Table;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fitting::fit;
use super::missing::missing;
use super::queue::{self, Queues};
use crate::arguments::{Get, Kind, Output};

pub(crate) async fn run(options: Get) -> anyhow::Result<()> {
    match options.kind {
        Kind::Layers => show::<TerraformLayer>(options).await,
        Kind::Runs => show::<TerraformRun>(options).await,
        Kind::Repositories => show::<TerraformRepository>(options).await,
        Kind::Approvals => show::<TerraformApproval>(options).await,
        Kind::Repos => show::<Repo>(options).await,
        Kind::Terraforms => show::<Terraform>(options).await,
        Kind::Notifications => show::<TerraformNotification>(options).await,
    }
}

/// What a kind shows in a table.
trait Row {
    const HEADER: &'static [&'static str];
    fn cells(&self, now: Timestamp) -> Vec<String>;
}

async fn show<K>(options: Get) -> anyhow::Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Row
        + Queues
        + 'static,
{
    let (client, namespace) = super::connect(&options.target).await?;
    let api = if options.all_namespaces {
        Api::<K>::all(client.clone())
    } else {
        Api::namespaced(client.clone(), &namespace)
    };
    if options.watch {
        return watch(api, &options).await;
    }
    let mut objects = match &options.name {
        Some(name) => {
            let found = api
                .get_opt(name)
                .await
                .with_context(|| format!("read {} {namespace}/{name}", K::kind(&())))?;
            match found {
                Some(object) => vec![object],
                None => return Err(missing(&api, &namespace, &K::kind(&()), name).await),
            }
        }
        None => {
            let params = ListParams { label_selector: options.selector.clone(), ..ListParams::default() };
            let guarded = api.into_client();
            let guarded = if options.all_namespaces {
                Api::<DeserializeGuard<K>>::all(guarded)
            } else {
                Api::namespaced(guarded, &namespace)
            };
            let found = guarded.list(&params).await.with_context(|| format!("list {}", K::plural(&())))?;
            found.items.into_iter().filter_map(readable).collect()
        }
    };
    match options.output {
        Output::Table | Output::Wide => queue::tell_places(&client, &namespace, &mut objects).await?,
        // The objects as they are.
        Output::Json | Output::Yaml | Output::Name => {}
    }
    match options.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&objects)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&objects)?),
        Output::Name => {
            for object in &objects {
                println!("{}/{}", K::plural(&()), object.name_any());
            }
        }
        Output::Table | Output::Wide if objects.is_empty() => eprintln!("no {} found", K::plural(&())),
        Output::Table => println!("{}", table(&objects, options.all_namespaces, Width::Fitting).trim_fmt()),
        Output::Wide => println!("{}", table(&objects, options.all_namespaces, Width::Full).trim_fmt()),
    }
    Ok(())
}

/// The object, unless only its name can be read: one of a newer version must not hide the others.
fn readable<K: kube::Resource<DynamicType = ()>>(object: DeserializeGuard<K>) -> Option<K> {
    object
        .0
        .inspect_err(|bad| {
            let (namespace, name) = (bad.metadata.namespace.as_deref(), bad.metadata.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            eprintln!("warning: {} {namespace}/{name} cannot be read by this version: {bad}", K::kind(&()));
        })
        .ok()
}

/// Prints what there is, then every object again when it has changed. Ends only with an error.
async fn watch<K>(api: Api<K>, options: &Get) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Row + 'static,
{
    let config = watcher::Config {
        label_selector: options.selector.clone(),
        field_selector: options.name.as_ref().map(|name| format!("metadata.name={name}")),
        ..watcher::Config::default()
    };
    let mut stream = std::pin::pin!(watcher(api, config).default_backoff());
    let width = if options.output == Output::Wide { Width::Full } else { Width::Fitting };
    let mut lines = Lines::default();
    let mut first: Vec<K> = Vec::new();
    loop {
        let event = match stream.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) if super::watching::is_final(&error) => {
                return Err(error).with_context(|| format!("watch {}", K::plural(&())));
            }
            // The watch is opened again by itself.
            Some(Err(_)) => continue,
            None => return Ok(()),
        };
        let changed = match event {
            watcher::Event::Init | watcher::Event::Delete(_) => continue,
            watcher::Event::InitApply(object) => {
                first.push(object);
                continue;
            }
            watcher::Event::InitDone => std::mem::take(&mut first),
            watcher::Event::Apply(object) => vec![object],
        };
        match options.output {
            Output::Json => changed
                .iter()
                .try_for_each(|object| serde_json::to_string(object).map(|text| println!("{text}")))?,
            Output::Yaml => changed
                .iter()
                .try_for_each(|object| serde_saphyr::to_string(object).map(|text| print!("---\n{text}")))?,
            Output::Name => {
                changed.iter().for_each(|object| println!("{}/{}", K::plural(&()), object.name_any()))
            }
            Output::Table | Output::Wide => lines.print(rows(&changed, options.all_namespaces, width)),
        }
    }
}

/// Rows that come one after another, in columns that only grow.
#[derive(Default)]
struct Lines {
    widths: Vec<usize>,
}

impl Lines {
    fn print(&mut self, rows: Rows) {
        let header = self.widths.is_empty().then_some(rows.header);
        let lines: Vec<Vec<String>> = header.into_iter().chain(rows.cells).collect();
        for (index, cell) in lines.iter().flat_map(|line| line.iter().enumerate()) {
            let size = cell.chars().count();
            match self.widths.get_mut(index) {
                Some(width) => *width = size.max(*width),
                None => self.widths.push(size),
            }
        }
        for line in lines {
            let padded = line.iter().zip(&self.widths).map(|(cell, &width)| format!("{cell:<width$}"));
            println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

struct Rows {
    header: Vec<String>,
    cells: Vec<Vec<String>>,
}

fn rows<K: Row + ResourceExt>(objects: &[K], with_namespace: bool, width: Width) -> Rows {
    let now = Timestamp::now();
    let lead = |first: String| if with_namespace { vec![first] } else { Vec::new() };
    let header = lead("NAMESPACE".into()).into_iter().chain(["NAME".to_owned()]);
    let cells = objects.iter().map(|object| {
        let first = lead(object.namespace().unwrap_or_default()).into_iter().chain([object.name_any()]);
        first.chain(object.cells(now)).collect()
    });
    let mut rows = Rows {
        header: header.chain(K::HEADER.iter().map(|&h| h.to_owned())).collect(),
        cells: cells.collect(),
    };
    match width {
        Width::Full => {}
        Width::Fitting => fit(&rows.header, &mut rows.cells),
    }
    rows
}

fn table<K: Row + ResourceExt>(objects: &[K], with_namespace: bool, width: Width) -> Table {
    let rows = rows(objects, with_namespace, width);
    let header: Vec<&str> = rows.header.iter().map(String::as_str).collect();
    super::render::table(&header, rows.cells.into_iter())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Fitting,
    Full,
}

impl Row for TerraformLayer {
    const HEADER: &'static [&'static str] = &["STATE", "CHANGES", "WHY", "COMMIT", "CHECKED"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let open = !condition::is_true(&status.conditions, "IsApplyUpToDate");
        let changes =
            status.plan.as_ref().map(|plan| plan.summary).filter(|summary| open && summary.has_changes());
        vec![
            status.state.map_or_else(dash, |state| format!("{state:?}")),
            changes.map_or_else(dash, |s| format!("+{} ~{} -{}", s.add, s.change, s.destroy)),
            status.why.unwrap_or_else(dash),
            status.revision.short.unwrap_or_else(dash),
            status.last_run.map_or_else(dash, |run| age(run.date.0, now)),
        ]
    }
}

impl Row for TerraformRun {
    const HEADER: &'static [&'static str] = &["LAYER", "ACTION", "STATE", "COMMIT", "RESULT", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        // While it has no result, what it waits for or does.
        let now_at = condition::find(&status.conditions, "Ready").map(|ready| ready.message.clone());
        vec![
            self.spec.layer.name.to_string(),
            self.spec.action.as_str().to_owned(),
            status.state.map_or_else(dash, |state| format!("{state:?}")),
            self.spec.layer.revision.short().to_owned(),
            status.result.map(|result| result.message).or(now_at).unwrap_or_else(dash),
            created(self, now),
        ]
    }
}

impl Row for TerraformRepository {
    const HEADER: &'static [&'static str] = &["URL", "READY", "MESSAGE", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let conditions = self.status.as_ref().map_or(&[][..], |s| s.conditions.as_slice());
        let ready = condition::find(conditions, "Ready");
        vec![
            self.spec.repository.url.to_string(),
            ready.map_or_else(dash, |c| c.status.clone()),
            ready.map_or_else(dash, |c| c.message.clone()),
            created(self, now),
        ]
    }
}

impl Row for TerraformApproval {
    const HEADER: &'static [&'static str] = &["LAYER", "DECISION", "USER", "PLAN", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.spec.layer.to_string(),
            format!("{:?}", self.spec.decision).to_lowercase(),
            self.spec.user.clone(),
            self.spec.plan_sha256.short().to_owned(),
            created(self, now),
        ]
    }
}

impl Row for Repo {
    const HEADER: &'static [&'static str] = &["URL", "COMMIT", "RUN", "READY", "MESSAGE", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, "Ready");
        vec![
            self.spec.url.to_string(),
            status.revision.short.clone().unwrap_or_else(dash),
            status.run.as_ref().map_or_else(dash, |run| format!("{:?}", run.state)),
            ready.map_or_else(dash, |c| c.status.clone()),
            ready.map_or_else(dash, |c| c.message.clone()),
            created(self, now),
        ]
    }
}

impl Row for Terraform {
    const HEADER: &'static [&'static str] = &["STATE", "MESSAGE", "READY", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, "Ready");
        // As the API writes it.
        let state = status.state.and_then(|state| serde_json::to_value(state).ok());
        vec![
            state.and_then(|state| Some(state.as_str()?.to_owned())).unwrap_or_else(dash),
            status.message.clone().unwrap_or_else(dash),
            ready.map_or_else(dash, |c| c.status.clone()),
            created(self, now),
        ]
    }
}

impl Row for TerraformNotification {
    const HEADER: &'static [&'static str] = &["READY", "LAST", "LAYER", "TOLD", "MESSAGE", "AGE"];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, "Ready");
        let sent = status.last_sent.as_ref();
        vec![
            ready.map_or_else(dash, |c| c.status.clone()),
            sent.map_or_else(dash, |sent| sent.event.as_str().to_owned()),
            sent.map_or_else(dash, |sent| sent.layer.clone()),
            sent.map_or_else(dash, |sent| age(sent.at.0, now)),
            ready.map_or_else(dash, |c| c.message.clone()),
            created(self, now),
        ]
    }
}

pub(super) fn dash() -> String {
    "-".to_owned()
}

fn created(object: &impl ResourceExt, now: Timestamp) -> String {
    object.creation_timestamp().map_or_else(dash, |time| age(time.0, now))
}

/// As kubectl shows it: the largest unit that is not zero.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let secs = now.duration_since(since).as_secs().max(0);
    match secs {
        0..60 => format!("{secs}s"),
        60..3600 => format!("{}m", secs / 60),
        3600..86_400 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}
