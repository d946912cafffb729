//! `terrane tools`: the programs and providers that runs use and were downloaded. Works on a directory of this machine, without an API.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::provider::Address;
use api::tool::{Program, Trust};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use node::isolation::Isolation;
use serde::Serialize;
use tofu::store::providers::{Package, ProviderStore, Record};
use tofu::store::{Installed, SourceOptions, Store};
use tofu::versions::Constraint;

use super::progress::Progress;
use super::render;
use crate::arguments::Output;
use crate::{provider_service, tool_service};

/// Where the vendors' keys are looked for, below the data directory.
const KEYS: &str = "tool-keys";

/// List, install and remove the terraform, tofu and terragrunt that runs use, and the providers that they share
///
/// A run uses an installed program that satisfies what its layer and code ask for; else one in this store; else it asks for one,
/// which is downloaded into the store. The store belongs to `terrane up` of the same data directory: runs read it and cannot change
/// it. What is downloaded must be in the vendor's signed checksums, or have a checksum that you wrote down.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Trust HashiCorp's releases, and have one ready before the first run asks for it:
      mkdir -p .terrane/tool-keys
      curl -o .terrane/tool-keys/terraform.asc https://www.hashicorp.com/.well-known/pgp-key.txt
      terrane tools install terraform 1.9.8
  What is there, and why each is believed:
      terrane tools list
  Keep the two newest of each:
      terrane tools prune --keep 2

Exit codes: 0 done, 1 not done. A download that is refused leaves nothing in the store.")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show what is in the store, where it came from and why it is believed
    List(List),
    /// Download a version, check it and keep it; nothing happens if it is there
    Install(Install),
    /// Remove old versions; a run that needs one again downloads it again. Best while no run works, as one that has begun may have linked
    /// to an old provider
    Prune(Prune),
}

/// Which store.
#[derive(Args, Debug)]
struct Place {
    /// The data directory of the `terrane up` whose store it is
    #[arg(long, value_name = "DIR", default_value = ".terrane", env = "TERRANE_DATA_DIR")]
    data_dir: PathBuf,
    /// The store itself, if it is somewhere else
    #[arg(long, value_name = "DIR", env = "TERRANE_TOOLS_DIR")]
    store: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct List {
    #[command(flatten)]
    place: Place,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Args, Debug)]
struct Install {
    #[arg(value_enum)]
    program: Typed,
    /// A version such as 1.9.8, or a constraint such as "~> 1.9" for the newest release that satisfies it
    #[arg(value_name = "VERSION")]
    wanted: Constraint,
    #[command(flatten)]
    downloads: Downloads,
    #[command(flatten)]
    place: Place,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Args, Debug)]
struct Prune {
    /// How many versions of each program and provider stay, the newest
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    keep: usize,
    /// Only of this program, and no providers; may be given several times
    #[arg(long = "program", value_enum, value_name = "PROGRAM")]
    programs: Vec<Typed>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
    /// How to print what goes
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Where tools are downloaded from and what is believed; the same for everything that downloads.
#[derive(Args, Debug, Clone)]
pub(crate) struct Downloads {
    /// Download tools from below this URL, as PROGRAM/VERSION/FILE, instead of from their vendors
    #[arg(long, value_name = "URL", env = "TERRANE_TOOLS_MIRROR")]
    tools_mirror: Option<String>,
    /// The vendors' public keys: terraform.asc, tofu.asc, terragrunt.asc [default: tool-keys in the data directory]
    #[arg(long, value_name = "DIR", env = "TERRANE_TOOLS_KEYS")]
    tools_keys: Option<PathBuf>,
    /// Checksums that need no signature, as sha256sum writes them: "SHA256  terraform_1.9.8_linux_amd64.zip"
    #[arg(long, value_name = "FILE", env = "TERRANE_TOOLS_CHECKSUMS")]
    tools_checksums: Option<PathBuf>,
    /// A PEM file with authorities that mirrors and registries are believed by, beside those of the system
    #[arg(long, value_name = "FILE", env = "TERRANE_DOWNLOADS_CA")]
    downloads_ca: Option<PathBuf>,
}

impl Downloads {
    pub(crate) fn keys(&self, default_keys: &Path) -> PathBuf {
        self.tools_keys.clone().unwrap_or_else(|| default_keys.to_owned())
    }

    pub(crate) fn source(&self, default_keys: &Path) -> SourceOptions {
        SourceOptions {
            mirror: self.tools_mirror.clone(),
            keys: Some(self.keys(default_keys)),
            checksums: self.tools_checksums.clone(),
            authority: self.authority(),
        }
    }

    pub(crate) fn authority(&self) -> Option<PathBuf> {
        self.downloads_ca.clone()
    }
}

pub(crate) fn default_keys(data: &Path) -> PathBuf {
    data.join(KEYS)
}

/// The store of a data directory. Pods with users of their own cannot enter that, so it lies beside their files then.
pub(crate) fn store_directory(data: &Path, isolation: &Isolation) -> PathBuf {
    match isolation {
        Isolation::Users(_) => node::config::pods_directory(&data.join("node"), isolation).join("tools"),
        Isolation::Landlock | Isolation::None { .. } => data.join("tools"),
    }
}

/// A program as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Typed {
    Terraform,
    #[value(alias = "opentofu")]
    Tofu,
    Terragrunt,
}

