//! Which variables a root module declares, read from a mirror without checking anything out: what a template's stacks may be given.

use std::collections::{BTreeMap, BTreeSet};

use api::template::{DECLARED_LIMIT, Declared, WORDS_LIMIT};
use api::text::{CommitId, LayerPath};

use crate::error::Error;
use crate::git::{Git, Mirror};
use crate::hcl;
use crate::objects::{Kind, Objects};
use crate::terragrunt::Tree;

const FILE_LIMIT: u64 = 4 * 1024 * 1024;

/// A root module, and the files that give values to its variables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Module {
    pub path: LayerPath,
    pub variable_files: Vec<LayerPath>,
}

impl Git {
    /// The variables of a module at a commit, in the order of their names; none of a unit of Terragrunt, whose module may be elsewhere.
    /// O(files of the repository, and the bytes of the module's own).
    pub async fn declared(
        &self,
        mirror: &Mirror,
        commit: &CommitId,
        module: &Module,
    ) -> Result<Option<Vec<Declared>>, Error> {
        let entries = self.tree(mirror, commit).await?;
        let directory = module.path.trimmed().to_owned();
        if Tree(&entries).unit(&directory).is_some() {
            return Ok(None);
        }
        let (mut code, mut values) = (Vec::new(), Vec::new());
        for entry in entries {
            let Ok(path) = String::from_utf8(entry.path) else { continue };
            match entry.kind {
                Kind::File | Kind::Executable => {}
                Kind::Symlink | Kind::Submodule => continue,
            }
            let (found_in, name) = path.rsplit_once('/').unwrap_or(("", path.as_str()));
            let is_here = found_in == directory;
            if is_here && hcl::is_configuration(name) {
                code.push((name.to_owned(), entry.object));
            } else if (is_here && is_read_by_itself(name))
                || module.variable_files.iter().any(|file| file.trimmed() == path)
            {
                values.push((name.to_owned(), entry.object));
            }
        }
        self.with_objects(mirror, "read the variables of", move |objects| read(objects, &code, &values))
            .await
            .map(Some)
    }
}

/// Files with variables that the tools find in a module's directory.
fn is_read_by_itself(name: &str) -> bool {
    ["terraform.tfvars", "terraform.tfvars.json"].contains(&name)
        || name.ends_with(".auto.tfvars")
        || name.ends_with(".auto.tfvars.json")
}

fn read(
    objects: &mut Objects,
    code: &[(String, String)],
    values: &[(String, String)],
) -> Result<Vec<Declared>, Error> {
    let mut given = BTreeSet::new();
    for (name, object) in values {
        given.extend(hcl::assigned(name, &objects.blob_prefix(object, FILE_LIMIT)?));
    }
    let mut found: BTreeMap<String, hcl::Variable> = BTreeMap::new();
    for (name, object) in code {
        let content = objects.blob_prefix(object, FILE_LIMIT)?;
        for variable in hcl::outline(name, &content).variables {
            match found.get_mut(&variable.name) {
                Some(known) => known.merge(variable),
                None => drop(found.insert(variable.name.clone(), variable)),
            }
        }
    }
    let told = found.into_values().take(DECLARED_LIMIT).map(|variable| Declared {
        required: !variable.has_default && !given.contains(&variable.name),
        name: variable.name,
        kind: variable.kind.map(brief),
        description: variable.description.map(brief),
        sensitive: variable.sensitive == Some(true),
    });
    Ok(told.collect())
}

fn brief(words: String) -> String {
    words.chars().take(WORDS_LIMIT).collect()
}
