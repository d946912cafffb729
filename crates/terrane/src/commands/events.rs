//! `terrane events`: what happened to layers and to what was made for them.

use std::collections::HashSet;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::{find, get, render};
use crate::arguments::{Output, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only of this layer, its runs and their pods
    layer: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Of all namespaces
    #[arg(short = 'A', long, conflicts_with = "layer")]
    all_namespaces: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let events = match &options.layer {
        Some(layer) => {
            super::layer(&client, &namespace, layer).await?;
            of_layer(&client, &namespace, layer).await?
        }
        None => {
            let api = if options.all_namespaces {
                Api::all(client.clone())
            } else {
                Api::namespaced(client.clone(), &namespace)
            };
            let ours = format!("{}/", api::GROUP);
            let about_us = |event: &Event| {
                event.involved_object.api_version.as_deref().is_some_and(|v| v.starts_with(&ours))
            };
            sorted(list(&api).await?.into_iter().filter(about_us).collect())
        }
    };
    match options.output {
        Output::Table | Output::Wide if events.is_empty() => eprintln!("nothing happened, as far as is kept"),
        output => render::rows(
            output,
            &events,
            HEADER,
            |event| cells(event, Timestamp::now()),
            |event| format!("events/{}", event.name_any()),
        )?,
    }
    Ok(())
}

pub(super) const HEADER: &[&str] = &["LAST", "TYPE", "REASON", "OBJECT", "MESSAGE"];

pub(super) fn cells(event: &Event, now: Timestamp) -> Vec<String> {
    let object = &event.involved_object;
    let kind = object.kind.as_deref().unwrap_or_default().trim_start_matches("Terraform").to_lowercase();
    vec![
        when(event).map_or_else(get::dash, |time| get::age(time, now)),
        event.type_.clone().unwrap_or_else(get::dash),
        event.reason.clone().unwrap_or_else(get::dash),
        format!("{kind}/{}", object.name.as_deref().unwrap_or_default()),
        event.message.clone().unwrap_or_default().trim().replace('\n', " "),
    ]
}

/// Events about a layer, its runs and their pods, oldest first. O(events of the namespace).
pub(super) async fn of_layer(client: &Client, namespace: &str, layer: &str) -> anyhow::Result<Vec<Event>> {
    let runs = find::runs_of(client, namespace, layer).await?;
    let mut about: HashSet<(&str, String)> = HashSet::from([("TerraformLayer", layer.to_owned())]);
    for run in &runs {
        about.insert(("TerraformRun", run.name_any()));
        let attempts = run.status.iter().flat_map(|status| &status.attempts);
        about.extend(attempts.map(|attempt| ("Pod", attempt.pod_name.clone())));
    }
    let is_about = |event: &Event| {
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default();
        about.iter().any(|(known, name)| *known == kind && Some(name.as_str()) == object.name.as_deref())
    };
    let all = list(&Api::namespaced(client.clone(), namespace)).await?;
    Ok(sorted(all.into_iter().filter(is_about).collect()))
}

async fn list(api: &Api<Event>) -> anyhow::Result<Vec<Event>> {
    Ok(api.list(&ListParams::default()).await.context("list the events")?.items)
}

fn sorted(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_cached_key(|event| (when(event), event.name_any()));
    events
}

/// When it happened last; events of the newer group have another field for it.
fn when(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|t| t.0);
    series
        .or_else(|| event.last_timestamp.as_ref().map(|t| t.0))
        .or_else(|| event.event_time.as_ref().map(|t| t.0))
        .or_else(|| event.creation_timestamp().map(|t| t.0))
}
