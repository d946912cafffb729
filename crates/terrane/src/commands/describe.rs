//! `terrane describe`: everything about one object that a person asks for first, with the why at the top.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use api::hooks::{Moment, Script};
use api::inputs::{KeyRef, ValueSource};
use api::text::LayerPath;
use api::{TerraformLayer, TerraformLayerSpec, TerraformRun};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};

use super::missing::missing;
use super::{events, find, get, queue, render, wait};
use crate::arguments::{Kind, Shape, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A layer, KIND/NAME, or a KIND that a NAME follows
    object: String,
    /// The name, where a kind stands before it
    name: Option<String>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    shape: Shape,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let object = in_one_word(&options.object, options.name.as_deref());
    let (kind, name) = wait::object(&object)?;
    let now = Timestamp::now();
    match kind {
        Kind::Layers => {
            let mut layer = super::layer(&client, &namespace, name).await?;
            if options.shape.output.is_none() {
                queue::tell_places(&client, &namespace, std::slice::from_mut(&mut layer)).await?;
            }
            let runs = find::runs_of(&client, &namespace, name).await?;
            let events = events::of_layer(&client, &namespace, name).await?;
            render::object(options.shape.output, &layer, || of_layer(&layer, &runs, &events, now))
        }
        Kind::Runs => {
            let run = Api::<TerraformRun>::namespaced(client.clone(), &namespace)
                .get_opt(name)
                .await
                .with_context(|| format!("read run {namespace}/{name}"))?;
            let Some(mut run) = run else {
                bail!("run {namespace}/{name} not found; `terrane get runs -n {namespace}` lists them");
            };
            if options.shape.output.is_none() {
                queue::tell_places(&client, &namespace, std::slice::from_mut(&mut run)).await?;
            }
            let events = events_about(&client, &namespace, "TerraformRun", name).await?;
            render::object(options.shape.output, &run, || of_run(&run, &events, now))
        }
        Kind::Repositories | Kind::Approvals | Kind::Repos | Kind::Terraforms | Kind::Notifications => {
            other(&client, &namespace, kind, name, options.shape).await
        }
    }
}

/// As kubectl takes them too: `layer/app` and `layer app` are the same.
pub(super) fn in_one_word(object: &str, name: Option<&str>) -> String {
    name.map_or_else(|| object.to_owned(), |name| format!("{object}/{name}"))
}

