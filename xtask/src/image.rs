//! `cargo xtask image`: the images of Terrane, made of files and without a container engine. The same inputs give the same digest; which inputs
//! those are is in `docs/adr/0008-images.md`.

mod builder;
mod debian;
mod layer;
mod layout;
mod program;
#[cfg(test)]
mod recipes;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use debian::{Group, Package};
use layer::{Entry, Layer, Packed, digest};
use layout::{Identity, Process};

/// User and group of the images' processes: the number that images without a shell have agreed on.
const USER: u64 = 65_532;
const PROCESS: Process = Process {
    user: "65532:65532",
    environment: &["PATH=/usr/local/bin:/usr/bin:/usr/sbin", "HOME=/home/terrane"],
    entrypoint: &["/usr/local/bin/terrane"],
    directory: "/home/terrane",
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The built program
    #[arg(long, value_name = "FILE", default_value = "target/release/terrane")]
    binary: PathBuf,
    /// terraform or tofu, for the runner's image; a file of that name. Without it no runner's image is made
    #[arg(long, value_name = "FILE")]
    tool: Option<PathBuf>,
    /// kaniko's executor, for the builder's image. Without it no builder's image is made
    #[arg(long, value_name = "FILE")]
    kaniko: Option<PathBuf>,
    /// What the images are called, without a tag; the runner's ends in -runner, the builder's in -builder
    #[arg(long, value_name = "NAME", default_value = "terrane.dev/terrane")]
    name: String,
    /// Where the images go
    #[arg(long, value_name = "DIR", default_value = "target/image")]
    out: PathBuf,
    /// Where fetched Debian packages are kept; without it, in `debs` beside the images
    #[arg(long, value_name = "DIR")]
    debs: Option<PathBuf>,
    /// Where the packages of the lock cannot be had any more, take the newest. For trying out: the digest then depends on the day
    #[arg(long)]
    or_newest_packages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    fn of_this_machine() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => anyhow::bail!("there are no images for {other}, only for x86_64 and aarch64"),
        }
    }

    /// As Debian and images call it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust calls it.
    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// A layer with its bytes, and a word on what it holds.
struct Made {
    what: String,
    layer: Packed,
}

pub(crate) fn write(arguments: &Arguments) -> Result<()> {
    let architecture = Architecture::of_this_machine()?;
    let root = workspace()?;
    let lock_path = lock_path(root, architecture);
    let lock = fs::read_to_string(&lock_path)
        .with_context(|| format!("read {}; `cargo xtask image-lock` writes it", lock_path.display()))?;
    let locked = debian::parse_lock(&lock).with_context(|| format!("read {}", lock_path.display()))?;
    fs::create_dir_all(&arguments.out).with_context(|| format!("make {}", arguments.out.display()))?;
    let debs = arguments.debs.clone().unwrap_or_else(|| arguments.out.join("debs"));
    let packages = match debian::fetch(&locked, &debs) {
        Err(error) if arguments.or_newest_packages => {
            eprintln!("{error:#}: taking the newest packages instead of those of the lock");
            let newest = debian::resolve()?;
            debian::fetch(&newest, &debs)?;
            newest
        }
        fetched => fetched.map(|()| locked)?,
    };
    let libc6 = packages.iter().find(|package| package.name == "libc6").context("the lock has no libc6")?;
    let crates = sbom::crates(architecture, &fs::read_to_string(root.join("Cargo.lock"))?)?;

    let of_group = |group: Group| -> Vec<&Package> {
        packages.iter().filter(|package| package.group == group).collect()
    };
    let mut files = debian::unpack(&of_group(Group::Base), &debs)?;
    debian::add_root(&mut files, USER);
    let base = made("Debian packages of each image", &files)?;
    let binary = program::read_stripped(&arguments.binary, &arguments.out)?;
    program::check_machine(&arguments.binary, &binary, architecture)?;
    program::check_libc(&arguments.binary, &binary, &libc6.version)?;
    let terrane = made("terrane", &one_program("terrane", &binary))?;
    let terrane_sha256 = digest(&binary);
    let controller = Variant {
        suffix: "",
        packages: of_group(Group::Base),
        layers: vec![&base, &terrane],
        programs: vec![],
        process: &PROCESS,
    };
    controller.write(arguments, architecture, &crates, &terrane_sha256)?;

    if let Some(tool) = &arguments.tool {
        let name = tool.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ensure!(matches!(name, "terraform" | "tofu"), "{} is not named terraform or tofu", tool.display());
        let content = fs::read(tool).with_context(|| format!("read {}", tool.display()))?;
        program::check_machine(tool, &content, architecture)?;
        program::check_libc(tool, &content, &libc6.version)?;
        let shell = made("Debian packages of the runner", &debian::unpack(&of_group(Group::Runner), &debs)?)?;
        let tool = made(name, &one_program(name, &content))?;
        let runner = Variant {
            suffix: "-runner",
            packages: packages.iter().collect(),
            // What changes most often comes last, so that a registry has the others already.
            layers: vec![&base, &shell, &tool, &terrane],
            programs: vec![(name, digest(&content))],
            process: &PROCESS,
        };
        runner.write(arguments, architecture, &crates, &terrane_sha256)?;
    }
    if let Some(executor) = &arguments.kaniko {
        let content = fs::read(executor).with_context(|| format!("read {}", executor.display()))?;
        let foundation = builder::foundation(&files, &arguments.binary, architecture)?;
        let (kaniko, terrane) =
            (builder::executor(executor, &content, architecture)?, builder::terrane(&binary)?);
        let is_inside = |package: &&Package| builder::PACKAGES.contains(&package.name.as_str());
        let builder = Variant {
            suffix: "-builder",
            packages: packages.iter().filter(is_inside).collect(),
            layers: vec![&foundation, &kaniko, &terrane],
            programs: vec![("kaniko", digest(&content))],
            process: &builder::PROCESS,
        };
        builder.write(arguments, architecture, &crates, &terrane_sha256)?;
    }
    Ok(())
}

