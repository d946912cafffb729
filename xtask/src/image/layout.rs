//! An image as registries and container runtimes read it: the OCI layout as a directory, and as one archive that `docker load` reads too.
//! What is in the layers is not known here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Architecture;
use super::layer::{Entry, Layer, Packed, digest};

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Each image says that it was made then: the true time would be another input.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// What an image is called and says about itself.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    /// With its tag, as a pod names it.
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) version: &'a str,
    pub(super) architecture: Architecture,
    pub(super) process: &'a Process,
}

/// How its process is started, where nobody says otherwise.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) user: &'static str,
    pub(super) environment: &'static [&'static str],
    pub(super) entrypoint: &'static [&'static str],
    pub(super) directory: &'static str,
}

/// An image, ready to be written.
#[derive(Debug)]
pub(super) struct Image {
    /// Of the manifest: what a registry knows the image by.
    pub(super) digest: String,
    /// Of its layers, compressed.
    pub(super) size: usize,
    files: BTreeMap<String, Vec<u8>>,
}

/// The layers lie upon each other in this order; each with a word on what it holds.
pub(super) fn assemble(identity: &Identity<'_>, layers: &[(&str, &Packed)]) -> Result<Image> {
    let mut blobs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut keep = |media_type: &str, bytes: Vec<u8>| -> Result<Value> {
        let digest = digest(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        blobs.insert(blob_path(&digest)?, bytes);
        Ok(descriptor)
    };
    let config = json!({
        "created": CREATED,
        "architecture": identity.architecture.as_str(),
        "os": "linux",
        "config": {
            "User": identity.process.user,
            "Env": identity.process.environment,
            "Entrypoint": identity.process.entrypoint,
            "WorkingDir": identity.process.directory,
            "Labels": {
                "org.opencontainers.image.title": identity.title,
                "org.opencontainers.image.version": identity.version,
                "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
            },
        },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|(_, layer)| &layer.diff_id).collect::<Vec<_>>() },
        "history": layers
            .iter()
            .map(|(what, _)| json!({ "created": CREATED, "created_by": format!("cargo xtask image: {what}") }))
            .collect::<Vec<_>>(),
    });
    let config = keep(CONFIG_TYPE, serde_json::to_vec(&config)?)?;
    let mut descriptors = Vec::new();
    for (_, layer) in layers {
        descriptors.push(keep(LAYER_TYPE, layer.bytes.clone())?);
    }
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": descriptors,
    });
    let mut manifest = keep(MANIFEST_TYPE, serde_json::to_vec(&manifest)?)?;
    let digest = text(&manifest, "digest")?;
    let tag = identity.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    if let Some(fields) = manifest.as_object_mut() {
        fields.insert(
            "platform".to_owned(),
            json!({ "architecture": identity.architecture.as_str(), "os": "linux" }),
        );
        fields.insert(
            "annotations".to_owned(),
            // The second one is the tag alone by the specification; the first is where containerd looks for a whole name.
            json!({ "io.containerd.image.name": identity.name, "org.opencontainers.image.ref.name": tag }),
        );
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest] });
    let mut docker_layers = Vec::new();
    for (_, layer) in layers {
        docker_layers.push(blob_path(&layer.digest)?);
    }
    let docker = json!([{
        "Config": blob_path(&text(&config, "digest")?)?,
        "RepoTags": [identity.name],
        "Layers": docker_layers,
    }]);
    let mut files = blobs;
    files.insert("oci-layout".to_owned(), serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?);
    files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    files.insert("manifest.json".to_owned(), serde_json::to_vec(&docker)?);
    Ok(Image { digest, size: layers.iter().map(|(_, layer)| layer.bytes.len()).sum(), files })
}

impl Image {
    /// The layout as a directory, for tools that push it. What lay there goes.
    pub(super) fn write_directory(&self, directory: &Path) -> Result<()> {
        if directory.exists() {
            fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
        }
        for (path, content) in &self.files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
            }
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// The layout as one file, for `ctr images import` and `docker load`.
    pub(super) fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = Layer::default();
        for (path, content) in &self.files {
            archive.put(path, Entry::file(content.clone()));
        }
        Ok(archive.archive()?)
    }
}

fn blob_path(digest: &str) -> Result<String> {
    let (algorithm, value) = digest.split_once(':').context("a digest without its algorithm")?;
    Ok(format!("blobs/{algorithm}/{value}"))
}

fn text(value: &Value, key: &str) -> Result<String> {
    Ok(value
        .get(key)
        .and_then(Value::as_str)
        .with_context(|| format!("a descriptor without {key}"))?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(content: &str) -> Image {
        let mut layer = Layer::default();
        layer.put("usr/local/bin/terrane", Entry::program(content));
        let packed = layer.pack().unwrap();
        let identity = Identity {
            name: "example.org:5000/terrane:1.2.3",
            title: "terrane",
            version: "1.2.3",
            architecture: Architecture::Amd64,
            process: &super::super::PROCESS,
        };
        assemble(&identity, &[("terrane", &packed)]).unwrap()
    }

    #[test]
    fn the_same_input_gives_the_same_bytes_and_another_gives_another_digest() {
        let (one, again, other) = (image("program"), image("program"), image("another"));
        assert_eq!(one.digest, again.digest);
        assert_eq!(one.archive().unwrap(), again.archive().unwrap());
        assert_ne!(one.digest, other.digest);
        insta::assert_snapshot!(one.digest);
    }

    #[test]
    fn each_reference_leads_to_what_it_names() {
        let directory = tempfile::tempdir().unwrap();
        let image = image("program");
        image.write_directory(directory.path()).unwrap();
        let read = |path: &str| fs::read(directory.path().join(path)).unwrap();
        let parse = |path: &str| -> Value { serde_json::from_slice(&read(path)).unwrap() };
        let follow = |descriptor: &Value| {
            let name = text(descriptor, "digest").unwrap();
            let path = blob_path(&name).unwrap();
            assert_eq!(digest(&read(&path)), name);
            assert_eq!(descriptor["size"], read(&path).len());
            path
        };
        let index = parse("index.json");
        let manifest = &index["manifests"][0];
        assert_eq!(manifest["digest"], image.digest);
        assert_eq!(manifest["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
        let manifest = parse(&follow(manifest));
        let layer = follow(&manifest["layers"][0]);
        let config_path = follow(&manifest["config"]);
        let config = parse(&config_path);
        assert_eq!(config["config"]["User"], "65532:65532");
        let docker = parse("manifest.json");
        assert_eq!(docker[0]["Layers"][0], layer);
        assert_eq!(docker[0]["Config"], config_path);
        assert_eq!(docker[0]["RepoTags"][0], "example.org:5000/terrane:1.2.3");
        image.write_directory(directory.path()).unwrap();
    }
}
