//! What a registry says an image consists of. All of it was written by others: every number and name is checked before it is used.

use api::image::{Compression, ImageFiles, ImageLayer};
use api::text::ImageDigest;
use serde::Deserialize;

/// What is asked for, in the order of preference.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// More layers than any builder makes, and fewer than hurt.
const LAYERS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manifest {
    Image {
        config: Blob,
        layers: Vec<Blob>,
    },
    /// One image for each of several platforms.
    Index(Vec<Choice>),
}

/// Bytes of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub digest: ImageDigest,
    pub size: u64,
    pub media_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub digest: ImageDigest,
    /// `linux/amd64` and the like; none where it does not say.
    pub platform: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: Option<u64>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

impl Manifest {
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(content)
            .map_err(|error| format!("its manifest cannot be read ({error})"))?;
        if document.schema_version != Some(2) {
            return Err("its manifest is not of version 2; push it again with a current tool".to_owned());
        }
        if let Some(manifests) = document.manifests {
            let choices = manifests.into_iter().map(Descriptor::choice).collect::<Result<_, _>>()?;
            return Ok(Self::Index(choices));
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err("its manifest has neither layers nor manifests".to_owned());
        };
        if layers.len() > LAYERS {
            return Err(format!("it has more than {LAYERS} layers"));
        }
        let layers = layers.into_iter().map(Descriptor::blob).collect::<Result<_, _>>()?;
        Ok(Self::Image { config: config.blob()?, layers })
    }
}

impl Descriptor {
    fn digest(&self) -> Result<ImageDigest, String> {
        ImageDigest::new(self.digest.as_str())
            .map_err(|_| "its manifest has a digest that is no sha256".to_owned())
    }

    fn blob(self) -> Result<Blob, String> {
        Ok(Blob { digest: self.digest()?, size: self.size, media_type: self.media_type })
    }

    fn choice(self) -> Result<Choice, String> {
        let platform = self.platform.as_ref().map(|found| format!("{}/{}", found.os, found.architecture));
        Ok(Choice { digest: self.digest()?, platform })
    }
}

/// The image for a platform: the first that is made for it, or the only one where it does not say what for.
pub fn choose<'a>(choices: &'a [Choice], platform: &str) -> Result<&'a Choice, String> {
    let fits = choices.iter().find(|choice| choice.platform.as_deref() == Some(platform));
    let only = match choices {
        [only] if only.platform.is_none() => Some(only),
        _ => None,
    };
    fits.or(only).ok_or_else(|| {
        // What signs an image is listed beside it, for no platform at all.
        let mut found: Vec<&str> = choices
            .iter()
            .filter_map(|choice| choice.platform.as_deref())
            .filter(|found| *found != "unknown/unknown")
            .collect();
        found.sort_unstable();
        found.dedup();
        found.truncate(8);
        if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
    })
}

/// How a layer is packed, by what its manifest says.
pub fn compression(media_type: &str) -> Result<Compression, String> {
    if media_type.ends_with("zstd") {
        return Err(
            "it has a layer packed by zstd, which is not understood here; build it with gzip".to_owned()
        );
    }
    if media_type.contains("foreign") || media_type.contains("nondistributable") {
        return Err("it has a layer that its registry does not hand out".to_owned());
    }
    match () {
        () if media_type.ends_with("tar+gzip") || media_type.ends_with("tar.gzip") => Ok(Compression::Gzip),
        () if media_type.ends_with(".tar") => Ok(Compression::None),
        () => Err("it has a layer that is no tar archive; is it an image?".to_owned()),
    }
}

/// What an image's configuration says about programs in it. Of what is no image there is nothing to say.
pub fn files(config: &[u8], media_type: &str, layers: Vec<ImageLayer>) -> Result<ImageFiles, String> {
    #[derive(Deserialize)]
    struct Whole {
        config: Option<Inner>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct Inner {
        env: Option<Vec<String>>,
        working_dir: Option<String>,
    }
    let is_image = media_type.contains("container.image") || media_type.contains("image.config");
    if !is_image {
        return Ok(ImageFiles { layers, ..ImageFiles::default() });
    }
    let whole: Whole = serde_json::from_slice(config)
        .map_err(|error| format!("its configuration cannot be read ({error})"))?;
    let inner = whole.config.unwrap_or_default();
    Ok(ImageFiles {
        working_directory: inner.working_dir.unwrap_or_default(),
        environment: inner.env.unwrap_or_default(),
        layers,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn digest(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    #[test]
    fn images_and_indexes_are_told_apart() {
        let image = format!(
            r#"{{"schemaVersion": 2, "config": {{"digest": "{}", "size": 3, "mediaType": "application/vnd.oci.image.config.v1+json"}},
                "layers": [{{"digest": "{}", "size": 9, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}}]}}"#,
            digest("a"),
            digest("b")
        );
        let Manifest::Image { layers, .. } = Manifest::parse(image.as_bytes()).unwrap() else {
            panic!("an image")
        };
        assert_eq!((layers.len(), layers[0].size), (1, 9));
        for wrong in [
            "<html>".to_owned(),
            "{}".to_owned(),
            r#"{"schemaVersion": 1, "fsLayers": []}"#.to_owned(),
            r#"{"schemaVersion": 2}"#.to_owned(),
            image.replace("sha256:b", "sha512:b"),
            image.replace("\"size\": 9", "\"size\": -9"),
        ] {
            assert!(Manifest::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_image_of_our_platform_is_chosen_or_what_there_is_told() {
        let choice = |letter: &str, platform: Option<&str>| Choice {
            digest: ImageDigest::new(digest(letter)).unwrap(),
            platform: platform.map(str::to_owned),
        };
        let several = [
            choice("a", Some("linux/arm64")),
            choice("b", Some("linux/amd64")),
            choice("c", Some("unknown/unknown")),
        ];
        assert_eq!(choose(&several, "linux/amd64").unwrap().digest.as_str(), digest("b"));
        assert_eq!(choose(&several, "linux/s390x").unwrap_err(), "linux/amd64, linux/arm64");
        assert!(choose(&[choice("a", None)], "linux/amd64").is_ok());
        assert_eq!(choose(&[], "linux/amd64").unwrap_err(), "nothing");
    }

    #[test]
    fn layers_are_tar_with_or_without_gzip() {
        for (media_type, expected) in [
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar", Some(Compression::None)),
            ("application/vnd.cncf.flux.content.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+zstd", None),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", None),
            ("application/vnd.wasm.content.layer.v1+wasm", None),
            ("", None),
        ] {
            assert_eq!(compression(media_type).ok(), expected, "{media_type}");
        }
    }

    #[test]
    fn the_configuration_of_an_image_says_where_it_works() {
        let config =
            br#"{"config": {"Env": ["A=1"], "WorkingDir": "/app", "Entrypoint": null}, "rootfs": {}}"#;
        let found = files(config, "application/vnd.docker.container.image.v1+json", Vec::new()).unwrap();
        assert_eq!(
            (found.working_directory.as_str(), found.environment.as_slice()),
            ("/app", ["A=1".to_owned()].as_slice())
        );
        let none = files(b"{}", "application/vnd.oci.image.config.v1+json", Vec::new()).unwrap();
        assert_eq!(none, ImageFiles::default());
        assert_eq!(
            files(b"not json", "application/vnd.cncf.flux.config.v1", Vec::new()).unwrap(),
            ImageFiles::default()
        );
    }
}
