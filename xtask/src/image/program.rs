//! A compiled program that goes into an image: is it of the right machine, and will it find a libc that is new enough?

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Architecture;

/// The program without its debug information, which is most of its size. Names of functions stay, so a backtrace can still be read.
pub(super) fn read_stripped(path: &Path, scratch: &Path) -> Result<Vec<u8>> {
    ensure!(
        path.is_file(),
        "there is no program {}; build it first, or name another by --binary",
        path.display()
    );
    let stripped = scratch.join("stripped");
    let status = Command::new("strip")
        .args(["--strip-debug", "--enable-deterministic-archives", "-o"])
        .arg(&stripped)
        .arg(path)
        .status()
        .context("strip cannot be run; install binutils")?;
    ensure!(status.success(), "strip cannot read {}", path.display());
    let content = fs::read(&stripped)?;
    fs::remove_file(&stripped)?;
    Ok(content)
}

/// Which machine an ELF file is for: bytes 18 and 19, after the mark at its start.
pub(super) fn check_machine(path: &Path, content: &[u8], architecture: Architecture) -> Result<()> {
    let found = match (content.get(..4), content.get(18..20)) {
        (Some(b"\x7fELF"), Some([62, 0])) => Architecture::Amd64,
        (Some(b"\x7fELF"), Some([183, 0])) => Architecture::Arm64,
        _ => bail!("{} is not a program for amd64 or arm64", path.display()),
    };
    ensure!(
        found == architecture,
        "{} is for {}, the image for {}; build it for that machine",
        path.display(),
        found.as_str(),
        architecture.as_str()
    );
    Ok(())
}

/// A program that was built on a newer system does not start on an older libc, and says so only when it runs.
pub(super) fn check_libc(path: &Path, content: &[u8], libc6: &str) -> Result<()> {
    let Some(needed) = newest_libc(content) else { return Ok(()) };
    let offered = libc6.split('-').next().unwrap_or(libc6);
    ensure!(
        minor(offered).is_some_and(|offered| needed <= offered),
        "{} needs glibc 2.{needed}, and the image has {offered}; build it on the Debian of the image",
        path.display()
    );
    Ok(())
}

/// The N of the newest `GLIBC_2.N` that the program names.
fn newest_libc(content: &[u8]) -> Option<u32> {
    const MARK: &[u8] = b"GLIBC_2.";
    memchr::memmem::find_iter(content, MARK)
        .filter_map(|start| {
            let digits = content.get(start + MARK.len()..)?;
            let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
            std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
        })
        .max()
}

fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("2.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_machine_is_refused() {
        let mut elf = b"\x7fELF".to_vec();
        elf.resize(64, 0);
        elf[18] = 183;
        let path = Path::new("terrane");
        check_machine(path, &elf, Architecture::Arm64).unwrap();
        let error = check_machine(path, &elf, Architecture::Amd64).unwrap_err().to_string();
        assert_eq!(error, "terrane is for arm64, the image for amd64; build it for that machine");
        let error = check_machine(path, b"#!/bin/sh", Architecture::Amd64).unwrap_err().to_string();
        assert_eq!(error, "terrane is not a program for amd64 or arm64");
    }

    #[test]
    fn a_program_that_needs_a_newer_libc_is_refused() {
        let path = Path::new("terrane");
        let program = b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.4\0";
        check_libc(path, program, "2.36-9+deb12u14").unwrap();
        check_libc(path, b"static", "2.36-9").unwrap();
        let error = check_libc(path, program, "2.31-13").unwrap_err().to_string();
        assert_eq!(
            error,
            "terrane needs glibc 2.34, and the image has 2.31; build it on the Debian of the image"
        );
    }
}
