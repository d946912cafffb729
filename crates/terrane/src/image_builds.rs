//! Whether code is built into images, and on what, as the administrator says it: flags of every role that decides on builds.

use api::attempt::Registries;
use api::text::BaseImage;
use clap::{Args, ValueEnum};
use engine::Builds;
use sources::Addresses;

use crate::image_sources::ImageSources;

#[derive(Args, Debug, Clone)]
pub(crate) struct ImageBuilds {
    /// Who builds the code of repositories into images, where a Terraform or a layer asks for that: `runner`, a run of its own that
    /// lays the code over a base and pushes it, or `off`. Default: `runner` on one machine, `off` on a cluster
    #[arg(long, value_name = "BUILDER")]
    build_images: Option<Builder>,
    /// The image that code is laid over by layers that name none, by its digest, such as
    /// registry.example.org/team/base@sha256:…. Default: none, and images hold the code alone
    #[arg(long, value_name = "NAME@DIGEST")]
    build_base: Option<BaseImage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Builder {
    Off,
    Runner,
}

impl ImageBuilds {
    /// `default` is for an administrator who says nothing of it.
    pub(crate) fn settings(
        &self,
        default: Builder,
        sources: &ImageSources,
        addresses: Addresses,
    ) -> Option<Builds> {
        let registries = Registries {
            rewrites: sources.rewrites().map(ToString::to_string).collect(),
            own_too: addresses == Addresses::OwnToo,
        };
        match self.build_images.unwrap_or(default) {
            Builder::Off => None,
            Builder::Runner => Some(Builds { base: self.build_base.clone(), registries }),
        }
    }
}
