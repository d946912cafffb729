//! Whether code is built into images, by whom and on what, as the administrator says it: flags of every role that decides on builds.

use anyhow::{Context, ensure};
use api::attempt::Registries;
use api::text::{BaseImage, ImageRepository, ObjectName};
use clap::{Args, ValueEnum};
use controllers::Namespaces;
use engine::{Builder, Builds, Kaniko};
use sources::Addresses;

use crate::image_sources::ImageSources;

/// On one machine, where nothing runs as root.
#[derive(Args, Debug, Clone)]
pub(crate) struct ImageBuilds {
    /// Who builds the code of repositories into images, where a Terraform or a layer asks for that: `runner`, a run of its own that
    /// lays the code over a base and pushes it, or `off`
    #[arg(long, value_name = "BUILDER", default_value = "runner")]
    build_images: OnMachine,
    #[command(flatten)]
    base: Base,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnMachine {
    Off,
    Runner,
}

#[derive(Args, Debug, Clone)]
struct Base {
    /// The image that code is laid over by layers that name none, by its digest, such as
    /// registry.example.org/team/base@sha256:…. Default: none, and images hold the code alone
    #[arg(long, value_name = "NAME@DIGEST")]
    build_base: Option<BaseImage>,
}

/// On a cluster.
#[derive(Args, Debug, Clone)]
pub(crate) struct ClusterBuilds {
    /// Who builds the code of repositories into images, where a Terraform or a layer asks for that: `kaniko`, a run of its own in
    /// --build-namespace that does what the code's Dockerfile says, as root; `runner`, a run of its own that lays the code over a base and
    /// executes nothing of it; or `off`
    #[arg(long, value_name = "BUILDER", default_value = "off")]
    build_images: OnCluster,
    #[command(flatten)]
    base: Base,
    /// The namespace that kaniko's pods are in, as the ServiceAccount terrane-builder, and no layer is; the datastore must be told the same
    #[arg(long, value_name = "NAME", default_value = api::BUILD_NAMESPACE)]
    build_namespace: ObjectName,
    /// The image that kaniko's pods are made of; needed with --build-images kaniko
    #[arg(long, value_name = "IMAGE")]
    builder_image: Option<String>,
    /// Where kaniko keeps layers between builds, a name without a tag that the accounts of all layers may push to; whoever may push there has a
    /// say in what others build. Default: the name of each image with /cache
    #[arg(long, value_name = "NAME")]
    build_cache: Option<ImageRepository>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnCluster {
    Off,
    Runner,
    Kaniko,
}

fn registries(sources: &ImageSources, addresses: Addresses) -> Registries {
    Registries {
        rewrites: sources.rewrites().map(ToString::to_string).collect(),
        own_too: addresses == Addresses::OwnToo,
        private_denied: addresses == Addresses::NotPrivate,
    }
}

impl ImageBuilds {
    pub(crate) fn settings(&self, sources: &ImageSources, addresses: Addresses) -> Option<Builds> {
        match self.build_images {
            OnMachine::Off => None,
            OnMachine::Runner => Some(Builds {
                base: self.base.build_base.clone(),
                registries: registries(sources, addresses),
                builder: Builder::Runner,
            }),
        }
    }
}

impl ClusterBuilds {
    pub(crate) fn settings(
        &self,
        sources: &ImageSources,
        addresses: Addresses,
        namespaces: &Namespaces,
    ) -> anyhow::Result<Option<Builds>> {
        let builder = match self.build_images {
            OnCluster::Off => return Ok(None),
            OnCluster::Runner => Builder::Runner,
            OnCluster::Kaniko => Builder::Kaniko(self.kaniko(namespaces)?),
        };
        Ok(Some(Builds {
            base: self.base.build_base.clone(),
            registries: registries(sources, addresses),
            builder,
        }))
    }

    /// kaniko's pods are root, and nobody else's may be among them.
    fn kaniko(&self, namespaces: &Namespaces) -> anyhow::Result<Kaniko> {
        let namespace = self.build_namespace.to_string();
        let is_taken = match namespaces {
            Namespaces::All => false,
            Namespaces::These(names) => names.contains(&namespace),
        };
        ensure!(
            !is_taken && namespace != api::SYSTEM_NAMESPACE,
            "--build-namespace {namespace} is not for builds alone; name one that nothing else is in"
        );
        let image = self.builder_image.clone();
        let image =
            image.context("--build-images kaniko needs --builder-image: say which image has kaniko")?;
        Ok(Kaniko { namespace, image, cache: self.build_cache.clone() })
    }
}
