//! Where images with code are read, and how often, as the administrator says it: flags of every role that reads registries.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sources::Addresses;
use sources::oci::{ImageOptions, RegistryRewrite};

use crate::source_limits::SourceLimits;

#[derive(Args, Debug, Clone)]
pub(crate) struct ImageSources {
    /// Read images below one name from another registry, such as docker.io=https://mirror.example/hub; the longest FROM that fits wins,
    /// and the image's credentials are used there. May be given several times
    #[arg(long, value_name = "FROM=TO")]
    registry_rewrite: Vec<RegistryRewrite>,
    /// How often registries are asked for newer images by layers that say nothing of it themselves
    #[arg(long, value_name = "SECONDS", default_value = "21600")]
    image_interval: NonZeroU64,
}

impl ImageSources {
    pub(crate) fn rewrites(&self) -> impl Iterator<Item = &RegistryRewrite> {
        self.registry_rewrite.iter()
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.image_interval.get())
    }

    pub(crate) fn options(
        &self,
        directory: PathBuf,
        addresses: Addresses,
        limits: SourceLimits,
    ) -> ImageOptions {
        let rewrites = self.registry_rewrite.clone();
        ImageOptions { addresses, rewrites, bytes: limits.limits().bytes, ..ImageOptions::new(directory) }
    }
}
