//! What an image name means on a machine without images: a directory, its programs, and the defaults of a container.
//!
//! Configuration maps names to local roots. `terrane.dev/local` is always there and means this machine's own
//! programs. Which arguments a container runs with is put together in [`command_line`].

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;

use crate::env::{Environment, expand};
use crate::mounts::Mounts;

/// The image of this machine's own programs.
pub const LOCAL: &str = "terrane.dev/local";

/// Where programs are on any machine; the defaults of the usual base images.
pub const SYSTEM_PATH: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    local: Image,
    roots: BTreeMap<String, Image>,
}

/// A local root and what a container made from it starts with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// An absolute path in a container's command is looked for below this directory.
    pub root: PathBuf,
    /// Real directories, in the order in which programs are looked for.
    pub path: Vec<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub working_directory: Option<PathBuf>,
}

/// Why a container has no image, in a kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub reason: &'static str,
    pub message: String,
}

/// The program of a container, found, with what it is called with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    pub program: PathBuf,
    pub argv0: String,
    pub args: Vec<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("no command specified: the image {image:?} has none of its own, so the container must name one")]
    NoCommand { image: String },
    #[error("exec: {program:?}: executable file not found in $PATH")]
    NotFound { program: String },
}

impl Image {
    /// The directory as it is: its programs where the usual base images have them, no command of its own.
    pub fn below(root: &Path) -> Image {
        let path = SYSTEM_PATH.iter().map(|entry| root.join(entry.trim_start_matches('/'))).collect();
        Image { root: root.to_owned(), path, ..Image::default() }
    }
}

impl Images {
    /// `programs` come first on the path of the local image: the directory of this binary, then any others.
    pub fn new(programs: Vec<PathBuf>) -> Images {
        let mut path = programs;
        for directory in SYSTEM_PATH.iter().map(PathBuf::from) {
            if !path.contains(&directory) {
                path.push(directory);
            }
        }
        Images { local: Image { root: PathBuf::from("/"), path, ..Image::default() }, roots: BTreeMap::new() }
    }

    /// Maps a name, with or without tag, to a local root.
    #[must_use]
    pub fn with(mut self, name: &str, image: Image) -> Images {
        self.roots.insert(name.to_owned(), image);
        self
    }

    pub fn find(&self, container: &Container) -> Result<&Image, Missing> {
        let image = container.image.as_deref().unwrap_or_default();
        if image.is_empty() || image.contains(char::is_whitespace) {
            return Err(Missing {
                reason: "InvalidImageName",
                message: format!(
                    "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
                ),
            });
        }
        let name = without_version(image);
        let known = [image, name].into_iter().find_map(|name| match name {
            LOCAL => Some(&self.local),
            name => self.roots.get(name),
        });
        known.ok_or_else(|| match container.image_pull_policy.as_deref() {
            Some("Never") => Missing {
                reason: "ErrImageNeverPull",
                message: format!("Container image {image:?} is not present with pull policy of Never"),
            },
            _ => Missing {
                reason: "ErrImagePull",
                message: format!(
                    "failed to resolve image {image:?}: not found: this node runs processes and maps image names to local directories; use {LOCAL} or map the name in the node's configuration"
                ),
            },
        })
    }
}

/// `registry:5000/name:tag@sha256:…` without tag and digest. A port is before the last slash, a tag after it.
fn without_version(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    match (image.rfind('/'), image.rfind(':')) {
        (slash, Some(colon)) if slash.is_none_or(|slash| slash < colon) => {
            image.get(..colon).unwrap_or(image)
        }
        _ => image,
    }
}

