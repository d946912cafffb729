//! Whether runs are containers of the images that they work on, as the administrator says it: flags of the role that makes pods on a cluster.

use api::LOCAL_IMAGE;
use api::text::ObjectName;
use clap::{Args, ValueEnum};
use engine::manifests::ImagePods;

use crate::image_sources::ImageSources;

#[derive(Args, Debug, Clone)]
pub(crate) struct ClusterImagePods {
    /// Where the code of a layer is an image: `on` makes its runs containers of that image, which have all that is in it; `off` unpacks its
    /// files in a container of the runners' image, as runs that are processes do
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    image_pods: Switch,
    /// A Secret of each layer's namespace that nodes pull such an image with, beside the one that the layer names; may be given several times.
    /// Where a layer names none, those of the runners' ServiceAccount count
    #[arg(long, value_name = "NAME")]
    image_pull_secret: Vec<ObjectName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl ClusterImagePods {
    pub(crate) fn settings(
        &self,
        sources: &ImageSources,
        runner_image: &str,
        provider_mirror: Option<&str>,
    ) -> Option<ImagePods> {
        let are_containers = runner_image != LOCAL_IMAGE;
        let is_wanted = are_containers && self.image_pods == Switch::On;
        if let Some(directory) = provider_mirror.filter(|mirror| is_wanted && !mirror.starts_with("https://"))
        {
            tracing::warn!(
                "images with code are unpacked by the runners' image and are not containers: the mirror of providers, {directory}, is a directory that only that image has"
            );
            return None;
        }
        is_wanted.then(|| ImagePods {
            rewrites: sources
                .rewrites()
                .map(|rewrite| (rewrite.from().to_owned(), rewrite.to_place()))
                .collect(),
            pull_secrets: self.image_pull_secret.iter().map(ToString::to_string).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        pods: ClusterImagePods,
        #[command(flatten)]
        sources: ImageSources,
    }

    #[test]
    fn pods_are_containers_of_images_where_nothing_is_missing_there() {
        let check = |arguments: &[&str], image: &str, mirror: Option<&str>, expected: Option<ImagePods>| {
            let given = Given::parse_from(["terrane"].iter().chain(arguments));
            assert_eq!(
                given.pods.settings(&given.sources, image, mirror),
                expected,
                "{arguments:?} {mirror:?}"
            );
        };
        let image = "example.org/runner:1";
        let plain = Some(ImagePods::default());
        check(&[], image, None, plain.clone());
        check(&[], image, Some("https://mirror.example/providers"), plain);
        check(&[], image, Some("/opt/providers"), None);
        check(&[], LOCAL_IMAGE, None, None);
        check(&["--image-pods", "off"], image, None, None);
        let given = [
            "--image-pull-secret",
            "login",
            "--registry-rewrite",
            "docker.io=https://mirror.example:5000/hub/",
        ];
        let rewritten = ImagePods {
            rewrites: vec![("docker.io".to_owned(), "mirror.example:5000/hub".to_owned())],
            pull_secrets: vec!["login".to_owned()],
        };
        check(&given, image, None, Some(rewritten));
    }
}
