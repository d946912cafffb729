//! What registries say: manifests, configurations, headers and tags; and what people say of them: accounts and constraints.

use api::text::ImageTag;
use sources::oci::constraint::{Constraint, newest, version_of};
use sources::oci::login::challenge;
use sources::oci::manifest::{Manifest, choose, compression, files};
use sources::oci::registry::next_page;
use sources::oci::{Logins, RegistryRewrite};

use crate::fuzz;

#[test]
fn image() {
    fuzz("image", |input| {
        if let Ok(Manifest::Index(choices)) = Manifest::parse(input)
            && let Ok(chosen) = choose(&choices, "linux/amd64")
        {
            assert!(choices.contains(chosen));
        }
        if let Ok(Manifest::Image { layers, .. }) = Manifest::parse(input) {
            assert!(layers.iter().all(|layer| layer.digest.as_str().starts_with("sha256:")));
        }
        let _ = files(input, "application/vnd.oci.image.config.v1+json", Vec::new());
        let _ = Logins::parse(input).map_err(|error| error.to_string());
        let text = String::from_utf8_lossy(input);
        let _ = (challenge(&text), next_page(&text), compression(&text), text.parse::<RegistryRewrite>());
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        if let Ok(constraint) = first.parse::<Constraint>()
            && let Some(tag) = newest(rest.lines(), &constraint)
        {
            let version = version_of(tag).expect("a tag that was chosen is a version");
            assert!(constraint.allows(&version) && ImageTag::new(tag).is_ok());
        }
    });
}