impl From<Typed> for Program {
    fn from(typed: Typed) -> Self {
        match typed {
            Typed::Terraform => Program::Terraform,
            Typed::Tofu => Program::Opentofu,
            Typed::Terragrunt => Program::Terragrunt,
        }
    }
}

impl Place {
    fn root(&self) -> anyhow::Result<PathBuf> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let data = self.data()?;
        Ok(store_directory(&data, &Isolation::detect(&data.join("node"))))
    }

    fn data(&self) -> anyhow::Result<PathBuf> {
        std::path::absolute(&self.data_dir).with_context(|| format!("find {}", self.data_dir.display()))
    }
}

/// What a row is about.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Thing {
    Program(Program),
    Provider(Address),
}

impl std::fmt::Display for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Program(program) => program.fmt(f),
            Self::Provider(address) => address.fmt(f),
        }
    }
}

/// One program or provider as it is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    program: Thing,
    version: String,
    path: PathBuf,
    bytes: Option<u64>,
    sha256: Option<String>,
    from: Option<String>,
    trust: Option<Trust>,
    installed_at: Option<Timestamp>,
}

impl Row {
    fn new(store: &Store, installed: &Installed) -> Self {
        let record = store.record(installed);
        let known = record.as_ref();
        Self {
            program: Thing::Program(installed.program),
            version: installed.version.to_string(),
            path: installed.path.clone(),
            bytes: known.map(|record| record.bytes),
            sha256: known.map(|record| record.sha256.to_string()),
            from: known.map(|record| record.from.clone()),
            installed_at: known.map(|record| record.installed_at),
            trust: record.map(|record| record.trust),
        }
    }

    fn of_provider(package: &Package) -> Self {
        let Record { sha256, bytes, from, trust, installed_at, .. } = package.record.clone();
        Self {
            program: Thing::Provider(package.provider.address.clone()),
            version: package.provider.version.to_string(),
            path: package.directory.clone(),
            bytes: Some(bytes),
            sha256: Some(sha256.to_string()),
            from: Some(from),
            installed_at: Some(installed_at),
            trust: Some(trust),
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            self.program.to_string(),
            self.version.clone(),
            or_dash(self.bytes.map(|bytes| format!("{} MB", bytes.div_ceil(1_000_000)))),
            match &self.trust {
                Some(Trust::Signature { key }) => format!("signed by {}", last(key, 16)),
                Some(Trust::Checksum) => "checksum of yours".to_owned(),
                None => "unknown: put there by hand".to_owned(),
            },
            or_dash(self.installed_at.map(|at| at.strftime("%Y-%m-%d").to_string())),
        ]
    }
}

fn last(text: &str, count: usize) -> &str {
    text.get(text.len().saturating_sub(count)..).unwrap_or(text)
}

fn print(output: Output, rows: &[Row]) -> anyhow::Result<()> {
    let header = ["PROGRAM", "VERSION", "SIZE", "TRUST", "INSTALLED"];
    render::rows(output, rows, &header, Row::cells, |row| format!("{}-{}", row.program, row.version))
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.verb {
        Verb::List(list) => {
            let store = Store::at(list.place.root()?);
            let mut rows: Vec<Row> = store.list()?.iter().map(|one| Row::new(&store, one)).collect();
            rows.extend(providers(&store).list()?.iter().map(Row::of_provider));
            if rows.is_empty() && matches!(list.output, Output::Table | Output::Wide) {
                println!("The store {} is empty.", store.root().display());
                return Ok(());
            }
            print(list.output, &rows)
        }
        Verb::Install(options) => install(options).await,
        Verb::Prune(options) => prune(options).await,
    }
}

/// The providers that lie beside the programs.
fn providers(store: &Store) -> ProviderStore {
    ProviderStore::at(provider_service::directory(store.root()))
}

async fn install(options: Install) -> anyhow::Result<()> {
    let keys = default_keys(&options.place.data()?);
    let (store, source) = tool_service::open(&options.place.root()?, &options.downloads, &keys)?;
    let program = Program::from(options.program);
    let version = source.resolve(program, &options.wanted).await?;
    let mut progress = Progress::new(format!("{program} {version}"));
    let mut shown = 0;
    let installed = store
        .install(program, &version, &source, &mut |done, total| {
            // One drawing for each megabyte is plenty.
            if done / 1_000_000 != shown {
                shown = done / 1_000_000;
                let of = total.map(|total| format!(" of {}", total.div_ceil(1_000_000))).unwrap_or_default();
                progress.say(format!("{program} {version}: {shown}{of} MB"));
            }
        })
        .await?;
    progress.clear();
    let row = Row::new(&store, &installed);
    match options.output {
        Output::Table | Output::Wide => {
            println!("{program} {version} is in {}", installed.path.display());
            Ok(())
        }
        Output::Json => {
            println!("{}", serde_json::to_string_pretty(&row)?);
            Ok(())
        }
        Output::Yaml => {
            print!("{}", serde_saphyr::to_string(&row)?);
            Ok(())
        }
        Output::Name => print(options.output, &[row]),
    }
}

