//! Which state the code leads to, once `init` has settled it: what the tool wrote down about its backend, with the variables that
//! this backend reads from the environment, reduced to what tells one state from another. Where in doubt two states are taken for
//! one: that costs a wait, the other way round two applies could meet.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use api::backend::Backend;
use serde::Deserialize;
use serde_json::{Map, Value};

/// More than any tool writes about its backend.
const RECORD_LIMIT: u64 = 1024 * 1024;
const DEFAULT_WORKSPACE: &str = "default";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("init left no record of its backend in {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the record of the backend in {path} cannot be understood: {source}")]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("the code names a backend, but init settled on none according to {path}")]
    None { path: PathBuf },
}

/// What surrounds the tool where it works.
pub(crate) struct Around<'a> {
    /// Where the tool works; relative paths start here.
    pub(crate) dir: &'a Path,
    /// Later ones win.
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) workspace: &'a str,
}

/// The backend that `init` settled on.
pub(crate) fn settled(around: &Around<'_>) -> Result<Backend, Error> {
    #[derive(Deserialize)]
    struct Record {
        backend: Option<Settled>,
    }
    #[derive(Deserialize)]
    struct Settled {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        config: Map<String, Value>,
    }
    use std::io::Read;
    let data = around.variable("TF_DATA_DIR").map_or_else(|| PathBuf::from(".terraform"), PathBuf::from);
    let path = around.dir.join(data).join("terraform.tfstate");
    let at = |source| Error::Io { path: path.clone(), source };
    let mut content = Vec::new();
    std::fs::File::open(&path).map_err(at)?.take(RECORD_LIMIT).read_to_end(&mut content).map_err(at)?;
    let record: Record =
        serde_json::from_slice(&content).map_err(|source| Error::Malformed { path: path.clone(), source })?;
    let settled = record.backend.ok_or(Error::None { path })?;
    Ok(reduce(&settled.kind, &settled.config, around))
}

/// The file of a state in plain files.
pub(crate) fn local_file(backend: &Backend) -> Option<&Path> {
    backend.settings.get("path").filter(|_| backend.kind == "local").map(Path::new)
}

impl Around<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        let found = self.environment.iter().rev().find(|(known, _)| known == OsStr::new(name))?;
        found.1.to_str().filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// `TF_WORKSPACE` wins over what was selected.
    fn workspace(&self) -> String {
        self.variable("TF_WORKSPACE").unwrap_or_else(|| self.workspace.to_owned())
    }
}

/// What tells the states of the usual backends apart: the setting, the variables that stand in for it, and its default.
type Telling = (&'static str, &'static [&'static str], &'static str);

fn telling(kind: &str) -> Option<&'static [Telling]> {
    Some(match kind {
        "gcs" => &[
            ("bucket", &[], ""),
            ("prefix", &[], ""),
            (
                "storage_custom_endpoint",
                &["GOOGLE_BACKEND_STORAGE_CUSTOM_ENDPOINT", "GOOGLE_STORAGE_CUSTOM_ENDPOINT"],
                "",
            ),
        ],
        "azurerm" => &[("storage_account_name", &[], ""), ("container_name", &[], ""), ("key", &[], "")],
        "consul" => &[("address", &["CONSUL_HTTP_ADDR"], ""), ("path", &[], "")],
        "kubernetes" => &[
            ("secret_suffix", &[], ""),
            ("namespace", &["KUBE_NAMESPACE"], "default"),
            ("host", &["KUBE_HOST"], ""),
            ("config_context", &["KUBE_CTX"], ""),
        ],
        "oss" => &[
            ("bucket", &[], ""),
            ("prefix", &[], "env:"),
            ("key", &[], "terraform.tfstate"),
            ("endpoint", &["ALICLOUD_OSS_ENDPOINT", "OSS_ENDPOINT"], ""),
        ],
        "cos" => &[("bucket", &[], ""), ("prefix", &[], ""), ("key", &[], "terraform.tfstate")],
        _ => return None,
    })
}