async fn events_about(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> anyhow::Result<Vec<Event>> {
    let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let found = Api::<Event>::namespaced(client.clone(), namespace)
        .list(&ListParams::default().fields(&fields))
        .await
        .context("list the events")?;
    Ok(found.items)
}

fn of_layer(layer: &TerraformLayer, runs: &[TerraformRun], events: &[Event], now: Timestamp) -> String {
    let status = layer.status.clone().unwrap_or_default();
    let mut text = Text::default();
    text.line("Name", &layer.name_any());
    text.line("Namespace", &layer.namespace().unwrap_or_default());
    text.line(
        "State",
        &status.state.map_or_else(|| "not looked at yet".to_owned(), |state| format!("{state:?}")),
    );
    text.line("Why", &status.why.unwrap_or_else(get::dash));
    let spec = &layer.spec;
    text.line("Code", &code(layer));
    if let Some(workspace) = &spec.workspace {
        text.line("Workspace", workspace.as_str());
    }
    let given = [
        ("Variables", variables(spec)),
        ("Environment", environment(spec)),
        ("Hooks", hooks(spec)),
        ("Scripts", scripts(spec)),
        ("Backend", backend(spec)),
        ("Outputs go to", outputs(spec)),
    ];
    for (label, given) in given {
        if !given.is_empty() {
            text.line(label, &given.join(", "));
        }
    }
    if spec.suspend {
        text.line("Suspended", &format!("yes; `terrane resume {}` lets it go on", layer.name_any()));
    }
    let revision = &status.revision;
    for (label, commit) in
        [("Commit", &revision.relevant), ("Planned", &revision.planned), ("Applied", &revision.applied)]
    {
        text.line(label, &commit.as_ref().map_or_else(get::dash, ToString::to_string));
    }
    if let Some(plan) = &status.plan {
        let made = ago(&plan.made_at, now);
        let run = runs.iter().find(|run| run.name_any() == plan.run);
        let tool = run.and_then(|run| find::tool_of(run, plan.attempt));
        let by = tool.map(|tool| format!(" by {tool}")).unwrap_or_default();
        text.line(
            "Plan",
            &format!("{}: {}, made {made}{by}", plan.sha256.short(), render::counts(plan.summary)),
        );
        if let Some(expires) = &plan.expires {
            text.line("Expires", &expires.0.to_string());
        }
    }
    if let Some(next) = &status.next_check {
        text.line("Next look", &next.0.to_string());
    }
    if status.consecutive_failures > 0 {
        text.line("Failures", &format!("{} in a row", status.consecutive_failures));
    }
    if !status.hook_outputs.is_empty() {
        let outputs = status.hook_outputs.iter().map(|(name, value)| format!("{name}: {value}"));
        text.block("hook outputs", outputs.collect::<Vec<_>>().iter().map(String::as_str));
    }
    text.conditions(&status.conditions, now);
    let rows = runs.iter().map(|run| {
        let state = run.status.as_ref().and_then(|status| status.state);
        vec![
            run.name_any(),
            run.spec.action.as_str().to_owned(),
            state.map_or_else(get::dash, |state| format!("{state:?}")),
            run.spec.layer.revision.short().to_owned(),
            find::outcome(run),
        ]
    });
    text.table("Runs", &["NAME", "ACTION", "STATE", "COMMIT", "RESULT"], rows.collect());
    text.events(events, now);
    text.0.trim_end().to_owned()
}

/// Where the code comes from.
fn code(layer: &TerraformLayer) -> String {
    let spec = &layer.spec;
    if let (Some(repository), Some(branch)) = (&spec.repository, &spec.branch) {
        return format!("{} of {}, branch {branch}", spec.path, repository.name);
    }
    let known = layer.status.as_ref().and_then(|status| status.image.as_ref());
    let image = match (known, &spec.image) {
        (Some(known), _) => known.to_string(),
        (None, Some(asked)) => asked.name.to_string(),
        (None, None) => return spec.path.to_string(),
    };
    format!("{} of image {image}", spec.path)
}

/// Where they go, never what they are.
fn outputs(spec: &TerraformLayerSpec) -> Vec<String> {
    let targets = spec.write_outputs_to.iter().filter_map(|target| Some((target.object()?, &target.keys)));
    targets
        .map(|(object, keys)| match keys.len() {
            0 => format!("all to {object}"),
            _ => {
                let names: Vec<&str> = keys.iter().map(|key| key.output.as_str()).collect();
                format!("{} to {object}", names.join(" and "))
            }
        })
        .collect()
}

/// Names and places, never values; the one that wins comes last.
fn variables(spec: &TerraformLayerSpec) -> Vec<String> {
    let files = spec.variable_files.iter().map(|file| format!("those in {file}"));
    let objects = spec.variables_from.iter().filter_map(|from| from.object());
    let objects = objects.map(|object| format!("those of {object}"));
    let single = spec.variables.iter().map(|one| named(one.name.as_str(), one.value_from.as_ref()));
    files.chain(objects).chain(single).collect()
}

fn environment(spec: &TerraformLayerSpec) -> Vec<String> {
    let objects = spec.environment_from.iter().filter_map(|from| from.object());
    let objects = objects.map(|object| format!("all of {object}"));
    let single = spec.environment.iter().map(|one| named(one.name.as_str(), one.value_from.as_ref()));
    objects.chain(single).collect()
}

/// When they run, and where their text is.
fn hooks(spec: &TerraformLayerSpec) -> Vec<String> {
    let all = Moment::ALL
        .into_iter()
        .flat_map(|moment| spec.hooks.at(moment).iter().map(move |hook| (moment, hook)));
    all.map(|(moment, hook)| placed(moment.as_str(), hook.config_map_ref.as_ref(), hook.path.as_ref()))
        .collect()
}

fn backend(spec: &TerraformLayerSpec) -> Vec<String> {
    let Some(asked) = &spec.backend else { return Vec::new() };
    let fields = asked.fields.iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    let login =
        asked.credentials.iter().map(|login| format!("credentials from Secret {}", login.secret_name));
    [asked.provider.to_string()].into_iter().chain(fields).chain(login).collect()
}

fn scripts(spec: &TerraformLayerSpec) -> Vec<String> {
    let of = |name: &str, script: &Script| placed(name, script.config_map_ref.as_ref(), script.path.as_ref());
    let apply = spec.scripts.apply.iter().map(|script| of("apply", script));
    apply.chain(spec.scripts.destroy.iter().map(|script| of("destroy", script))).collect()
}

fn placed(name: &str, config_map: Option<&KeyRef>, path: Option<&LayerPath>) -> String {
    match (config_map, path) {
        (Some(key), _) => format!("{name} from {}", key.config_map()),
        (None, Some(path)) => format!("{name} by {path}"),
        (None, None) => name.to_owned(),
    }
}

fn named(name: &str, from: Option<&ValueSource>) -> String {
    match from.and_then(ValueSource::place) {
        Some((object, _)) => format!("{name} from {object}"),
        None => name.to_owned(),
    }
}

fn of_run(run: &TerraformRun, events: &[Event], now: Timestamp) -> String {
    let status = run.status.clone().unwrap_or_default();
    let mut text = Text::default();
    text.line("Name", &run.name_any());
    text.line("Namespace", &run.namespace().unwrap_or_default());
    text.line("Layer", run.spec.layer.name.as_str());
    text.line("Action", run.spec.action.as_str());
    text.line("Commit", &run.spec.layer.revision.to_string());
    let by = run.spec.trigger.by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
    text.line("Because", &format!("{}{by}", run.spec.trigger.reason));
    if let Some(artifact) = &run.spec.artifact {
        text.line("Applies", &format!("plan {} of run {}", artifact.sha256.short(), artifact.run));
    }
    text.line(
        "State",
        &status.state.map_or_else(|| "not looked at yet".to_owned(), |state| format!("{state:?}")),
    );
    text.line("Result", &find::outcome(run));
    text.conditions(&status.conditions, now);
    let rows = status.attempts.iter().map(|attempt| {
        let end = attempt.finished_at.as_ref().map(|end| end.0);
        let took = end.map(|end| format!("{}s", end.duration_since(attempt.started_at.0).as_secs()));
        vec![
            attempt.number.to_string(),
            ago(&attempt.started_at, now),
            took.unwrap_or_else(|| "running".to_owned()),
            attempt.exit_code.map_or_else(get::dash, |code| code.to_string()),
            attempt.tool.clone().unwrap_or_else(get::dash),
            attempt.reason.clone().unwrap_or_else(get::dash),
            attempt.message.clone().unwrap_or_default(),
        ]
    });
    text.table(
        "Attempts",
        &["NUMBER", "STARTED", "TOOK", "EXIT", "TOOL", "REASON", "MESSAGE"],
        rows.collect(),
    );
    text.events(events, now);
    text.0.trim_end().to_owned()
}

/// Kinds that say all there is in their fields.
async fn other(client: &Client, namespace: &str, kind: Kind, name: &str, shape: Shape) -> anyhow::Result<()> {
    use crate::arguments::Format;
    let resource = wait::resource(kind);
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let object =
        api.get_opt(name).await.with_context(|| format!("read {} {namespace}/{name}", resource.kind))?;
    let Some(mut object) = object else {
        return Err(missing(&api, namespace, &resource.kind, name).await);
    };
    match shape.output {
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(&object)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(&object)?),
        Some(Format::Name) => println!("{}/{name}", resource.plural),
        None => {
            let now = Timestamp::now();
            let events = events_about(client, namespace, &resource.kind, name).await?;
            let conditions = object.data.pointer_mut("/status/conditions").map(serde_json::Value::take);
            let conditions: Vec<Condition> =
                conditions.and_then(|list| serde_json::from_value(list).ok()).unwrap_or_default();
            let mut text = Text::default();
            text.line("Name", name);
            text.line("Namespace", namespace);
            for part in ["spec", "status"] {
                if let Some(fields) = object.data.get(part) {
                    let yaml = serde_saphyr::to_string(fields)?;
                    let lines = yaml.lines().filter(|line| !line.starts_with("conditions:"));
                    text.block(part, lines);
                }
            }
            text.conditions(&conditions, now);
            text.events(&events, now);
            print!("{}", text.0);
        }
    }
    Ok(())
}

