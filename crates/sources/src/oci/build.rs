//! Images that are made of a commit's files: one layer over a base, or over nothing. What an image comes to depends on those files, on
//! the base and on this code alone, so whoever makes it again finds that it is there. Nothing of the files is unpacked or executed, and
//! the layer is not compressed: its digest then depends on no compressor.

use std::io::{BufReader, BufWriter};
use std::path::{Component, Path};

use api::image::{BUILDER, BuiltImage, CODE_DIRECTORY, Compression};
use api::text::ImageDigest;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::manifest::{Blob, compression};
use super::push::Content;
use super::registry::Session;
use super::{BUNDLE_LIMIT, CONFIG_LIMIT, Error, Images, Logins, digest_of, within};
use crate::bundle::{Bundle, Hashing};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// What a build came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// It was pushed.
    Now(ImageDigest),
    /// It was there, the very same.
    Before(ImageDigest),
}

/// What the code is laid over.
#[derive(Default)]
struct Base {
    config: Value,
    layers: Vec<Blob>,
}

impl Images {
    /// Makes an image of the files in a bundle, and pushes what of it is not there.
    pub async fn build(&self, image: &BuiltImage, bundle: &Path, logins: &Logins) -> Result<Pushed, Error> {
        let place = image.place();
        within(BUNDLE_LIMIT, &place, self.build_and_push(image, bundle, logins)).await
    }

    async fn build_and_push(
        &self,
        image: &BuiltImage,
        bundle: &Path,
        logins: &Logins,
    ) -> Result<Pushed, Error> {
        let base = image.base.as_ref().and_then(|base| base.pinned());
        let mut from = match &base {
            Some((place, _)) => Some(self.session(place, logins)?),
            None => None,
        };
        let below = match (&mut from, &base) {
            (Some(session), Some((_, digest))) => self.base(session, digest).await?,
            (_, _) => Base::default(),
        };
        let (directory, archive) = (self.options.directory.clone(), bundle.to_owned());
        let written = tokio::task::spawn_blocking(move || write_layer(&archive, &directory)).await;
        let code =
            written.map_err(|stopped| Error::io("write the image")(std::io::Error::other(stopped)))??;
        let made = Made::new(image, below, &code, &self.options.platform)?;

        let mut to = self.session(&image.place(), logins)?;
        let known = to.known_digest(&image.tag).await.map_err(pushing)?;
        if known.as_ref() == Some(&made.digest) {
            return Ok(Pushed::Before(made.digest));
        }
        for layer in &made.below {
            self.carry(layer, from.as_mut(), &mut to).await?;
        }
        let content = Content::File { path: code.path(), size: code.size() };
        to.put_blob(&made.code, &content).await.map_err(pushing)?;
        to.put_blob(&made.config_digest, &Content::Bytes(&made.config)).await.map_err(pushing)?;
        to.put_manifest(&image.tag, MANIFEST, &made.manifest).await.map_err(pushing)?;
        Ok(Pushed::Now(made.digest))
    }

    async fn base(&self, session: &mut Session<'_>, digest: &ImageDigest) -> Result<Base, Error> {
        let (config, layers) = session.image(digest, &self.options.platform).await?;
        let total = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
        if total > self.options.bytes {
            return Err(Error::TooLarge { image: session.image.clone(), limit: self.options.bytes });
        }
        let content = session.small_blob(&config, CONFIG_LIMIT).await?;
        let config: Value = serde_json::from_slice(&content)
            .map_err(|error| session.unusable(format!("its configuration cannot be read ({error})")))?;
        let layers = layers.into_iter().map(|layer| {
            let packed = compression(&layer.media_type).map_err(|why| session.unusable(why))?;
            let media_type = match packed {
                Compression::None => LAYER.to_owned(),
                Compression::Gzip => format!("{LAYER}+gzip"),
            };
            Ok(Blob { media_type, ..layer })
        });
        Ok(Base { config, layers: layers.collect::<Result<_, Error>>()? })
    }

    /// Lets the registry take a layer of the base from beside it, or copies it there.
    async fn carry(
        &self,
        layer: &Blob,
        from: Option<&mut Session<'_>>,
        to: &mut Session<'_>,
    ) -> Result<(), Error> {
        let Some(from) = from else { return Ok(()) };
        if to.has_blob(&layer.digest).await.map_err(pushing)?
            || to.mount(&layer.digest, from).await.map_err(pushing)?
        {
            return Ok(());
        }
        let io = Error::io("keep a layer of the base");
        let file = tempfile::NamedTempFile::new_in(&self.options.directory).map_err(&io)?;
        let mut writer = tokio::fs::File::from_std(file.reopen().map_err(&io)?);
        let url = from.url(&format!("blobs/{}", layer.digest))?;
        let answer = from.ask(Method::GET, url, "*/*").await?;
        let mut pieces = from.pieces(answer, layer);
        while let Some(piece) = pieces.next().await? {
            writer.write_all(&piece).await.map_err(&io)?;
        }
        writer.flush().await.map_err(&io)?;
        let content = Content::File { path: file.path(), size: layer.size };
        to.put_blob(&layer.digest, &content).await.map_err(pushing)
    }
}

