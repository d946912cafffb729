//! `cargo xtask`: what a developer runs beside the compiler.

mod generate;
mod image;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod linked;
mod openapi;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod promises;

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
    /// Make the container images of a built program, with a list of what is in them
    Image(image::Arguments),
    /// Write the newest Debian packages that apt offers into the lock of the images
    ImageLock,
    /// Fetch the schemas of built-in kinds from a kube-apiserver
    Openapi(openapi::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Gen { check: true } => generate::check(),
        Task::Gen { check: false } => generate::write(),
        Task::Image(arguments) => image::write(&arguments),
        Task::ImageLock => image::write_lock(),
        Task::Openapi(arguments) => openapi::write(&arguments),
    }
}
