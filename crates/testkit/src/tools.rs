//! Where tests find the outside programs that `tools/setup` provides.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The path of the program `name`, or an error that says how to get it.
pub fn tool(name: &str) -> Result<PathBuf> {
    let path = directory()?.join(name);
    ensure!(
        path.is_file(),
        "{name} is not in {}: run `make setup`.",
        path.parent().unwrap_or(&path).display()
    );
    Ok(path)
}

/// The directory laid out as a mirror of providers, for `filesystem_mirror` of terraform and OpenTofu.
pub fn provider_mirror() -> Result<PathBuf> {
    let mirror = directory()?.with_file_name("mirror");
    ensure!(mirror.is_dir(), "the providers are not in {}: run `make setup`.", mirror.display());
    Ok(mirror)
}

/// `make test` names the directory; a plain `cargo test` asks the script that fills it.
fn directory() -> Result<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "a test has no command line of ours to be told on")]
    if let Some(directory) = std::env::var_os("TERRANE_TOOLS") {
        return Ok(directory.into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/setup");
    let output = Command::new(&script)
        .arg("path")
        .output()
        .with_context(|| format!("running {} path", script.display()))?;
    ensure!(
        output.status.success(),
        "{} path failed: {}",
        script.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout).context("reading the path of the tools")?.trim_end().into())
}
