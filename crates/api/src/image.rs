//! An OCI image as the source of a layer: which one is asked for, and which one is pinned.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{
    BaseImage, CommitId, DataKey, FilePath, ImageDigest, ImageRepository, ImageTag, ObjectName,
    RegistryProvider, Span, VersionConstraint,
};

/// An image whose files are the code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.semanticVersion), has(self.tag), has(self.digest)].filter(x, x).size() == 1")
        .message("exactly one of semanticVersion, tag and digest must be set")
)]
pub struct ImageSource {
    /// Whose registry it is, where the name has no host: `docker` for Docker Hub, `ghcr` for GitHub's, or the host of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<RegistryProvider>,
    /// The name of the image without a tag, such as `alustan/infrastructure` or `registry.example.org/team/infrastructure`.
    pub name: ImageRepository,
    /// Follow the newest version that satisfies this, such as `~1.0.0`, `^1.2`, `1.x` or `>=1.2, <2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semantic_version: Option<VersionConstraint>,
    /// Follow this tag, wherever it points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<ImageTag>,
    /// Stay with exactly this image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ImageDigest>,
    /// How to log in to the registry. Without it the Secret `terrane-registry` of the layer's own namespace counts, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<ImageCredentials>,
    /// How often the registry is asked for a newer image. Default: as the administrator says, 6h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageCredentials {
    /// A Secret of the layer's own namespace that holds a Docker `config.json`, such as one of type `kubernetes.io/dockerconfigjson`.
    pub secret_name: ObjectName,
    /// The key of it. Default: `.dockerconfigjson`, else `config.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<DataKey>,
}

/// What of a repository of images is followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wanted {
    Version(VersionConstraint),
    Tag(ImageTag),
    Digest(ImageDigest),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(constraint) => constraint.fmt(f),
            Self::Tag(tag) => tag.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

/// Where images of one name are: a registry's host, and the path there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImagePlace {
    pub host: String,
    pub path: String,
}

impl fmt::Display for ImagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)
    }
}

impl ImagePlace {
    /// Of hosts, each perhaps with the beginning of a path, the longest that this place is at or below, and the rest of it. O(hosts).
    pub fn covered_by<'a, T>(&self, hosts: impl IntoIterator<Item = (&'a str, T)>) -> Option<(T, String)> {
        let whole = self.to_string();
        let rest_of = |host: &str| {
            let rest = whole.strip_prefix(host)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/').to_owned())
        };
        let covering = hosts.into_iter().filter_map(|(host, of)| Some((host.len(), of, rest_of(host)?)));
        let (_, of, rest) = covering.max_by_key(|(length, _, _)| *length)?;
        Some((of, rest))
    }

    fn of(name: &str, provider: Option<&RegistryProvider>) -> Result<Self, Unplaced> {
        let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
        let (host, path) = match name.split_once('/') {
            Some((host, path)) if is_host(host) => (host.to_ascii_lowercase(), path),
            None if is_host(name) => return Err(Unplaced::NoPath { name: name.to_owned() }),
            Some(_) | None => (provider_host(name, provider)?, name),
        };
        let host = match host.as_str() {
            "index.docker.io" | "registry-1.docker.io" | "hub.docker.com" => DOCKER_HUB.to_owned(),
            _ => host,
        };
        let path = if host == DOCKER_HUB && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        Ok(Self { host, path })
    }
}

fn provider_host(name: &str, provider: Option<&RegistryProvider>) -> Result<String, Unplaced> {
    let Some(provider) = provider else { return Ok(DOCKER_HUB.to_owned()) };
    match provider.as_str() {
        "docker" | "dockerhub" => Ok(DOCKER_HUB.to_owned()),
        "ghcr" => Ok("ghcr.io".to_owned()),
        host if host.contains(['.', ':']) || host == "localhost" => Ok(host.to_owned()),
        word => Err(Unplaced::NoHost { name: name.to_owned(), provider: word.to_owned() }),
    }
}

