//! The image in which kaniko builds. kaniko unpacks other images over the root and leaves `/kaniko` alone, so all of Terrane is below that: the
//! program, the loader and the libraries that it was made for, and the authorities that it believes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::layer::{Entry, Kind, Layer};
use super::layout::Process;
use super::{Architecture, made, program};
use crate::image::Made;

/// As root: what it needs to make an image is what Pod Security calls `baseline`.
pub(super) const PROCESS: Process = Process {
    user: "0:0",
    environment: &[
        "PATH=/kaniko",
        "HOME=/root",
        "USER=root",
        "SSL_CERT_FILE=/kaniko/ssl/certs/ca-certificates.crt",
    ],
    entrypoint: &["/kaniko/lib/ld.so", "--library-path", "/kaniko/lib", "/kaniko/terrane"],
    directory: "/",
};

/// Whose files are in it.
pub(super) const PACKAGES: [&str; 3] = ["ca-certificates", "libc6", "libgcc-s1"];

/// Only what changes with the base: libraries, loader and authorities, of the packages of all images.
pub(super) fn foundation(base: &Layer, binary: &Path, architecture: Architecture) -> Result<Made> {
    let directory = match architecture {
        Architecture::Amd64 => "usr/lib/x86_64-linux-gnu",
        Architecture::Arm64 => "usr/lib/aarch64-linux-gnu",
    };
    let loader = match architecture {
        Architecture::Amd64 => "ld-linux-x86-64.so.2",
        Architecture::Arm64 => "ld-linux-aarch64.so.1",
    };
    let mut layer = Layer::default();
    // By one name on each architecture: a pod names it.
    layer.put("kaniko/lib/ld.so", Entry::symlink(loader));
    let mut wanted = libraries(binary)?;
    wanted.extend([loader.to_owned(), "libc.so.6".to_owned()]);
    for name in wanted {
        let entry = found(base, &format!("{directory}/{name}")).with_context(|| {
            format!("{} needs {name}, which no package of the images has", binary.display())
        })?;
        layer.put(&format!("kaniko/lib/{name}"), entry);
    }
    let authorities =
        found(base, "etc/ssl/certs/ca-certificates.crt").context("the base has no authorities")?;
    layer.put("kaniko/ssl/certs/ca-certificates.crt", authorities);
    layer.put("etc/nsswitch.conf", Entry::file("hosts: files dns\n"));
    made("loader, libraries and authorities", &layer)
}

/// The file of a path, through the links beside it.
fn found(base: &Layer, path: &str) -> Option<Entry> {
    let (_, entry) = base.below(path).find(|(found, _)| *found == path)?;
    match &entry.kind {
        Kind::File(_) => Some(entry.clone()),
        Kind::Symlink(target) if !target.contains('/') => {
            let (directory, _) = path.rsplit_once('/')?;
            found(base, &format!("{directory}/{target}"))
        }
        Kind::Directory | Kind::Symlink(_) | Kind::HardLink(_) => None,
    }
}

/// kaniko's executor, which needs no libraries: it works while the root belongs to another image.
pub(super) fn executor(path: &Path, content: &[u8], architecture: Architecture) -> Result<Made> {
    program::check_machine(path, content, architecture)?;
    ensure!(
        libraries(path)?.is_empty(),
        "{} is not static; build it by `tools/setup kaniko`",
        path.display()
    );
    let mut layer = Layer::default();
    layer.put("kaniko/executor", Entry::program(content));
    made("kaniko", &layer)
}

pub(super) fn terrane(binary: &[u8]) -> Result<Made> {
    let mut layer = Layer::default();
    layer.put("kaniko/terrane", Entry::program(binary));
    made("terrane", &layer)
}

/// The libraries that a program names itself.
fn libraries(path: &Path) -> Result<Vec<String>> {
    let output = Command::new("readelf").arg("--dynamic").arg("--wide").arg(path).output();
    let output = output.context("readelf cannot be run; install binutils")?;
    ensure!(output.status.success(), "readelf cannot read {}", path.display());
    Ok(needed(&String::from_utf8_lossy(&output.stdout)))
}

fn needed(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_is_read_from_what_readelf_says() {
        let said = "Dynamic section at offset 0x1 contains 30 entries:\n  Tag        Type                         Name/Value\n \
                    0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n \
                    0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]\n 0x000000000000000c (INIT)               0x1000\n";
        assert_eq!(needed(said), ["libgcc_s.so.1", "libm.so.6"]);
        assert_eq!(needed("There is no dynamic section in this file.\n"), [""; 0]);
    }

    #[test]
    fn a_library_is_found_through_a_link_beside_it() {
        let mut base = Layer::default();
        base.put("usr/lib/x/libm.so.6", Entry::symlink("libm-2.36.so"));
        base.put("usr/lib/x/libm-2.36.so", Entry::file("m"));
        base.put("usr/lib/x/away", Entry::symlink("/etc/passwd"));
        assert_eq!(found(&base, "usr/lib/x/libm.so.6"), Some(Entry::file("m")));
        assert_eq!(found(&base, "usr/lib/x/away"), None);
        assert_eq!(found(&base, "usr/lib/x/libc.so.6"), None);
    }
}