fn ago(time: &Time, now: Timestamp) -> String {
    format!("{} ago", get::age(time.0, now))
}

/// A description that grows line by line.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, label: &str, value: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{:<12} {value}", format!("{label}:"));
    }

    fn block<'a>(&mut self, title: &str, lines: impl Iterator<Item = &'a str>) {
        let mut letters = title.chars();
        let title: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        let _ = writeln!(self.0, "\n{title}:");
        for line in lines {
            let _ = writeln!(self.0, "  {line}");
        }
    }

    fn table(&mut self, title: &str, header: &[&str], rows: Vec<Vec<String>>) {
        if rows.is_empty() {
            return;
        }
        let table = render::table(header, rows.into_iter()).trim_fmt();
        self.block(title, table.lines());
    }

    fn conditions(&mut self, conditions: &[Condition], now: Timestamp) {
        let rows = conditions.iter().map(|condition| {
            let since = get::age(condition.last_transition_time.0, now);
            vec![condition.type_.clone(), condition.status.clone(), since, condition.message.clone()]
        });
        self.table("Conditions", &["TYPE", "STATUS", "SINCE", "MESSAGE"], rows.collect());
    }

    fn events(&mut self, events: &[Event], now: Timestamp) {
        let rows = events.iter().map(|event| events::cells(event, now));
        self.table("Events", events::HEADER, rows.collect());
    }
}