/// An image that is built of a repository's code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageBuild {
    /// Whose registry it is, where the name has no host: `docker` for Docker Hub, `ghcr` for GitHub's, or the host of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<RegistryProvider>,
    /// The name that it is pushed under, without a tag: each commit has a tag of its own.
    pub name: ImageRepository,
    /// How to log in to the registry. Without it the Secret `terrane-registry` of the layer's own namespace counts, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<ImageCredentials>,
    /// The image that the code is laid over. Default: as the administrator says, else none. A Dockerfile names its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseImage>,
    /// The Dockerfile that the image is made by, seen from the root of the repository, where the administrator has Dockerfiles executed.
    /// Default: `Dockerfile`; where the commit has none there, the code is laid over the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<FilePath>,
}

impl ImageBuild {
    pub fn place(&self) -> Result<ImagePlace, Unplaced> {
        ImagePlace::of(self.name.as_str(), self.provider.as_ref())
    }
}

impl ImageRepository {
    pub fn place(&self) -> Result<ImagePlace, Unplaced> {
        ImagePlace::of(self.as_str(), None)
    }
}

impl BaseImage {
    /// Where it is, and what.
    pub fn pinned(&self) -> Option<(ImagePlace, ImageDigest)> {
        let (name, digest) = self.as_str().split_once('@')?;
        Some((ImagePlace::of(name, None).ok()?, ImageDigest::new(digest).ok()?))
    }
}

/// What a run that builds makes: the image of one commit, under a tag that follows from all that it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltImage {
    /// The host of its registry.
    #[schemars(length(min = 1, max = 255))]
    pub host: String,
    /// Its path there.
    #[schemars(length(min = 1, max = 255))]
    pub path: String,
    /// The tag that it is pushed under.
    pub tag: ImageTag,
    /// The image that the code is laid over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseImage>,
    /// Who makes it.
    #[serde(default, skip_serializing_if = "ImageBuilder::is_runner")]
    pub builder: ImageBuilder,
    /// The Dockerfile that the layer names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<FilePath>,
}

/// Who makes an image of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageBuilder {
    /// A runner like any other, which executes nothing of the code: its files are one layer.
    #[default]
    Runner,
    /// kaniko's executor, which does what a Dockerfile says, as root.
    Kaniko,
}

impl ImageBuilder {
    pub const ALL: [Self; 2] = [Self::Runner, Self::Kaniko];

    /// What makes the same code another image.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Runner => BUILDER,
            Self::Kaniko => "kaniko/1.24.0",
        }
    }

    fn is_runner(&self) -> bool {
        *self == Self::Runner
    }
}

impl BuiltImage {
    pub fn place(&self) -> ImagePlace {
        ImagePlace { host: self.host.clone(), path: self.path.clone() }
    }

    /// The image itself, once it is there.
    pub fn pinned(&self, digest: ImageDigest) -> PinnedImage {
        let Self { host, path, tag, .. } = self.clone();
        PinnedImage { host, path, tag: Some(tag), digest }
    }
}

impl fmt::Display for BuiltImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.host, self.path, self.tag)
    }
}

/// Why an image cannot be looked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    #[error(
        "image name {name} has no host, and provider {provider} says none: write the registry's host before the name, or docker or ghcr as the provider"
    )]
    NoHost { name: String, provider: String },
    #[error("image name {name} is only a host: add the path of the image")]
    NoPath { name: String },
    #[error("exactly one of semanticVersion, tag and digest must be set for image {name}")]
    NothingWanted { name: String },
}

/// What builds images where nothing is executed, and how: it changes whenever the same code would come to another image.
pub const BUILDER: &str = "terrane/1";

/// Where the code is in an image that is built, and where its programs start.
pub const CODE_DIRECTORY: &str = "/workspace";

/// The Secret that logs in to registries for the layers of its namespace that name none. The chart makes it.
pub const REGISTRY_SECRET: &str = "terrane-registry";

/// Docker Hub, by the name that people use.
pub const DOCKER_HUB: &str = "docker.io";

impl ImageSource {
    /// The registry and the path that are meant. A name without a host takes the provider's, and without a provider Docker Hub's; there
    /// a name of one part belongs to `library`.
    pub fn place(&self) -> Result<ImagePlace, Unplaced> {
        ImagePlace::of(self.name.as_str(), self.provider.as_ref())
    }

