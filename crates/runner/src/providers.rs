//! Where the tool gets providers from: a mirror that the administrator named, the store of the machine, or its registries as ever. This
//! writes the tool's configuration and links to what is there; the tool itself judges each package by the lock file.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use api::attempt::Reason;
use api::provider::{Answer, Request};
use tofu::ProviderChoice;
use tofu::lock_file::{self, Locked};
use tofu::plan_file;
use tofu::store::Platform;
use tofu::store::providers::{DIRECTORY, Provider, ProviderStore};

use crate::attempt::{Ready, Work};
use crate::ending::{Ending, Step, disk};

const VARIABLE: &str = "TF_CLI_CONFIG_FILE";
/// Older tools know no lock file, and the oldest no such configuration.
const HAS_LOCK_FILES: semver::Version = semver::Version::new(0, 14, 0);
/// Where the tools look for providers by themselves, until a configuration says where to look.
const IMPLIED: [&str; 4] = [
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
    "/usr/local/share/opentofu/plugins",
    "/usr/share/opentofu/plugins",
];

/// Where one provider of the lock file comes from.
enum Found {
    /// Unpacked, in the store that this runner sees.
    Linked { directory: PathBuf, h1: String },
    /// From the datastore, packed.
    Fetched { h1: String },
    /// The tool fetches it.
    Left,
}

/// An apply gets the providers that its plan was made with, whatever was released since, and the tool would accept no others. Where
/// the code has a lock file, this is that file as the plan's `init` left it.
pub(crate) fn keep_providers_of_plan(plan: &Path, ready: &Ready) -> Step<ProviderChoice> {
    let lock = plan_file::lock_file(plan).map_err(|error| Ending::bad_input(error.to_string()))?;
    let Some(lock) = lock else { return Ok(ProviderChoice::Open) };
    for directory in lock_directories(ready) {
        std::fs::write(directory.join(lock_file::NAME), &lock).map_err(disk)?;
    }
    Ok(ProviderChoice::Settled)
}

/// Terragrunt copies the file from where it is started to where the tool works.
fn lock_directories(ready: &Ready) -> Vec<&Path> {
    let mut all = vec![ready.dir.as_path()];
    if ready.work_dir != ready.dir {
        all.push(&ready.work_dir);
    }
    all
}

