//! Backends that an administrator adds: the files of a directory, each the definition of one.

use std::path::PathBuf;

use anyhow::Context;
use api::backends::Backends;
use clap::Args;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct BackendFiles {
    /// A directory with definitions of more backends that layers can ask for, each a .yaml file; read at the start
    #[arg(long, value_name = "DIR", env = "TERRANE_BACKENDS")]
    pub backends: Option<PathBuf>,
}

impl BackendFiles {
    /// Those that come with Terrane and those of the directory. One that cannot be used is better said now than by a layer.
    pub(crate) fn read(&self) -> anyhow::Result<Backends> {
        let mut all = Backends::default();
        let Some(directory) = &self.backends else { return Ok(all) };
        let reading = || format!("read --backends {}", directory.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(reading)? {
            let path = entry.with_context(reading)?.path();
            let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let is_definition = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
            if !is_hidden && is_definition {
                files.push(path);
            }
        }
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("read the backend in {}", file.display()))?;
            all.add(&text).with_context(|| format!("use the backend in {}", file.display()))?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DEFINITION: &str =
        "name: shelf\nabout: A shelf.\nbackend: local\nfields:\n  path: { about: The file. }\n";

    #[test]
    fn definitions_are_read_from_a_directory_and_a_wrong_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("shelf.yaml", DEFINITION);
        write("README.md", "not one of them");
        write("..data.yaml", "not one of them");
        let files = BackendFiles { backends: Some(directory.path().to_owned()) };
        let names: Vec<String> = files.read().unwrap().all().map(|known| known.name.to_string()).collect();
        assert!(names.contains(&"shelf".to_owned()) && names.contains(&"s3".to_owned()), "{names:?}");

        write("wrong.yaml", &DEFINITION.replace("shelf", "s3"));
        let error = format!("{:#}", files.read().unwrap_err());
        assert!(
            error.ends_with("wrong.yaml: there is a backend s3 already; give it another name"),
            "{error}"
        );
        let nowhere = BackendFiles { backends: Some(directory.path().join("nowhere")) };
        assert!(format!("{:#}", nowhere.read().unwrap_err()).starts_with("read --backends "));
    }
}