    pub fn wanted(&self) -> Result<Wanted, Unplaced> {
        match (&self.semantic_version, &self.tag, &self.digest) {
            (Some(constraint), None, None) => Ok(Wanted::Version(constraint.clone())),
            (None, Some(tag), None) => Ok(Wanted::Tag(tag.clone())),
            (None, None, Some(digest)) => Ok(Wanted::Digest(digest.clone())),
            _ => Err(Unplaced::NothingWanted { name: self.name.to_string() }),
        }
    }
}

impl ImageDigest {
    /// The digest as a revision of code.
    pub fn revision(&self) -> Option<CommitId> {
        CommitId::new(self.as_str().strip_prefix("sha256:")?).ok()
    }

    /// The image that a revision means, where it is one.
    pub fn of_revision(revision: &CommitId) -> Option<Self> {
        Self::new(format!("sha256:{revision}")).ok()
    }
}

/// The image that a run works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedImage {
    /// The host of its registry.
    #[schemars(length(min = 1, max = 255))]
    pub host: String,
    /// Its path there.
    #[schemars(length(min = 1, max = 255))]
    pub path: String,
    /// The tag that it was found by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<ImageTag>,
    /// What it is.
    pub digest: ImageDigest,
}

impl PinnedImage {
    pub fn place(&self) -> ImagePlace {
        ImagePlace { host: self.host.clone(), path: self.path.clone() }
    }
}

impl fmt::Display for PinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        write!(f, "@{}", self.digest)
    }
}

/// Which image a layer is pinned to, and what the registry last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// The registry's host and the path there.
    pub name: String,
    /// The constraint, the tag or the digest that it was chosen by.
    pub wanted: String,
    /// The tag that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<ImageTag>,
    /// The image itself, whatever its tag points to by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ImageDigest>,
    /// What the tag pointed to before, where it was moved to another image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<ImageDigest>,
    /// When the registry was last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub looked_at: Option<Time>,
    /// Why the registry could not be read the last time; the image stays pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The value of the sync annotation that the registry was last asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
}

impl fmt::Display for ImageStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

/// What stands first in the bundle of an image, as `image.json`; the layers follow it as they are, as `layers/0` and so on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageFiles {
    /// The directory that the image's programs start in, absolute; the root where it says none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_directory: String,
    /// `NAME=value`, as the image says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Lowest first.
    pub layers: Vec<ImageLayer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageLayer {
    pub digest: ImageDigest,
    pub compression: Compression,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    None,
    Gzip,
}

/// The name of the first file in the bundle of an image.
pub const IMAGE_FILE: &str = "image.json";

/// The name of a layer in the bundle of an image.
pub fn layer_file(index: usize) -> String {
    format!("layers/{index}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn place(provider: Option<&str>, name: &str) -> Result<String, String> {
        let source: ImageSource =
            serde_json::from_value(json!({ "provider": provider, "name": name, "tag": "1" })).unwrap();
        source.place().map(|place| place.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_without_a_host_takes_the_providers() {
        for (provider, name, expected) in [
            (Some("docker"), "alustan/infrastructure", "docker.io/alustan/infrastructure"),
            (Some("docker"), "alpine", "docker.io/library/alpine"),
            (None, "alpine", "docker.io/library/alpine"),
            (None, "index.docker.io/alpine", "docker.io/library/alpine"),
            (Some("ghcr"), "team/code", "ghcr.io/team/code"),
            (Some("registry.example.org:5000"), "code", "registry.example.org:5000/code"),
            (Some("harbor"), "Registry.example.org/team/code", "registry.example.org/team/code"),
            (Some("docker"), "localhost:5000/team/code", "localhost:5000/team/code"),
            (Some("docker"), "localhost/code", "localhost/code"),
        ] {
            assert_eq!(place(provider, name).as_deref(), Ok(expected));
        }
        assert!(
            place(Some("harbor"), "team/code")
                .unwrap_err()
                .contains("write the registry's host before the name")
        );
        assert!(place(None, "registry.example.org").unwrap_err().contains("only a host"));
    }

    #[test]
    fn a_digest_is_a_revision_and_back() {
        let digest = ImageDigest::new(format!("sha256:{}", "a".repeat(64))).unwrap();
        assert_eq!(ImageDigest::of_revision(&digest.revision().unwrap()), Some(digest));
        assert_eq!(ImageDigest::of_revision(&CommitId::new("a".repeat(40)).unwrap()), None);
    }
}
