//! Where the tool gets providers from, where the administrator named a mirror: its configuration file. Reads the mirror's
//! directories; downloads nothing.

use std::path::Path;

/// The configuration for a mirror: a directory in the layout that `terraform providers mirror` writes, or an https address of the
/// provider network mirror protocol.
///
/// Providers that the directory holds come from there alone, so that nothing is asked of a registry for them; others are fetched as
/// ever. A network mirror answers for all.
pub(crate) fn configuration(mirror: &str) -> std::io::Result<String> {
    if mirror.starts_with("https://") {
        return Ok(format!(
            "provider_installation {{\n  network_mirror {{\n    url = {}\n  }}\n}}\n",
            quoted(mirror)
        ));
    }
    let names = held(Path::new(mirror))?;
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let names = names.join(", ");
    Ok(format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path    = {}\n    include = [{names}]\n  }}\n  direct {{\n    exclude = [{names}]\n  }}\n}}\n",
        quoted(mirror)
    ))
}

/// The providers of a mirror, as `host/namespace/type`, sorted. O(providers).
fn held(mirror: &Path) -> std::io::Result<Vec<String>> {
    let mut names = vec![String::new()];
    for _ in 0..3 {
        let mut deeper = Vec::new();
        for name in names {
            for entry in std::fs::read_dir(mirror.join(&name))? {
                let entry = entry?;
                let part = entry.file_name().into_string().unwrap_or_default();
                let is_name = !part.starts_with('.')
                    && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
                if is_name && entry.path().is_dir() {
                    deeper.push(if name.is_empty() { part } else { format!("{name}/{part}") });
                }
            }
        }
        names = deeper;
    }
    names.sort();
    Ok(names)
}

fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace("${", "$${")
        .replace("%{", "%%{")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_mirror_holds_comes_from_it_alone() {
        let mirror = tempfile::tempdir().unwrap();
        for place in
            ["registry.terraform.io/hashicorp/local/2.9.0", "registry.terraform.io/acme/x", ".git/a/b"]
        {
            std::fs::create_dir_all(mirror.path().join(place)).unwrap();
        }
        std::fs::write(mirror.path().join("README"), "").unwrap();
        let path = mirror.path().to_str().unwrap();
        let names = "\"registry.terraform.io/acme/x\", \"registry.terraform.io/hashicorp/local\"";
        assert_eq!(
            configuration(path).unwrap(),
            format!(
                "provider_installation {{\n  filesystem_mirror {{\n    path    = \"{path}\"\n    include = [{names}]\n  }}\n  direct {{\n    exclude = [{names}]\n  }}\n}}\n"
            )
        );
        assert!(configuration("/no/such/mirror").is_err());
    }

    #[test]
    fn a_network_mirror_answers_for_all_and_text_stays_text() {
        let written = configuration("https://mirror.example.org/\"x/${y}").unwrap();
        assert!(written.contains("url = \"https://mirror.example.org/\\\"x/$${y}\""), "{written}");
        assert!(!written.contains("direct"));
    }
}
