//! `cargo xtask`: what a developer runs beside the compiler.

mod generate;
mod openapi;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What a developer runs beside the compiler")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the files that are generated from the code
    Gen {
        /// Change nothing; fail when a file is not what the code says
        #[arg(long)]
        check: bool,
    },
    /// Fetch the schemas of built-in kinds from a kube-apiserver
    Openapi(openapi::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Gen { check: true } => generate::check(),
        Task::Gen { check: false } => generate::write(),
        Task::Openapi(arguments) => openapi::write(&arguments),
    }
}