impl Work<'_> {
    /// A configuration that the pod brings along wins: it may name a mirror of its own.
    fn brings_configuration(&self) -> bool {
        let ours = self.configuration_path();
        self.surroundings.environment.iter().any(|(name, value)| name == VARIABLE && *value != *ours)
    }

    fn configuration_path(&self) -> PathBuf {
        self.places.private.join("providers.tfrc")
    }

    /// Before Terragrunt runs the tool for the first time.
    pub(crate) async fn use_provider_mirror(&mut self) -> Step<()> {
        let Some(mirror) = self.provider_mirror else { return Ok(()) };
        if self.brings_configuration() {
            return Ok(());
        }
        let configuration = configuration(mirror).map_err(|error| {
            let message = format!("the mirror of providers {mirror} cannot be read by the runner: {error}");
            Ending::failed(Reason::ToolFailed, message)
        })?;
        let path = self.configuration_path();
        tokio::fs::write(&path, configuration.to_string()).await.map_err(disk)?;
        self.surroundings.environment.push((VARIABLE.into(), path.into()));
        Ok(())
    }

    /// Lets the tool link to what was fetched for all runs. What the lock file names is asked for where it is not there yet; without a
    /// lock file the tool asks its registry which version is the newest, and links to that if it is there.
    pub(crate) async fn share_providers(&self, ready: &mut Ready) -> Step<()> {
        let Some(platform) = Platform::of_this_machine() else { return Ok(()) };
        if ready.tool.version < HAS_LOCK_FILES
            || self.brings_configuration()
            || self.provider_mirror.is_some_and(is_network)
        {
            return Ok(());
        }
        let store = self.tools.map(|tools| ProviderStore::at(tools.join(DIRECTORY)));
        let mut configuration = self.installed(&ready.work_dir).map_err(disk)?;
        let lock = read_lock(ready).map_err(disk)?;
        let mut locked = lock.as_deref().map(lock_file::read).unwrap_or_default();
        locked.retain(|locked| !configuration.holds(&locked.address.to_string()));
        let asking = locked.iter().map(|locked| self.find(locked, platform, store.as_ref()));
        let found = futures::future::join_all(asking).await;
        let place = self.places.private.join(DIRECTORY);
        let mut names = Vec::new();
        let mut completed = lock.clone().unwrap_or_default();
        for (locked, found) in locked.iter().zip(found) {
            let h1 = match found? {
                Found::Left => continue,
                Found::Linked { directory, h1 } => {
                    link(&place, locked, platform, &directory).map_err(disk)?;
                    h1
                }
                Found::Fetched { h1 } => h1,
            };
            // A lock file that was made on another kind of machine may know the archive alone; what is unpacked from it is known
            // by this hash, which the tool adds too when it unpacks the archive itself.
            completed = lock_file::with_hash(&completed, &locked.address, &h1);
            names.push(locked.address.to_string());
        }
        if lock.is_some_and(|lock| lock != completed) {
            for directory in lock_directories(ready) {
                let path = directory.join(lock_file::NAME);
                if path.is_file() {
                    tokio::fs::write(&path, &completed).await.map_err(disk)?;
                }
            }
        }
        configuration.add(&place, names);
        if let Some(store) = store.filter(|store| store.root().is_dir()) {
            configuration.open = Some(store.root().to_owned());
        }
        let path = self.configuration_path();
        tokio::fs::write(&path, configuration.to_string()).await.map_err(disk)?;
        ready.surroundings.environment.push((VARIABLE.into(), path.into()));
        Ok(())
    }

    /// What the administrator's mirror and the directories of the tool hold comes from there.
    fn installed(&self, work_dir: &Path) -> std::io::Result<Configuration> {
        let mut installed = match self.provider_mirror {
            Some(mirror) => return configuration(mirror),
            None => Configuration::default(),
        };
        let own = work_dir.join("terraform.d/plugins");
        for directory in std::iter::once(own).chain(IMPLIED.map(PathBuf::from)) {
            match held(&directory) {
                Ok(names) => installed.add(&directory, names),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(installed)
    }

    async fn find(&self, locked: &Locked, platform: Platform, store: Option<&ProviderStore>) -> Step<Found> {
        let Locked { address, version, hashes, .. } = locked;
        let provider = Provider { address: address.clone(), version: version.clone(), platform };
        let there = || store.and_then(|store| store.find(&provider));
        if let Some(package) = there().filter(|package| package.record.is_allowed_by(hashes)) {
            return Ok(Found::Linked { directory: package.directory, h1: package.record.h1 });
        }
        let request = Request {
            address: address.clone(),
            version: version.to_string(),
            platform: platform.to_string(),
            hashes: hashes.clone(),
        };
        let alone = |why: &str| {
            self.log.line(&format!("{address} {version} is fetched by this run alone: {why}"));
            Ok(Found::Left)
        };
        let offer = match self.client.provider_ensure(&request).await {
            Ok(Answer::Ready(offer)) => offer,
            Ok(Answer::Declined { message }) => return alone(&message),
            Ok(Answer::Untrusted { message }) => return Err(Ending::failed(Reason::ToolUntrusted, message)),
            Err(datastore::client::Error::NotFound(_)) => return alone("this datastore shares no providers"),
            Err(error) => return alone(&error.to_string()),
        };
        if let Some(package) = there() {
            return Ok(Found::Linked { directory: package.directory, h1: package.record.h1 });
        }
        // The store is not on this machine: the archive comes to a directory of this attempt.
        let directory = self.places.private.join(DIRECTORY).join(address.to_string());
        let name = format!("terraform-provider-{}_{version}_{platform}.zip", address.kind());
        tokio::fs::create_dir_all(&directory).await.map_err(disk)?;
        let mut file = tokio::fs::File::create(directory.join(&name)).await.map_err(disk)?;
        match self.client.provider_get(&request, &offer, &mut file).await {
            Ok(_) => Ok(Found::Fetched { h1: offer.h1 }),
            Err(error) => {
                tokio::fs::remove_file(directory.join(&name)).await.map_err(disk)?;
                alone(&error.to_string())
            }
        }
    }
}

/// The lock file that the tool will see, if there is one that can be read.
fn read_lock(ready: &Ready) -> std::io::Result<Option<String>> {
    for directory in lock_directories(ready) {
        let file = match std::fs::File::open(directory.join(lock_file::NAME)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        return match file.take(lock_file::LIMIT).read_to_string(&mut text) {
            Ok(_) => Ok(Some(text)),
            // The tool has words for a file that is no text.
            Err(error) if error.kind() == ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        };
    }
    Ok(None)
}

/// Puts a package where the tool looks for it, and nothing else with it: no other version of the same provider can be chosen.
fn link(place: &Path, locked: &Locked, platform: Platform, to: &Path) -> std::io::Result<()> {
    let directory = place.join(locked.address.to_string()).join(locked.version.to_string());
    std::fs::create_dir_all(&directory)?;
    std::os::unix::fs::symlink(to, directory.join(platform.to_string()))
}

fn is_network(mirror: &str) -> bool {
    mirror.starts_with("https://")
}

/// The configuration for a mirror: a directory in the layout that `terraform providers mirror` writes, or an https address of the
/// provider network mirror protocol, which answers for all.
fn configuration(mirror: &str) -> std::io::Result<Configuration> {
    let mut configuration = Configuration::default();
    if is_network(mirror) {
        configuration.network = Some(mirror.to_owned());
    } else {
        let mirror = Path::new(mirror);
        configuration.add(mirror, held(mirror)?);
    }
    Ok(configuration)
}

/// Where the tool is told to look.
#[derive(Debug, Default)]
struct Configuration {
    network: Option<String>,
    /// Directories, and the providers that come from each of them alone, so that nothing is asked of a registry for them.
    closed: Vec<(PathBuf, Vec<String>)>,
    /// Whatever is here is used if it is what the registry offers too.
    open: Option<PathBuf>,
}

impl Configuration {
    fn add(&mut self, directory: &Path, names: Vec<String>) {
        // A list without a name would mean every provider.
        if !names.is_empty() {
            self.closed.push((directory.to_owned(), names));
        }
    }

    fn holds(&self, name: &str) -> bool {
        self.closed.iter().any(|(_, names)| names.iter().any(|held| held == name))
    }
}

impl std::fmt::Display for Configuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "provider_installation {{")?;
        if let Some(url) = &self.network {
            return writeln!(f, "  network_mirror {{\n    url = {}\n  }}\n}}", quoted(url));
        }
        for (directory, names) in &self.closed {
            let (path, names) = (quoted(&directory.to_string_lossy()), listed(names));
            writeln!(f, "  filesystem_mirror {{\n    path    = {path}\n    include = [{names}]\n  }}")?;
        }
        let names: Vec<String> = self.closed.iter().flat_map(|(_, names)| names.iter().cloned()).collect();
        let names = listed(&names);
        if let Some(directory) = &self.open {
            let path = quoted(&directory.to_string_lossy());
            writeln!(f, "  filesystem_mirror {{\n    path    = {path}\n    exclude = [{names}]\n  }}")?;
        }
        writeln!(f, "  direct {{\n    exclude = [{names}]\n  }}\n}}")
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
}