/// An image in all its parts, but for the bytes of its layers.
struct Made {
    below: Vec<Blob>,
    code: ImageDigest,
    config: Vec<u8>,
    config_digest: ImageDigest,
    manifest: Vec<u8>,
    digest: ImageDigest,
}

impl Made {
    fn new(image: &BuiltImage, base: Base, code: &Bundle, platform: &str) -> Result<Self, Error> {
        let unusable = |why: &str| Error::Unusable { image: image.to_string(), why: why.to_owned() };
        let no_digest = || unusable("it has no digest");
        let digest = |content: &[u8]| digest_of(content).ok_or_else(no_digest);
        let code_digest = ImageDigest::new(format!("sha256:{}", code.sha256())).map_err(|_| no_digest())?;
        let config = configuration(base.config, &code_digest, platform)
            .ok_or_else(|| unusable("the configuration of its base is none of an image"))?;
        let config = serde_json::to_vec(&config).map_err(|_| no_digest())?;
        let config_digest = digest(&config)?;
        let descriptor = |media_type: &str, digest: &ImageDigest, size: u64| json!({ "mediaType": media_type, "digest": digest, "size": size });
        let mut layers: Vec<Value> = base
            .layers
            .iter()
            .map(|layer| descriptor(&layer.media_type, &layer.digest, layer.size))
            .collect();
        layers.push(descriptor(LAYER, &code_digest, code.size()));
        let size = u64::try_from(config.len()).unwrap_or(u64::MAX);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, &config_digest, size), "layers": layers,
        });
        let manifest = serde_json::to_vec(&manifest).map_err(|_| no_digest())?;
        let digest = digest(&manifest)?;
        Ok(Self { below: base.layers, code: code_digest, config, config_digest, manifest, digest })
    }
}

/// What the base says of itself stays, but for where programs start. No time stands in it.
fn configuration(base: Value, code: &ImageDigest, platform: &str) -> Option<Value> {
    let (os, architecture) = platform.split_once('/')?;
    let empty = json!({
        "architecture": architecture, "os": os, "config": {}, "rootfs": { "type": "layers", "diff_ids": [] }, "history": [],
    });
    let mut config = if base.is_null() { empty } else { base };
    let whole = config.as_object_mut()?;
    whole.get_mut("rootfs")?.get_mut("diff_ids")?.as_array_mut()?.push(json!(code));
    if let Some(history) = whole.get_mut("history").and_then(Value::as_array_mut) {
        history.push(json!({ "created_by": BUILDER }));
    }
    let inner = whole.entry("config").or_insert_with(|| json!({}));
    if inner.is_null() {
        *inner = json!({});
    }
    inner.as_object_mut()?.insert("WorkingDir".to_owned(), json!(CODE_DIRECTORY));
    Some(config)
}

/// The files of a bundle below the directory of the code. The bundle has them in one order, with one time and one owner.
fn write_layer(bundle: &Path, directory: &Path) -> Result<Bundle, Error> {
    let io = Error::io("write the code as a layer");
    let refused = |path: &Path| Error::Unusable {
        image: "the bundle of the code".to_owned(),
        why: format!("{} is no file of a repository", path.display()),
    };
    std::fs::create_dir_all(directory).map_err(&io)?;
    let file = tempfile::NamedTempFile::new_in(directory).map_err(&io)?;
    let mut layer = tar::Builder::new(Hashing::new(BufWriter::with_capacity(256 * 1024, file)));
    let root = Path::new(CODE_DIRECTORY.trim_start_matches('/'));
    let header = |kind: tar::EntryType, mode: u32, size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_mode(mode);
        header.set_size(size);
        header
    };
    let mut top = header(tar::EntryType::Directory, 0o755, 0);
    layer.append_data(&mut top, root, std::io::empty()).map_err(&io)?;
    let reader = BufReader::with_capacity(256 * 1024, std::fs::File::open(bundle).map_err(&io)?);
    for entry in tar::Archive::new(reader).entries().map_err(&io)? {
        let mut entry = entry.map_err(&io)?;
        let path = entry.path().map_err(&io)?.into_owned();
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refused(&path));
        }
        let place = root.join(&path);
        let kind = entry.header().entry_type();
        match kind {
            tar::EntryType::Regular => {
                let is_program = entry.header().mode().map_err(&io)? & 0o100 != 0;
                let mut header = header(kind, if is_program { 0o755 } else { 0o644 }, entry.size());
                layer.append_data(&mut header, &place, &mut entry).map_err(&io)?;
            }
            tar::EntryType::Directory => {
                layer.append_data(&mut header(kind, 0o755, 0), &place, std::io::empty()).map_err(&io)?;
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name().map_err(&io)?.ok_or_else(|| refused(&path))?.into_owned();
                layer.append_link(&mut header(kind, 0o777, 0), &place, target).map_err(&io)?;
            }
            _ => return Err(refused(&path)),
        }
    }
    let (writer, sha256, size) = layer.into_inner().map_err(&io)?.finish();
    let file = writer.into_inner().map_err(|error| io(error.into_error()))?;
    Ok(Bundle::new(file, sha256, size))
}

