//! Where vendors, and mirrors of them, publish a version of a program, and under which names. Pure.

use api::tool::Program;
use semver::Version;

/// The machine a program is for, in the vendors' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    arch: &'static str,
}

impl Platform {
    /// The machine this runs on, if vendors publish for it.
    pub fn of_this_machine() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self { arch: "amd64" }),
            "aarch64" => Some(Self { arch: "arm64" }),
            _ => None,
        }
    }
}

impl Platform {
    /// The machine that a name such as `linux_amd64` means.
    pub fn named(name: &str) -> Option<Self> {
        ["amd64", "arm64"].into_iter().map(|arch| Self { arch }).find(|platform| platform.to_string() == name)
    }

    pub(super) const fn arch(self) -> &'static str {
        self.arch
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "linux_{}", self.arch)
    }
}

/// How a program is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Zip,
    /// The download is the program.
    Plain,
}

/// The files of one version for one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    /// As it stands in the checksums.
    pub(super) file: String,
    pub(super) packing: Packing,
    pub(super) url: String,
    pub(super) sums_url: String,
    pub(super) signature_url: String,
}

impl Release {
    /// On a mirror everything lies below `PROGRAM/VERSION/`, which is also how HashiCorp's own server has it.
    pub(super) fn new(program: Program, version: &Version, platform: Platform, mirror: Option<&str>) -> Self {
        let name = program.name();
        let (file, packing, sums, signature) = match program {
            Program::Terraform => {
                let sums = format!("{name}_{version}_SHA256SUMS");
                (
                    format!("{name}_{version}_{platform}.zip"),
                    Packing::Zip,
                    sums.clone(),
                    format!("{sums}.sig"),
                )
            }
            Program::Opentofu => {
                let sums = format!("{name}_{version}_SHA256SUMS");
                (
                    format!("{name}_{version}_{platform}.zip"),
                    Packing::Zip,
                    sums.clone(),
                    format!("{sums}.gpgsig"),
                )
            }
            Program::Terragrunt => {
                let sums = "SHA256SUMS".to_owned();
                (format!("{name}_{platform}"), Packing::Plain, sums.clone(), format!("{sums}.gpgsig"))
            }
        };
        let base = match (mirror, program) {
            (Some(mirror), _) => format!("{mirror}/{name}/{version}"),
            (None, Program::Terraform) => format!("https://releases.hashicorp.com/terraform/{version}"),
            (None, Program::Opentofu) => {
                format!("https://github.com/opentofu/opentofu/releases/download/v{version}")
            }
            (None, Program::Terragrunt) => {
                format!("https://github.com/gruntwork-io/terragrunt/releases/download/v{version}")
            }
        };
        let at = |file: &str| format!("{base}/{file}");
        Self { url: at(&file), sums_url: at(&sums), signature_url: at(&signature), file, packing }
    }
}

impl Release {
    /// Where the program comes from, for people: without the mirror's password.
    pub(super) fn url_shown(&self) -> String {
        shown(&self.url)
    }
}