/// Parts of names behind which a value may be secret.
const SECRETIVE: &[&str] =
    &["secret", "password", "token", "credential", "private", "access_key", "conn_str", "sas", "passphrase"];

fn reduce(kind: &str, config: &Map<String, Value>, around: &Around<'_>) -> Backend {
    let config = flattened(config);
    let get = |name: &str, variables: &[&str], default: &str| {
        let value = config.get(name).cloned();
        let value = value.or_else(|| variables.iter().find_map(|variable| around.variable(variable)));
        value.unwrap_or_else(|| default.to_owned())
    };
    let workspace = around.workspace();
    let (kind, settings) = match kind {
        "local" => ("local", vec![("path", local_path(&get, &workspace, around.dir))]),
        "s3" => {
            let key = get("key", &[], "");
            let object = if workspace == DEFAULT_WORKSPACE {
                key
            } else {
                format!("{}/{workspace}/{key}", get("workspace_key_prefix", &[], "env:"))
            };
            let legacy = get("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT", "AWS_ENDPOINT_URL"], "");
            let endpoint = get("endpoints.s3", &[], &legacy);
            (
                "s3",
                vec![
                    ("bucket", get("bucket", &[], "")),
                    ("object", object),
                    ("endpoint", without_login(&endpoint)),
                ],
            )
        }
        "http" => ("http", vec![("address", without_login(&get("address", &["TF_HTTP_ADDRESS"], "")))]),
        "pg" => {
            let mut settings = postgres(&get("conn_str", &["PG_CONN_STR"], ""), around);
            let schema = get("schema_name", &["PG_SCHEMA_NAME"], "terraform_remote_state");
            settings.extend([("schema_name", schema), ("workspace", workspace)]);
            ("pg", settings)
        }
        // Two ways to say the same.
        "remote" | "cloud" => {
            let name = get("workspaces.name", &[], "");
            let prefix = get("workspaces.prefix", &[], "");
            let workspace = if name.is_empty() { format!("{prefix}{workspace}") } else { name };
            let hostname = get("hostname", &["TF_CLOUD_HOSTNAME"], "app.terraform.io");
            let organization = get("organization", &["TF_CLOUD_ORGANIZATION"], "");
            ("cloud", vec![("hostname", hostname), ("organization", organization), ("workspace", workspace)])
        }
        other => {
            let settings = match telling(other) {
                Some(telling) => {
                    telling.iter().map(|(name, env, or)| ((*name).to_owned(), get(name, env, or))).collect()
                }
                None => not_secret(&config),
            };
            let settings = settings.into_iter().chain([("workspace".to_owned(), workspace)]);
            return backend(other, settings);
        }
    };
    backend(kind, settings.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

/// A setting that is not set, and one that is set to its default, say the same.
fn backend(kind: &str, settings: impl Iterator<Item = (String, String)>) -> Backend {
    let is_said = |(name, value): &(String, String)| {
        let is_default = name == "workspace" && value == DEFAULT_WORKSPACE;
        !value.is_empty() && !is_default
    };
    Backend { kind: kind.to_owned(), settings: settings.filter(is_said).collect() }
}

/// Names of nested settings are joined with dots. What is not set is left out.
fn flattened(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left: Vec<(String, &Value)> = config.iter().map(|(name, value)| (name.clone(), value)).collect();
    while let Some((name, value)) = left.pop() {
        match value {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => drop(found.insert(name, text.clone())),
            Value::Bool(_) | Value::Number(_) => drop(found.insert(name, value.to_string())),
            // A block that can stand once is a list of one.
            Value::Array(items) => match items.as_slice() {
                [Value::Object(only)] => {
                    left.extend(only.iter().map(|(inner, v)| (format!("{name}.{inner}"), v)))
                }
                items => left.extend(items.iter().enumerate().map(|(at, v)| (format!("{name}.{at}"), v))),
            },
            Value::Object(inner) => left.extend(inner.iter().map(|(key, v)| (format!("{name}.{key}"), v))),
        }
    }
    found
}

fn not_secret(config: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let is_shown = |name: &str| !SECRETIVE.iter().any(|part| name.contains(part));
    let shown = config.iter().filter(|(name, _)| is_shown(name));
    shown.map(|(name, value)| (name.clone(), without_login(value))).collect()
}

/// The file that holds the state, absolute and without detours.
fn local_path(get: &impl Fn(&str, &[&str], &str) -> String, workspace: &str, dir: &Path) -> String {
    let file = if workspace == DEFAULT_WORKSPACE {
        PathBuf::from(get("path", &[], "terraform.tfstate"))
    } else {
        Path::new(&get("workspace_dir", &[], "terraform.tfstate.d")).join(workspace).join("terraform.tfstate")
    };
    resolved(&dir.join(file)).to_string_lossy().into_owned()
}

/// Links are followed as far as the path exists; the rest is taken by its names.
fn resolved(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
        if let Ok(real) = std::fs::canonicalize(&plain) {
            plain = real;
        }
    }
    plain
}