async fn prune(options: Prune) -> anyhow::Result<()> {
    let root = options.place.root()?;
    if !root.is_dir() {
        bail!("there is no store {}; name its data directory with --data-dir", root.display());
    }
    let store = Store::at(root);
    let programs: Vec<Program> = options.programs.into_iter().map(Program::from).collect();
    let going = superfluous(store.list()?, options.keep, &programs);
    let shared = providers(&store);
    let old = if programs.is_empty() { outdated(shared.list()?, options.keep) } else { Vec::new() };
    let mut rows: Vec<Row> = going.iter().map(|one| Row::new(&store, one)).collect();
    rows.extend(old.iter().map(Row::of_provider));
    if !options.dry_run {
        for installed in &going {
            store.remove(installed).await?;
        }
        for package in &old {
            shared.remove(package).await?;
        }
    }
    match options.output {
        Output::Table | Output::Wide => {
            let verb = if options.dry_run { "would be removed" } else { "removed" };
            rows.iter().for_each(|row| println!("{} {} {verb}", row.program, row.version));
            if rows.is_empty() {
                println!("Nothing to remove.");
            }
            Ok(())
        }
        Output::Json | Output::Yaml | Output::Name => print(options.output, &rows),
    }
}

/// All but the newest of each program. O(programs in the store).
fn superfluous(installed: Vec<Installed>, keep: usize, programs: &[Program]) -> Vec<Installed> {
    let mut going = Vec::new();
    for program in Program::ALL {
        if !programs.is_empty() && !programs.contains(&program) {
            continue;
        }
        let of_it: Vec<&Installed> = installed.iter().filter(|one| one.program == program).collect();
        let count = of_it.len().saturating_sub(keep);
        going.extend(of_it.into_iter().take(count).cloned());
    }
    going
}

/// All but the newest versions of each provider, which come sorted. O(packages).
fn outdated(packages: Vec<Package>, keep: usize) -> Vec<Package> {
    packages
        .chunk_by(|a, b| a.provider.address == b.provider.address)
        .flat_map(|of_one| of_one.iter().take(of_one.len().saturating_sub(keep)).cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use api::tool::Program::{Opentofu, Terraform};

    #[test]
    fn the_newest_of_each_program_stay() {
        let store = |all: &[(Program, u64)]| -> Vec<Installed> {
            let one = |(program, minor): &(Program, u64)| Installed {
                program: *program,
                version: semver::Version::new(1, *minor, 0),
                path: PathBuf::new(),
            };
            all.iter().map(one).collect()
        };
        let names = |going: Vec<Installed>| going.iter().map(Installed::name).collect::<Vec<_>>().join(" ");
        let all = store(&[(Terraform, 5), (Terraform, 9), (Opentofu, 6), (Opentofu, 7), (Opentofu, 8)]);
        assert_eq!(names(superfluous(all.clone(), 1, &[])), "terraform-1.5.0 tofu-1.6.0 tofu-1.7.0");
        assert_eq!(names(superfluous(all.clone(), 2, &[])), "tofu-1.6.0");
        assert_eq!(names(superfluous(all.clone(), 0, &[Terraform])), "terraform-1.5.0 terraform-1.9.0");
        assert_eq!(names(superfluous(all, 9, &[])), "");
    }

    #[test]
    fn the_newest_of_each_provider_stay() {
        let package = |name: &str, minor: u64| Package {
            provider: tofu::store::providers::Provider {
                address: Address::parse(&format!("h/n/{name}")).unwrap(),
                version: semver::Version::new(1, minor, 0),
                platform: tofu::store::Platform::named("linux_amd64").unwrap(),
            },
            directory: PathBuf::new(),
            record: Record {
                sha256: api::text::Sha256::of(b""),
                h1: String::new(),
                bytes: 0,
                from: String::new(),
                trust: Trust::Checksum,
                installed_at: Timestamp::UNIX_EPOCH,
            },
        };
        let all = [package("a", 1), package("a", 2), package("a", 10), package("b", 1)];
        let left = |keep| {
            let going = outdated(all.to_vec(), keep);
            going
                .iter()
                .map(|one| format!("{} {}", one.provider.address.kind(), one.provider.version))
                .collect::<Vec<_>>()
                .join(", ")
        };
        assert_eq!(left(1), "a 1.1.0, a 1.2.0");
        assert_eq!(left(2), "a 1.1.0");
        assert_eq!(left(0), "a 1.1.0, a 1.2.0, a 1.10.0, b 1.1.0");
    }
}