/// A URL as it may be shown: without name and password.
pub(super) fn shown(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (host, path) = rest.split_at(end);
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

/// The name under which an administrator states the checksum of a version: the vendor's own, where that holds the version.
pub(super) fn pinned_name(program: Program, version: &Version, platform: Platform) -> String {
    match program {
        Program::Terraform | Program::Opentofu => format!("{program}_{version}_{platform}.zip"),
        Program::Terragrunt => format!("{program}_{version}_{platform}"),
    }
}

/// The version that such a name is about.
pub(super) fn pinned_version(program: Program, file: &str, platform: Platform) -> Option<Version> {
    let rest = file.strip_prefix(program.name())?.strip_prefix('_')?;
    let end = match program {
        Program::Terraform | Program::Opentofu => format!("_{platform}.zip"),
        Program::Terragrunt => format!("_{platform}"),
    };
    Version::parse(rest.strip_suffix(&end)?).ok()
}

/// Where all versions are listed, if anywhere.
pub(super) fn index_url(program: Program, mirror: Option<&str>) -> Option<String> {
    match (mirror, program) {
        (Some(mirror), _) => Some(format!("{mirror}/{program}/index.json")),
        (None, Program::Terraform) => Some("https://releases.hashicorp.com/terraform/index.json".to_owned()),
        (None, Program::Opentofu) => Some("https://get.opentofu.org/tofu/api.json".to_owned()),
        // Its releases can only be listed page by page, by an API with a small allowance.
        (None, Program::Terragrunt) => None,
    }
}

/// The versions of an index: an object named by versions, as HashiCorp has it, or a list with an id each, as OpenTofu has it.
/// O(versions).
pub(super) fn versions(index: &[u8]) -> Option<Vec<Version>> {
    let index: serde_json::Value = serde_json::from_slice(index).ok()?;
    let versions = index.get("versions")?;
    Some(match versions {
        serde_json::Value::Object(all) => all.keys().filter_map(|name| Version::parse(name).ok()).collect(),
        serde_json::Value::Array(all) => {
            all.iter().filter_map(|one| Version::parse(one.get("id")?.as_str()?).ok()).collect()
        }
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => return None,
    })
}

/// The checksum of a file in the format of `sha256sum`, or that it is not there. A name that stands twice is nobody's.
pub(super) fn checksum(sums: &str, file: &str) -> Option<api::text::Sha256> {
    let mut found = checksums(sums).filter(|(_, name)| *name == file);
    let (digest, _) = found.next()?;
    found.next().is_none().then_some(digest)
}

pub(super) fn checksums(sums: &str) -> impl Iterator<Item = (api::text::Sha256, &str)> {
    sums.lines().filter_map(|line| {
        let (digest, name) = line.trim().split_once(char::is_whitespace)?;
        let name = name.trim_start().trim_start_matches('*');
        Some((api::text::Sha256::new(digest.to_ascii_lowercase()).ok()?, name))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PLATFORM: Platform = Platform { arch: "amd64" };

    #[test]
    fn releases_are_where_vendors_and_mirrors_have_them() {
        let version = Version::new(1, 9, 8);
        let release = |program, mirror| Release::new(program, &version, PLATFORM, mirror);
        let terraform = release(Program::Terraform, None);
        assert_eq!(
            terraform.url,
            "https://releases.hashicorp.com/terraform/1.9.8/terraform_1.9.8_linux_amd64.zip"
        );
        assert!(terraform.signature_url.ends_with("/terraform_1.9.8_SHA256SUMS.sig"));
        let tofu = release(Program::Opentofu, Some("https://mirror.example.org/tools"));
        assert_eq!(tofu.url, "https://mirror.example.org/tools/tofu/1.9.8/tofu_1.9.8_linux_amd64.zip");
        assert!(tofu.signature_url.ends_with("/tofu_1.9.8_SHA256SUMS.gpgsig"));
        let terragrunt = release(Program::Terragrunt, None);
        assert!(terragrunt.url.ends_with("/v1.9.8/terragrunt_linux_amd64"), "{}", terragrunt.url);
        for program in Program::ALL {
            let name = pinned_name(program, &version, PLATFORM);
            assert_eq!(pinned_version(program, &name, PLATFORM), Some(version.clone()));
        }
    }

    #[test]
    fn both_forms_of_an_index_are_read() {
        let hashicorp =
            br#"{"name": "terraform", "versions": {"1.9.8": {"builds": []}, "1.10.0-rc1": {}, "odd": {}}}"#;
        let opentofu = br#"{"versions": [{"id": "1.9.0", "files": []}, {"no": 1}, {"id": "1.8.0"}]}"#;
        let text = |index: &[u8]| {
            let mut all: Vec<String> = versions(index).unwrap().iter().map(Version::to_string).collect();
            all.sort();
            all.join(" ")
        };
        assert_eq!(text(hashicorp), "1.10.0-rc1 1.9.8");
        assert_eq!(text(opentofu), "1.8.0 1.9.0");
        assert!(versions(b"[]").is_none() && versions(b"{\"versions\": 3}").is_none());
    }

    #[test]
    fn a_checksum_is_found_by_the_exact_name_and_only_if_it_is_one() {
        let digest = "0".repeat(64);
        let other = "1".repeat(64);
        let sums = format!("{digest}  a.zip\n{other} *b.zip\nnonsense\n{digest}  c.zip\n{other}  c.zip\n");
        assert_eq!(checksum(&sums, "a.zip").unwrap().as_str(), digest);
        assert_eq!(checksum(&sums, "b.zip").unwrap().as_str(), other);
        assert_eq!((checksum(&sums, "zip"), checksum(&sums, "c.zip")), (None, None));
    }
}
