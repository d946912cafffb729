//! The backend that a layer asks for: a file that takes the place of whatever backend the code names, and what the tool logs in with. The
//! file holds no credentials, because the tool copies what it says into its plans; those come by the environment.

use std::path::{Path, PathBuf};

use api::backend::Backend;
use api::backends::{Generated, Login};
use api::inputs::Contents;
use hcl_edit::Ident;
use hcl_edit::expr::{Expression, Object, ObjectKey};
use hcl_edit::structure::{Attribute, Block, Body};
use serde_json::{Map, Value};
use tofu::choice::Code;

use crate::attempt::{Ready, Work};
use crate::ending::{Ending, Step, disk};
use crate::inputs::{environment_words, write_private};

/// The tool lays such files over the others in the order of their names; a tilde comes after all letters.
const FILE: &str = "~terrane_backend_override.tf";

impl Work<'_> {
    /// Lays the layer's backend over the code. Of the files as they were fetched, none is changed.
    pub(crate) fn lay_backend(&self, ready: &Ready, code: &Code) -> Step<()> {
        let Some(generated) = &self.own.backend else { return Ok(()) };
        if ready.tool.wrapper.is_some() && code.backend.is_some() {
            return Err(Ending::bad_input(
                "Terragrunt gives this unit a backend, and so does the layer; remove remote_state and generated backends from the unit, or spec.backend from the layer",
            ));
        }
        let text = text(generated).ok_or_else(|| {
            Ending::bad_input(format!("the settings of backend {} cannot be written", generated.provider))
        })?;
        self.log.line(&format!("The layer's own backend: {} ({}).", generated.provider, generated.kind));
        write_private(&ready.work_dir.join(FILE), text.as_bytes()).map_err(disk)
    }

    /// What `init` settled on is what the layer asks for.
    pub(crate) fn check_laid(&self, settled: &Backend) -> Step<()> {
        let Some(generated) = &self.own.backend else { return Ok(()) };
        let asked = match generated.kind.as_str() {
            // Two ways to say the same.
            "remote" => "cloud",
            other => other,
        };
        if settled.kind == asked {
            return Ok(());
        }
        Err(Ending::bad_input(format!(
            "the layer asks for backend {asked}, but a file of the code that is read last names {}; rename that file so that its name does not begin with ~",
            settled.kind
        )))
    }
}

/// The settings as the tool reads them: a list of objects stands for blocks, everything else for arguments. None of what no checked
/// definition leads to.
fn text(generated: &Generated) -> Option<String> {
    let mut backend = Block::new(Ident::new("backend"));
    backend.labels.push(generated.kind.as_str().into());
    backend.body = body(&generated.settings)?;
    let mut terraform = Block::new(Ident::new("terraform"));
    terraform.body.push(backend);
    let mut file = Body::new();
    file.push(terraform);
    Some(file.to_string())
}

fn body(settings: &Map<String, Value>) -> Option<Body> {
    let mut body = Body::new();
    for (name, value) in settings {
        let name = Ident::try_new(name.as_str()).ok()?;
        match blocks(value) {
            Some(blocks) => {
                for inner in blocks {
                    let mut block = Block::new(name.clone());
                    block.body = self::body(inner)?;
                    body.push(block);
                }
            }
            None => body.push(Attribute::new(name, expression(value)?)),
        }
    }
    Some(body)
}

fn blocks(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    items.iter().map(Value::as_object).collect()
}

fn expression(value: &Value) -> Option<Expression> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => Expression::from(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Expression::from(number),
            (None, Some(number)) => Expression::from(number),
            (None, None) => return None,
        },
        Value::String(text) => Expression::from(text.as_str()),
        Value::Array(items) => items.iter().map(expression).collect::<Option<Vec<_>>>()?.into(),
        Value::Object(fields) => {
            let mut object = Object::new();
            for (name, field) in fields {
                object.insert(ObjectKey::from(Expression::from(name.as_str())), expression(field)?);
            }
            Expression::from(object)
        }
    })
}

