//! Finding the tool of an attempt: installed, in the store that all runners of a machine read, or offered by the datastore. What a
//! runner fetches itself goes to its own directory and is used by its own attempt alone.

use std::path::{Path, PathBuf};

use api::attempt::Reason;
use api::tool::{Answer, Offer, Program, Request, Tool as ToolKind};
use datastore::{Client, client};
use tofu::Tool;
use tofu::choice::Wanted;
use tofu::installed::Catalogue;
use tofu::process::Surroundings;
use tofu::store::Store;
use tofu::terragrunt::Terragrunt;
use tofu::versions::Constraint;

/// Where programs are looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Toolbox<'a> {
    pub(crate) client: &'a Client,
    /// Where programs are installed.
    pub(crate) search_path: &'a [PathBuf],
    /// The store of the machine, if this runner sees one.
    pub(crate) store: Option<&'a Path>,
    /// A directory of this attempt.
    pub(crate) private: &'a Path,
}

/// A program, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) path: PathBuf,
    pub(crate) version: semver::Version,
}

/// Why there is none, in words that say what to do.
#[derive(Debug)]
pub(crate) struct NotFound {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl NotFound {
    fn missing(message: impl Into<String>) -> Self {
        Self { reason: Reason::ToolMissing, message: message.into() }
    }
}

impl Toolbox<'_> {
    /// What is installed comes first: it costs nothing, and whoever prepared the machine chose it.
    pub(crate) async fn tool(&self, wanted: &Wanted, surroundings: &Surroundings) -> Result<Tool, NotFound> {
        let missing = match Tool::find(wanted, self.search_path, &self.known(), surroundings).await {
            Ok(tool) => return Ok(tool),
            Err(missing @ tofu::Error::Missing { .. }) => missing,
            Err(other) => return Err(NotFound::missing(other.to_string())),
        };
        let kind = wanted.tool.unwrap_or(ToolKind::Terraform);
        match self.stored(kind.into(), &wanted.constraint).await {
            Ok(Located { path, version }) => Ok(Tool { kind, path, version, wrapper: None }),
            Err(NotFound { reason, message }) => {
                Err(NotFound { reason, message: format!("{missing}. {message}") })
            }
        }
    }

    /// What this machine knows about installed programs; where it knows nothing, they are asked.
    fn known(&self) -> Catalogue {
        self.store.map(Catalogue::read).unwrap_or_default()
    }

    /// Terragrunt, in the same order.
    pub(crate) async fn terragrunt(
        &self,
        wanted: &Wanted,
        surroundings: &Surroundings,
    ) -> Result<Terragrunt, NotFound> {
        let missing =
            match Terragrunt::find(&wanted.constraint, self.search_path, &self.known(), surroundings).await {
                Ok(terragrunt) => return Ok(terragrunt),
                Err(missing @ tofu::Error::MissingTerragrunt { .. }) => missing,
                Err(other) => return Err(NotFound::missing(other.to_string())),
            };
        match self.stored(Program::Terragrunt, &wanted.constraint).await {
            Ok(Located { path, version }) => Ok(Terragrunt { path, version }),
            Err(NotFound { reason, message }) => {
                Err(NotFound { reason, message: format!("{missing}. {message}") })
            }
        }
    }

    /// A program from the store, or from the datastore.
    pub(crate) async fn stored(
        &self,
        program: Program,
        constraint: &Constraint,
    ) -> Result<Located, NotFound> {
        let store = self.store.map(Store::at);
        if let Some(store) = &store {
            let found =
                store.find(program, constraint).map_err(|error| NotFound::missing(error.to_string()))?;
            if let Some(found) = found {
                return Ok(Located { path: found.path, version: found.version });
            }
        }
        let constraint = (*constraint != Constraint::default()).then(|| constraint.to_string());
        let offer = match self.client.tool_ensure(&Request { program, constraint }).await {
            Ok(Answer::Ready(offer)) => offer,
            Ok(Answer::Unavailable { message }) => {
                return Err(NotFound::missing(format!("It could not be downloaded: {message}")));
            }
            Ok(Answer::Untrusted { message }) => {
                let message = format!("It was not used: {message}");
                return Err(NotFound { reason: Reason::ToolUntrusted, message });
            }
            Err(client::Error::NotFound(_)) => {
                return Err(NotFound::missing("This datastore offers no downloads"));
            }
            Err(error) => return Err(NotFound::missing(format!("It could not be asked for: {error}"))),
        };
        let version = semver::Version::parse(&offer.version)
            .map_err(|error| NotFound::missing(format!("{} was offered: {error}", offer.version)))?;
        let shared = store.map(|store| store.root().join(&offer.name)).filter(|path| path.is_file());
        let path = match shared {
            Some(path) => path,
            None => self.fetch(program, &offer).await?,
        };
        Ok(Located { path, version })
    }

    async fn fetch(&self, program: Program, offer: &Offer) -> Result<PathBuf, NotFound> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.private.join(program.name());
        let io = |error: std::io::Error| {
            NotFound::missing(format!("{} could not be kept in {}: {error}", offer.name, path.display()))
        };
        let mut file = tokio::fs::File::create(&path).await.map_err(io)?;
        self.client.tool_get(offer, &mut file).await.map_err(|error| NotFound::missing(error.to_string()))?;
        file.set_permissions(std::fs::Permissions::from_mode(0o700)).await.map_err(io)?;
        // Nobody executes a file that is open for writing.
        drop(file.into_std().await);
        Ok(path)
    }
}
