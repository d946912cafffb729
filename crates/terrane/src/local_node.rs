//! The process node of this binary: where its files lie and which programs its pods find. The same for `terrane up`, which brings
//! the API along, and for `terrane node`, which serves any other.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use node::Node;
use node::config::{Admission, Config, Jobs, Schedule, ShimCommand};
use node::images::{Image, Images};
use node::isolation::Isolation;
use node::records::LogLimits;

use crate::arguments::ImageRoot;
use crate::environment;

/// What differs between the nodes of this binary.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// The name of the Node object; the machine's own if not said.
    pub(crate) name: Option<String>,
    /// Records and logs of the node.
    pub(crate) state: &'a Path,
    pub(crate) images: &'a [ImageRoot],
    /// Places that every pod may read.
    pub(crate) readable: Vec<PathBuf>,
    pub(crate) schedule: Schedule,
    pub(crate) jobs: Jobs,
    pub(crate) admission: Admission,
    pub(crate) max_pods: usize,
}

/// A node that has its directories for itself, and what there is to say about it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: Node,
    pub(crate) name: String,
    pub(crate) isolation: Isolation,
}

pub(crate) fn open(options: Options<'_>) -> anyhow::Result<Opened> {
    let isolation = Isolation::detect(options.state);
    let pods = node::config::pods_directory(options.state, &isolation);
    let program = std::env::current_exe().context("find this program")?;
    let beside =
        node::config::program_directory(&program, engine::manifests::RUNNER_PROGRAM, &pods, &isolation)
            .context("give pods a copy of this program")?;
    let path = environment::search_path();
    let programs: Vec<PathBuf> = std::iter::once(beside).chain(std::env::split_paths(&path)).collect();
    let mut images = Images::new(programs);
    for image in options.images {
        images = images.with(&image.name, find_image(image, &isolation)?);
    }
    let name = options.name.unwrap_or_else(hostname);
    let node = Node::open(Config {
        name: name.clone(),
        state: options.state.to_owned(),
        pods,
        shim: ShimCommand { program, args: vec!["shim".into()] },
        isolation: isolation.clone(),
        images,
        readable: options.readable,
        schedule: options.schedule,
        jobs: options.jobs,
        admission: options.admission,
        max_pods: options.max_pods,
        log: LogLimits::default(),
    })?;
    Ok(Opened { node, name, isolation })
}

/// Said at start rather than by every pod that uses it.
fn find_image(image: &ImageRoot, isolation: &Isolation) -> anyhow::Result<Image> {
    let ImageRoot { name, directory } = image;
    let reachable = node::config::others_can_reach(directory)
        .with_context(|| format!("--image {name}={}: look who may enter it", directory.display()))?;
    match isolation {
        Isolation::Users(_) if !reachable => bail!(
            "--image {name}={}: pods have users of their own here, and others may not enter that directory; \
             let them, or choose another",
            directory.display()
        ),
        Isolation::Users(_) | Isolation::Landlock | Isolation::None { .. } => Ok(Image::below(directory)),
    }
}

/// A name that a Node may have.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_lowercase();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "local".to_owned() } else { name.to_owned() }
}