/// Of an environment, each with its value.
pub(crate) type Variables = Vec<(String, String)>;

/// What the tool logs in with: variables of its environment, and what was left out, in words for the log. `directory` is where the pod
/// mounted the Secret.
pub(crate) fn login(login: &Login, contents: &Contents, directory: &Path) -> Step<(Variables, Vec<String>)> {
    let object = login.object();
    let Some(data) = contents.get(&object) else { return Ok(Default::default()) };
    let mut variables = Vec::new();
    for known in &login.keys {
        let (Some(value), Some(variable)) = (data.get(known.key.as_str()), known.variable()) else {
            continue;
        };
        let value = if known.file {
            let file: PathBuf = directory.join(known.key.as_str());
            file.to_string_lossy().into_owned()
        } else {
            environment_words(&object, known.key.as_str(), value)?
        };
        variables.push((variable.to_string(), value));
    }
    let is_known = |key: &str| login.keys.iter().any(|known| known.key.as_str() == key);
    let unknown = data.keys().filter(|key| !is_known(key));
    let remarks =
        unknown.map(|key| format!("Key {key} of {object} is none that the backend reads; left out."));
    Ok((variables, remarks.collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn written(settings: Value) -> String {
        let generated = json!({ "provider": "any", "kind": "any", "settings": settings });
        text(&serde_json::from_value(generated).unwrap()).unwrap()
    }

    #[test]
    fn settings_are_written_as_the_tool_reads_them() {
        let text = written(json!({
            "bucket": "a \"quoted\" \\ name", "encrypt": true, "max_retries": 3, "delegates": ["a", "b"],
            "endpoints": { "s3": "http://127.0.0.1:1" }, "workspaces": [{ "name": "one" }], "none": [],
        }));
        let expected = r#"terraform {
  backend "any" {
    bucket = "a \"quoted\" \\ name"
    encrypt = true
    max_retries = 3
    delegates = ["a", "b"]
    endpoints = {"s3" = "http://127.0.0.1:1",}
    workspaces {
      name = "one"
    }
    none = []
  }
}
"#;
        let squeezed = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&text), squeezed(expected), "{text}");
    }

    #[test]
    fn what_is_written_is_read_back_as_it_was() {
        for value in ["a\"b", "a\\", "\\\"}", "}\nterraform {", "#", "//x", "<<EOT", "ü 漢"] {
            let text = written(json!({ "path": value }));
            let read: Body = text.parse().unwrap();
            let terraform = read.get_blocks("terraform").next().unwrap();
            let backend = terraform.body.get_blocks("backend").next().unwrap();
            assert_eq!(backend.body.get_attribute("path").unwrap().value.as_str(), Some(value), "{text}");
            assert_eq!((read.len(), terraform.body.len(), backend.body.len()), (1, 1, 1), "{text}");
        }
    }

    #[test]
    fn a_login_is_what_the_definition_names_and_the_rest_is_told_of() {
        let keys = json!({ "secret": "s", "keys": [
            { "key": "AWS_ACCESS_KEY_ID" }, { "key": "AWS_SESSION_TOKEN" },
            { "key": "kubeconfig", "environment": "KUBE_CONFIG_PATH", "file": true },
        ] });
        let keys: Login = serde_json::from_value(keys).unwrap();
        let data = [("AWS_ACCESS_KEY_ID", "id"), ("kubeconfig", "text"), ("AWS_ACCESS_KEY", "slip")];
        let data = data.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec())).into();
        let contents = Contents::from([(keys.object(), data)]);
        let (variables, remarks) = login(&keys, &contents, Path::new("/mounted/0")).unwrap();
        let expected = [("AWS_ACCESS_KEY_ID", "id"), ("KUBE_CONFIG_PATH", "/mounted/0/kubeconfig")];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(remarks, ["Key AWS_ACCESS_KEY of Secret s is none that the backend reads; left out."]);
    }
}