/// What one image has of what was made for all.
struct Variant<'a> {
    suffix: &'a str,
    packages: Vec<&'a Package>,
    layers: Vec<&'a Made>,
    /// Beside terrane, with their digests.
    programs: Vec<(&'a str, String)>,
    process: &'a Process,
}

impl Variant<'_> {
    fn write(
        &self,
        arguments: &Arguments,
        architecture: Architecture,
        crates: &[serde_json::Value],
        terrane_sha256: &str,
    ) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let name = format!("{}{}:{version}", arguments.name, self.suffix);
        let title = format!("terrane{}", self.suffix);
        let identity = Identity { name: &name, title: &title, version, architecture, process: self.process };
        let layers: Vec<(&str, &Packed)> =
            self.layers.iter().map(|made| (made.what.as_str(), &made.layer)).collect();
        let image = layout::assemble(&identity, &layers)?;
        let stem = format!("{title}-{version}-{}", architecture.as_str());
        image.write_directory(&arguments.out.join(&stem))?;
        put(&arguments.out.join(format!("{stem}.tar")), &image.archive()?)?;
        let mut programs = vec![sbom::Program { name: "terrane", sha256: hex_of(terrane_sha256) }];
        programs.extend(
            self.programs.iter().map(|(name, digest)| sbom::Program { name, sha256: hex_of(digest) }),
        );
        let document = sbom::document(&identity, &image.digest, crates, &self.packages, &programs);
        let mut text = serde_json::to_vec_pretty(&document)?;
        text.push(b'\n');
        put(&arguments.out.join(format!("{stem}.cdx.json")), &text)?;
        println!(
            "{name} {} {:.1} MB {}",
            image.digest,
            image.size as f64 / 1e6,
            arguments.out.join(stem).display()
        );
        Ok(())
    }
}

fn made(what: &str, layer: &Layer) -> Result<Made> {
    Ok(Made { what: what.to_owned(), layer: layer.pack()? })
}

fn one_program(name: &str, content: &[u8]) -> Layer {
    let mut layer = Layer::default();
    layer.put(&format!("usr/local/bin/{name}"), Entry::program(content));
    layer
}

fn hex_of(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Writes the newest Debian packages that apt offers into the lock.
pub(crate) fn write_lock() -> Result<()> {
    let path = lock_path(workspace()?, Architecture::of_this_machine()?);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    put(&path, debian::write_lock(&debian::resolve()?).as_bytes())?;
    println!("{}", path.display());
    Ok(())
}

fn lock_path(root: &Path, architecture: Architecture) -> PathBuf {
    root.join(format!("deploy/image/debian-12-{}.lock", architecture.as_str()))
}

fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")
}