/// The providers of a mirror, as `host/namespace/type`, sorted. O(providers).
fn held(mirror: &Path) -> std::io::Result<Vec<String>> {
    let mut names = vec![String::new()];
    for _ in 0..3 {
        let mut deeper = Vec::new();
        for name in names {
            for entry in std::fs::read_dir(mirror.join(&name))? {
                let entry = entry?;
                let part = entry.file_name().into_string().unwrap_or_default();
                let is_name = !part.starts_with('.')
                    && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
                if is_name && entry.path().is_dir() {
                    deeper.push(if name.is_empty() { part } else { format!("{name}/{part}") });
                }
            }
        }
        names = deeper;
    }
    names.sort();
    Ok(names)
}

fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace("${", "$${")
        .replace("%{", "%%{")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_mirror_holds_comes_from_it_alone() {
        let mirror = tempfile::tempdir().unwrap();
        for place in
            ["registry.terraform.io/hashicorp/local/2.9.0", "registry.terraform.io/acme/x", ".git/a/b"]
        {
            std::fs::create_dir_all(mirror.path().join(place)).unwrap();
        }
        std::fs::write(mirror.path().join("README"), "").unwrap();
        let path = mirror.path().to_str().unwrap();
        let names = "\"registry.terraform.io/acme/x\", \"registry.terraform.io/hashicorp/local\"";
        assert_eq!(
            configuration(path).unwrap().to_string(),
            format!(
                "provider_installation {{\n  filesystem_mirror {{\n    path    = \"{path}\"\n    include = [{names}]\n  }}\n  direct {{\n    exclude = [{names}]\n  }}\n}}\n"
            )
        );
        assert!(configuration("/no/such/mirror").is_err());
    }

    #[test]
    fn a_network_mirror_answers_for_all_and_text_stays_text() {
        let written = configuration("https://mirror.example.org/\"x/${y}").unwrap().to_string();
        assert!(written.contains("url = \"https://mirror.example.org/\\\"x/$${y}\""), "{written}");
        assert!(!written.contains("direct"));
    }
}
