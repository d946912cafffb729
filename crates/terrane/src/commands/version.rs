//! `terrane version`.

use clap::Args;
use serde_json::json;

use crate::arguments::Format;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Print it as data
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let data = json!({ "version": version });
    match options.output {
        None => println!("terrane {version}"),
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(&data)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(&data)?),
        Some(Format::Name) => println!("{version}"),
    }
    Ok(())
}