/// The command of the container or of its image, with variables expanded and mount paths translated.
pub fn command_line(
    container: &Container,
    image: &Image,
    environment: &Environment,
    mounts: &Mounts,
    directory: &Path,
) -> Result<CommandLine, Error> {
    let given = |words: &Option<Vec<String>>| {
        words.iter().flatten().map(|word| expand(&mounts.rewrite(word), environment)).collect::<Vec<_>>()
    };
    let (command, args) = (given(&container.command), given(&container.args));
    // As every runtime has it: a command replaces both of the image's, arguments alone replace its arguments.
    let words = match (command.is_empty(), args.is_empty()) {
        (false, _) => [command, args].concat(),
        (true, false) => [image.entrypoint.clone(), args].concat(),
        (true, true) => [image.entrypoint.clone(), image.command.clone()].concat(),
    };
    let mut words = words.into_iter();
    let argv0 = words
        .next()
        .ok_or_else(|| Error::NoCommand { image: container.image.clone().unwrap_or_default() })?;
    let program = find_program(&argv0, image, environment, directory)
        .ok_or_else(|| Error::NotFound { program: argv0.clone() })?;
    Ok(CommandLine { program, argv0, args: words.collect() })
}

fn find_program(name: &str, image: &Image, environment: &Environment, directory: &Path) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = if let Some(below) = name.strip_prefix('/') {
        // A translated mount path is a real place already; any other is a place in the image.
        vec![image.root.join(below), PathBuf::from(name)]
    } else if name.contains('/') {
        vec![directory.join(name)]
    } else {
        let path = environment.get("PATH").unwrap_or_default();
        path.split(':').filter(|entry| !entry.is_empty()).map(|entry| Path::new(entry).join(name)).collect()
    };
    candidates.into_iter().find(|path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn container(image: &str, command: &[&str], args: &[&str]) -> Container {
        let words =
            |words: &[&str]| (!words.is_empty()).then(|| words.iter().map(|w| (*w).to_owned()).collect());
        Container {
            name: "main".into(),
            image: Some(image.into()),
            command: words(command),
            args: words(args),
            ..Container::default()
        }
    }

    #[test]
    fn names_are_known_with_and_without_version() {
        let images = Images::new(vec![]).with("example.org:5000/tool", Image::default());
        for (image, known) in [
            (LOCAL, true),
            ("terrane.dev/local:1.2", true),
            ("example.org:5000/tool", true),
            ("example.org:5000/tool:v1", true),
            ("example.org:5000/tool@sha256:00", true),
            ("example.org:5000/other", false),
            ("busybox", false),
        ] {
            assert_eq!(images.find(&container(image, &[], &[])).is_ok(), known, "{image}");
        }
        assert_eq!(images.find(&container("", &[], &[])).unwrap_err().reason, "InvalidImageName");
        let never = Container { image_pull_policy: Some("Never".into()), ..container("busybox", &[], &[]) };
        assert_eq!(images.find(&never).unwrap_err().reason, "ErrImageNeverPull");
    }

    #[test]
    fn command_and_arguments_replace_the_images_as_in_any_runtime() {
        let image = Image {
            root: "/".into(),
            entrypoint: vec!["/bin/sh".into()],
            command: vec!["-c".into(), "true".into()],
            ..Image::default()
        };
        let environment: Environment = [("WHO".to_owned(), "you".to_owned())].into_iter().collect();
        let line = |command: &[&str], args: &[&str]| {
            let container = container(LOCAL, command, args);
            let line =
                command_line(&container, &image, &environment, &Mounts::default(), Path::new("/")).unwrap();
            [vec![line.argv0], line.args].concat().join(" ")
        };
        assert_eq!(line(&[], &[]), "/bin/sh -c true");
        assert_eq!(line(&[], &["-x"]), "/bin/sh -x");
        assert_eq!(line(&["/bin/ls"], &[]), "/bin/ls");
        assert_eq!(line(&["/bin/ls"], &["$(WHO)", "$$(WHO)", "$(NOBODY)"]), "/bin/ls you $(WHO) $(NOBODY)");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let image = Image { root: "/".into(), ..Image::default() };
        let environment: Environment =
            [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into_iter().collect();
        let line = |command: &[&str]| {
            let container = container(LOCAL, command, &[]);
            command_line(&container, &image, &environment, &Mounts::default(), Path::new("/"))
        };
        assert_eq!(
            line(&["no-such-program"]).unwrap_err().to_string(),
            "exec: \"no-such-program\": executable file not found in $PATH"
        );
        assert!(line(&[]).unwrap_err().to_string().starts_with("no command specified"));
        assert!(line(&["sh"]).unwrap().program.ends_with("bin/sh"));
    }
}