/// What a registry refuses to be told is said in other words than what it refuses to tell.
pub(super) fn pushing(error: Error) -> Error {
    let (image, why) = match error {
        Error::Unauthorised { image } => (
            image,
            "its registry refuses the credentials; check that the Secret is not expired, and may push it",
        ),
        Error::NeedsLogin { image } => (
            image,
            "its registry asks for credentials; name a Secret that holds a Docker config.json, in spec.containerRegistry.secretRef of a Terraform, or spec.build.credentials of a layer",
        ),
        Error::NotFound { image } => (
            image,
            "its registry knows no such name; make it there, or check that the credentials may push to it",
        ),
        other => return other,
    };
    Error::NotPushed { image, why }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use api::image::ImageBuilder;

    use super::*;

    fn bundle(directory: &Path, entries: &[(&str, &str, u32)]) -> std::path::PathBuf {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content, mode) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(*mode);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let place = directory.join("bundle.tar");
        std::fs::write(&place, archive.into_inner().unwrap()).unwrap();
        place
    }

    fn made(directory: &Path, base: Base) -> Made {
        let image = BuiltImage {
            host: "registry.example.org".to_owned(),
            path: "team/code".to_owned(),
            tag: api::text::ImageTag::new("1").unwrap(),
            base: None,
            builder: ImageBuilder::Runner,
            dockerfile: None,
        };
        let archive = bundle(directory, &[("deploy", "#!/bin/sh\n", 0o755), ("live/main.tf", "", 0o644)]);
        let code = write_layer(&archive, directory).unwrap();
        Made::new(&image, base, &code, "linux/amd64").unwrap()
    }

    #[test]
    fn the_same_files_come_to_the_same_image_whenever_it_is_made() {
        let place = tempfile::tempdir().unwrap();
        let image = made(place.path(), Base::default());
        assert_eq!(image.digest, made(place.path(), Base::default()).digest);
        // Another digest means another builder: give it another name (`api::image::BUILDER`), so that its images have other tags.
        let pinned = "sha256:09622f532c60c758c5d2b7bcc46cf585606dc589d549004bdee1f346cf0b0197";
        assert_eq!(image.digest.as_str(), pinned);
    }

    #[test]
    fn the_base_keeps_its_word_but_for_where_programs_start() {
        let place = tempfile::tempdir().unwrap();
        let digest = ImageDigest::new(format!("sha256:{}", "a".repeat(64))).unwrap();
        let config = json!({
            "architecture": "arm64", "os": "linux", "config": { "Env": ["A=1"], "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [digest] },
        });
        let layers = vec![Blob { digest: digest.clone(), size: 3, media_type: format!("{LAYER}+gzip") }];
        let image = made(place.path(), Base { config, layers });
        let config: Value = serde_json::from_slice(&image.config).unwrap();
        assert_eq!(config["config"], json!({ "Env": ["A=1"], "WorkingDir": "/workspace" }));
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest, image.code]));
        assert_eq!(config["architecture"], "arm64");
        let manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
        assert_eq!(manifest["layers"][0]["digest"], json!(digest));
        assert_eq!(manifest["layers"][1]["digest"], json!(image.code));
        assert!(configuration(json!({ "rootfs": 1 }), &image.code, "linux/amd64").is_none());
    }

    #[test]
    fn what_no_repository_holds_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Fifo);
        header.set_size(0);
        archive.append_data(&mut header, "pipe", std::io::empty()).unwrap();
        let path = place.path().join("bundle.tar");
        std::fs::write(&path, archive.into_inner().unwrap()).unwrap();
        let refused = write_layer(&path, place.path()).unwrap_err().to_string();
        assert!(refused.contains("pipe is no file of a repository"), "{refused}");
    }
}
