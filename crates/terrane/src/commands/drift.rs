//! `terrane drift`: where the newest plan found the infrastructure to differ from the state.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;

use super::service::Service;
use super::{diff, get};
use crate::arguments::{Format, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// Print what drifted as data; name prints addresses only
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    #[command(flatten)]
    target: Target,
}

const DRIFTED: u8 = 2;

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let connection = super::connection(&options.target).await?;
    let (namespace, name) = (connection.namespace.as_str(), options.layer.as_str());
    let layer = super::layer(&connection.client, namespace, name).await?;
    let Some(plan) = layer.status.and_then(|status| status.plan) else {
        bail!("layer {namespace}/{name} was not compared with its code yet; `terrane plan {name}` does");
    };
    let service = Service::find(&connection).await?;
    let drift = diff::read(&service, namespace, &plan).await?.drift;
    match options.output {
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(&drift)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(&drift)?),
        Some(Format::Name) => drift.iter().for_each(|change| println!("{}", change.address)),
        None => {
            let looked = get::age(plan.made_at.0, Timestamp::now());
            match drift.len() {
                0 => println!("{name}: no drift, looked {looked} ago"),
                count => println!("{name}: {count} drifted, looked {looked} ago"),
            }
            drift.iter().for_each(|change| print!("{}", diff::lines(change)));
        }
    }
    Ok(if drift.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DRIFTED) })
}