/// A URL without user and password.
fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A query of an address can carry a token.
    let path = path.split_once(['?', '#']).map_or(path, |(path, _)| path);
    format!("{scheme}://{host}{path}")
}

/// Host, port and database, from a URL or from words such as `host=db dbname=states`, else from libpq's variables.
fn postgres(connection: &str, around: &Around<'_>) -> Vec<(&'static str, String)> {
    let mut found = BTreeMap::new();
    if let Some((_, rest)) = without_login(connection).split_once("://") {
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
        found.extend([("host", host.to_owned()), ("port", port.to_owned()), ("dbname", database.to_owned())]);
    } else {
        for word in connection.split_ascii_whitespace() {
            for name in ["host", "port", "dbname"] {
                if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                    found.insert(name, value.trim_matches('\'').to_owned());
                }
            }
        }
    }
    let defaults =
        [("host", "PGHOST", "localhost"), ("port", "PGPORT", "5432"), ("dbname", "PGDATABASE", "")];
    let settle = |(name, variable, default): (&'static str, &str, &str)| {
        let value = found.remove(name).filter(|value: &String| !value.is_empty());
        let value = value.or_else(|| around.variable(variable)).unwrap_or_else(|| default.to_owned());
        (name, value)
    };
    defaults.map(settle).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn words(kind: &str, config: Value, environment: &[(&str, &str)], workspace: &str) -> String {
        let environment: Vec<(OsString, OsString)> =
            environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let around = Around { dir: Path::new("/nowhere/work"), environment: &environment, workspace };
        reduce(kind, config.as_object().unwrap(), &around).to_string()
    }

    #[test]
    fn one_state_has_one_form_however_it_is_configured() {
        let same: &[(&str, &[&str])] = &[
            (
                "s3 bucket=b object=k",
                &[
                    &words(
                        "s3",
                        json!({"bucket": "b", "key": "k", "region": "eu-1", "secret_key": "x"}),
                        &[],
                        "default",
                    ),
                    &words(
                        "s3",
                        json!({"bucket": "b", "key": "k", "profile": "p"}),
                        &[("AWS_REGION", "eu-2")],
                        "default",
                    ),
                ],
            ),
            (
                "s3 bucket=b endpoint=https://minio object=env:/dev/k",
                &[
                    &words(
                        "s3",
                        json!({"bucket": "b", "key": "k", "endpoints": [{"s3": "https://u:p@minio"}]}),
                        &[],
                        "dev",
                    ),
                    &words(
                        "s3",
                        json!({"bucket": "b", "key": "k", "endpoint": "https://minio"}),
                        &[("TF_WORKSPACE", "dev")],
                        "default",
                    ),
                    &words(
                        "s3",
                        json!({"bucket": "b", "key": "k"}),
                        &[("AWS_ENDPOINT_URL_S3", "https://minio")],
                        "dev",
                    ),
                ],
            ),
            (
                "local path=/nowhere/work/terraform.tfstate",
                &[
                    &words("local", json!({"path": null}), &[], "default"),
                    &words("local", json!({"path": "../work/./terraform.tfstate"}), &[], "default"),
                ],
            ),
            (
                "local path=/nowhere/states/dev/terraform.tfstate",
                &[
                    &words("local", json!({"path": "/nowhere/states/dev/terraform.tfstate"}), &[], "default"),
                    &words("local", json!({"workspace_dir": "/nowhere/states"}), &[], "dev"),
                ],
            ),
            (
                "http address=https://host/state",
                &[
                    &words(
                        "http",
                        json!({"address": "https://u:p@host/state?token=t", "password": "x"}),
                        &[],
                        "default",
                    ),
                    &words("http", json!({}), &[("TF_HTTP_ADDRESS", "https://host/state")], "default"),
                ],
            ),
            (
                "pg dbname=states host=db port=5432 schema_name=terraform_remote_state workspace=dev",
                &[
                    &words("pg", json!({"conn_str": "postgres://u:p@db/states?sslmode=disable"}), &[], "dev"),
                    &words("pg", json!({"conn_str": "host=db password=p dbname='states'"}), &[], "dev"),
                    &words("pg", json!({}), &[("PGHOST", "db"), ("PGDATABASE", "states")], "dev"),
                ],
            ),
            (
                "cloud hostname=app.terraform.io organization=o workspace=net-dev",
                &[
                    &words(
                        "remote",
                        json!({"organization": "o", "workspaces": [{"prefix": "net-"}]}),
                        &[],
                        "dev",
                    ),
                    &words(
                        "cloud",
                        json!({"workspaces": {"name": "net-dev"}}),
                        &[("TF_CLOUD_ORGANIZATION", "o")],
                        "default",
                    ),
                ],
            ),
            (
                "kubernetes namespace=tf secret_suffix=s",
                &[
                    &words(
                        "kubernetes",
                        json!({"secret_suffix": "s", "namespace": "tf", "token": "x"}),
                        &[],
                        "default",
                    ),
                    &words(
                        "kubernetes",
                        json!({"secret_suffix": "s"}),
                        &[("KUBE_NAMESPACE", "tf")],
                        "default",
                    ),
                ],
            ),
            (
                "gcs bucket=b prefix=p workspace=dev",
                &[&words("gcs", json!({"bucket": "b", "prefix": "p", "credentials": "{}"}), &[], "dev")],
            ),
            (
                "newer bucket=b nested.place=here",
                &[&words(
                    "newer",
                    json!({"bucket": "b", "nested": {"place": "here"}, "access_key": "x", "auth_token": "x"}),
                    &[],
                    "default",
                )],
            ),
        ];
        for (expected, found) in same {
            for found in *found {
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn links_lead_to_one_file_and_the_record_of_init_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir(real.join("states")).unwrap();
        std::os::unix::fs::symlink(real.join("states"), real.join("link")).unwrap();
        std::fs::create_dir(real.join(".terraform")).unwrap();
        let record = json!({"version": 3, "backend": {"type": "local", "config": {"path": "link/a.tfstate"}, "hash": 1}});
        std::fs::write(real.join(".terraform/terraform.tfstate"), record.to_string()).unwrap();
        let around = Around { dir: &real, environment: &[], workspace: "default" };
        let found = settled(&around).unwrap();
        assert_eq!(local_file(&found), Some(real.join("states/a.tfstate").as_path()));

        std::fs::write(real.join(".terraform/terraform.tfstate"), "{}").unwrap();
        assert!(
            settled(&around)
                .unwrap_err()
                .to_string()
                .starts_with("the code names a backend, but init settled on none")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_upsets_it(text in "\\PC{0,60}") {
            let once = without_login(&format!("pg://{text}"));
            proptest::prop_assert_eq!(without_login(&once), once);
            let around = Around { dir: Path::new("/"), environment: &[], workspace: "default" };
            let names: Vec<&str> = postgres(&text, &around).into_iter().map(|(name, _)| name).collect();
            proptest::prop_assert_eq!(names, ["host", "port", "dbname"]);
        }
    }
}
