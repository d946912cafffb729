//! What an attempt is given beside the code: read from where the pod mounted it, compared with what the run is about, and handed to the
//! tool. Values reach the tool by files of its working directory and by its environment, never by its arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use api::attempt::{GivenInputs, Reason};
use api::backends::{Generated, Login};
use api::hooks::{Moment, script_digest};
use api::inputs::{Contents, Data, Format, Inputs, KeyRef, Kind, Object, ValueSource};
use api::overrides::ExtraArguments;
use api::run::Mode;
use api::snapshot::Snapshot;
use api::text::{EnvironmentName, LayerPath, Sha256, VariableName};
use secrecy::SecretString;
use serde_json::{Map, Value};

use crate::attempt::{Ready, Work};
use crate::ending::{Ending, Step, disk};
use crate::generated::{self, Variables};
use crate::hooks::{Command, Text};
use crate::scripts::Script;

/// The tool reads such files by itself, in the order of their names, in every command and whatever version it is. These are the last:
/// a name that begins with a tilde comes after all that begin with a letter.
const FILE_PREFIX: &str = "~terrane-";
const VALUES_FILE: &str = "~terrane-99.auto.tfvars.json";

/// What the tool is given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    variables: Map<String, Value>,
    files: Vec<LayerPath>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) hooks: BTreeMap<Moment, Vec<Command>>,
    scripts: BTreeMap<Mode, (Command, Sha256)>,
    /// Where the state is to be kept, whatever the code says.
    pub(crate) backend: Option<Generated>,
    /// What the tool's commands are given more.
    pub(crate) arguments: ExtraArguments,
    /// What its objects held.
    pub(crate) contents: Contents,
    /// Files that the backend logs in with, where no pod mounts them any more.
    pub(crate) login_files: Vec<(PathBuf, Vec<u8>)>,
    /// Words for the log on what was left out.
    remarks: Vec<String>,
}

impl Given {
    /// What the backend logs in with is a part of the environment, and only one of those who set a variable can be meant.
    fn log_in(&mut self, login: &Login, variables: Variables) -> Step<()> {
        for (name, value) in variables {
            if self.environment.iter().any(|(known, _)| known == name.as_str()) {
                return Err(Ending::bad_input(format!(
                    "{name} is set by the layer's environment and by {}, which the backend logs in with; remove one of them",
                    login.object()
                )));
            }
            self.environment.push((name.into(), value.into()));
        }
        Ok(())
    }

    /// The script in the place of what the tool would do in this mode, on these files.
    pub(crate) fn script(&self, mode: Mode, bundle: &Sha256) -> Option<Script> {
        let (command, inputs) = self.scripts.get(&mode)?;
        Some(Script { command: command.clone(), digest: script_digest(mode, bundle, inputs) })
    }
}

/// What was read, and what must not be shown of it. The latter is known also where the former cannot be used.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) given: Step<Given>,
    pub(crate) secrets: Vec<SecretString>,
}

impl Reading {
    /// `directories` are those of the objects that the inputs refer to, in their order.
    pub(crate) fn of(told: Option<&GivenInputs>, directories: &[PathBuf]) -> Self {
        let mut secrets = Vec::new();
        let given = match told {
            None => Ok(Given::default()),
            Some(told) => read(told, directories, &mut secrets),
        };
        Self { given, secrets }
    }
}

impl Reading {
    /// The same of an attempt that undoes an apply. `files` is where files can be put that no pod mounts any more.
    pub(crate) fn undoing(
        told: Option<&GivenInputs>,
        directories: &[PathBuf],
        kept: &Snapshot,
        files: &Path,
    ) -> Self {
        let mut secrets = Vec::new();
        let given = match told {
            None => Ok(Given::default()),
            Some(told) => read_kept(told, directories, kept, files, &mut secrets),
        };
        Self { given, secrets }
    }
}

fn read(told: &GivenInputs, directories: &[PathBuf], secrets: &mut Vec<SecretString>) -> Step<Given> {
    let objects = told.inputs.objects();
    let mut contents = Contents::new();
    let mut places = BTreeMap::new();
    for (object, directory) in objects.into_keys().zip(directories) {
        let data = read_directory(directory).map_err(disk)?;
        places.insert(object.clone(), directory);
        contents.insert(object, data);
    }
    hide(&told.inputs, &contents, secrets);
    let changed = |what: &str| {
        Ending::failed(
            Reason::InputsChanged,
            format!("{what}; nothing was started, the layer goes on with what there is now"),
        )
    };
    match told.inputs.digest(&told.key, &contents) {
        Ok(found) if found == told.digest => {}
        Ok(_) => {
            return Err(changed(
                "the layer's variables, environment, backend or arguments are not those that this run is about",
            ));
        }
        Err(missing) => return Err(changed(&missing.to_string())),
    }
    let mut given = assemble(&told.inputs, &told.digest, &contents, &contents)?;
    if let Some(login) = login_of(&told.inputs)
        && let Some(directory) = places.get(&login.object())
    {
        let (variables, remarks) = generated::login(login, &contents, directory)?;
        given.remarks.extend(remarks);
        given.log_in(login, variables)?;
    }
    given.contents = contents;
    Ok(given)
}

fn login_of(inputs: &Inputs) -> Option<&Login> {
    inputs.backend.as_ref()?.credentials.as_ref()
}

/// What an apply was given that is undone. **What says how the infrastructure is, is as it was; what opens doors is as it is now**, and as it
/// was where that is gone: credentials are replaced now and then, and old ones are worth nothing.
fn read_kept(
    told: &GivenInputs,
    directories: &[PathBuf],
    kept: &Snapshot,
    files: &Path,
    secrets: &mut Vec<SecretString>,
) -> Step<Given> {
    let inputs = &kept.inputs;
    let then = kept.contents();
    hide(inputs, &then, secrets);
    match inputs.digest(&told.key, &then) {
        Ok(found) if found == told.digest => {}
        Ok(_) | Err(_) => {
            return Err(Ending::bad_input(
                "what the last apply was given was not kept whole; ask by the annotation terrane.dev/sync to destroy with what the layer has now",
            ));
        }
    }
    let mut doors = then.clone();
    for (object, directory) in told.inputs.objects().into_keys().zip(directories) {
        // What is gone by now is what was kept for.
        let Ok(now) = read_directory(directory) else { continue };
        hide(inputs, &Contents::from([(object.clone(), now.clone())]), secrets);
        if let Some(known) = doors.get_mut(&object) {
            known.extend(now);
        }
    }
    let mut given = assemble(inputs, &told.digest, &then, &doors)?;
    if let Some(login) = login_of(inputs) {
        let (variables, _) = generated::login(login, &doors, files)?;
        given.log_in(login, variables)?;
        let held = doors.get(&login.object());
        for known in login.keys.iter().filter(|known| known.file) {
            if let Some(content) = held.and_then(|data| data.get(known.key.as_str())) {
                given.login_files.push((files.join(known.key.as_str()), content.clone()));
            }
        }
    }
    Ok(given)
}

/// What the tool is given, with variables, hooks and scripts from one place and the environment from another.
fn assemble(inputs: &Inputs, digest: &Sha256, values: &Contents, doors: &Contents) -> Step<Given> {
    let mut given = gather(inputs, values, doors)?;
    for moment in Moment::ALL {
        let hooks = inputs.hooks.at(moment).iter().filter_map(|hook| {
            let text = text(hook.inline.as_ref(), hook.config_map_ref.as_ref(), hook.path.as_ref(), values)?;
            Some(Command::of_hook(hook, text))
        });
        given.hooks.insert(moment, hooks.collect());
    }
    for mode in [Mode::Normal, Mode::Destroy] {
        let Some(script) = inputs.scripts.of(mode) else { continue };
        let found =
            text(script.inline.as_ref(), script.config_map_ref.as_ref(), script.path.as_ref(), values);
        if let Some(text) = found {
            let timeout = script.timeout.map(|span| span.get());
            let command = Command {
                text,
                arguments: script.args.clone(),
                timeout,
                arguments_from: Vec::new(),
                output_to: None,
                optional: false,
            };
            given.scripts.insert(mode, (command, digest.clone()));
        }
    }
    given.backend = inputs.backend.clone();
    given.arguments = inputs.arguments.clone();
    Ok(given)
}

fn text(
    inline: Option<&String>,
    config_map: Option<&KeyRef>,
    path: Option<&LayerPath>,
    contents: &Contents,
) -> Option<Text> {
    let here = |text: &[u8]| Text::Here(text.to_vec());
    let referred = || Some(here(contents.get(&config_map?.config_map())?.get(config_map?.key.as_str())?));
    inline.map(|text| here(text.as_bytes())).or_else(referred).or_else(|| path.cloned().map(Text::File))
}

/// The keys of a mounted object. What begins with two dots is the kubelet's own.
fn read_directory(directory: &Path) -> std::io::Result<Data> {
    let mut data = Data::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if name.starts_with("..") || !entry.path().is_file() {
            continue;
        }
        data.insert(name, std::fs::read(entry.path())?);
    }
    Ok(data)
}

fn found<'a>(source: &ValueSource, contents: &'a Contents) -> Option<(Object, &'a [u8])> {
    let (object, key) = source.place()?;
    let value = contents.get(&object)?.get(key.as_str())?;
    Some((object, value))
}

/// All that comes from Secrets, asked for or not, and what the layer calls sensitive. O(bytes of the inputs).
fn hide(inputs: &Inputs, contents: &Contents, secrets: &mut Vec<SecretString>) {
    let mut text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if let Ok(value @ (Value::Array(_) | Value::Object(_))) = serde_json::from_str(&text) {
            leaves(&value, secrets);
        }
        secrets.push(SecretString::from(text));
    };
    for (object, data) in contents {
        match object.kind {
            Kind::Secret => data.values().for_each(|value| text(value)),
            Kind::ConfigMap => {}
        }
    }
    for variable in inputs.variables.iter().filter(|variable| variable.sensitive) {
        if let Some((_, value)) = variable.value_from.as_ref().and_then(|source| found(source, contents)) {
            text(value);
        }
    }
    for variable in inputs.environment.iter().filter(|variable| variable.sensitive) {
        if let Some((_, value)) = variable.value_from.as_ref().and_then(|source| found(source, contents)) {
            text(value);
        }
        if let Some(value) = &variable.value {
            text(value.as_bytes());
        }
    }
    for variable in inputs.variables.iter().filter(|variable| variable.sensitive) {
        if let Some(value) = &variable.value {
            leaves(value, secrets);
        }
    }
}

/// The texts and numbers in a value. Its depth is bounded by its parser.
fn leaves(value: &Value, secrets: &mut Vec<SecretString>) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => secrets.push(SecretString::from(number.to_string())),
        Value::String(text) => secrets.push(SecretString::from(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| leaves(item, secrets)),
        Value::Object(fields) => fields.values().for_each(|field| leaves(field, secrets)),
    }
}

fn gather(inputs: &Inputs, contents: &Contents, doors: &Contents) -> Step<Given> {
    let mut given = Given { files: inputs.variable_files.clone(), ..Given::default() };
    for object in inputs.variables_from.iter().filter_map(|from| from.object()) {
        for (key, value) in contents.get(&object).into_iter().flatten() {
            match VariableName::new(key.as_str()) {
                Ok(name) => {
                    let value = Value::String(words(&object, key, value)?.to_owned());
                    given.variables.insert(name.to_string(), value);
                }
                Err(_) => {
                    given.remarks.push(format!("Key {key} of {object} cannot name a variable; left out."))
                }
            }
        }
    }
    for variable in &inputs.variables {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => value.clone(),
            (None, Some(source)) => {
                let Some((object, bytes)) = found(source, contents) else { continue };
                let text = words(&object, variable.name.as_str(), bytes)?;
                match variable.format.unwrap_or(Format::String) {
                    Format::String => Value::String(text.to_owned()),
                    // The parser's words could hold a piece of the value; the place is enough.
                    Format::Json => serde_json::from_str(text).map_err(|error| {
                        Ending::bad_input(format!(
                            "the value of variable {} from {object} is not JSON (line {}, column {}); correct it, or leave format out",
                            variable.name,
                            error.line(),
                            error.column()
                        ))
                    })?,
                }
            }
            (None, None) => Value::Null,
        };
        given.variables.insert(variable.name.to_string(), value);
    }
    let mut environment: BTreeMap<String, String> = BTreeMap::new();
    for object in inputs.environment_from.iter().filter_map(|from| from.object()) {
        for (key, value) in doors.get(&object).into_iter().flatten() {
            match EnvironmentName::new(key.as_str()) {
                Ok(name) => {
                    environment.insert(name.to_string(), environment_words(&object, key, value)?);
                }
                Err(_) => {
                    given.remarks.push(format!(
                        "Key {key} of {object} cannot name an environment variable; left out."
                    ));
                }
            }
        }
    }
    for variable in &inputs.environment {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => value.clone(),
            (None, Some(source)) => {
                let Some((object, bytes)) = found(source, doors) else { continue };
                environment_words(&object, variable.name.as_str(), bytes)?
            }
            (None, None) => String::new(),
        };
        environment.insert(variable.name.to_string(), value);
    }
    given.environment = environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    Ok(given)
}

fn words<'a>(object: &Object, what: &str, bytes: &'a [u8]) -> Step<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| {
        Ending::bad_input(format!("the value of {what} from {object} is not text in UTF-8; correct it"))
    })
}

/// No process can be given a variable with a NUL in it.
pub(crate) fn environment_words(object: &Object, what: &str, bytes: &[u8]) -> Step<String> {
    let text = words(object, what, bytes)?;
    if text.contains('\0') {
        return Err(Ending::bad_input(format!(
            "the value of {what} from {object} holds a NUL, which no environment can; correct it"
        )));
    }
    Ok(text.to_owned())
}

impl Work<'_> {
    /// Puts the variables where the tool finds them, in an order in which the later win: files of the repository, then values.
    pub(crate) async fn give_variables(&self, ready: &Ready) -> Step<()> {
        let given = &self.own;
        for remark in &given.remarks {
            self.log.line(remark);
        }
        for (index, file) in given.files.iter().enumerate() {
            let content = std::fs::read(self.places.source.join(file.trimmed())).map_err(|_| {
                Ending::bad_input(format!(
                    "the variable file {file} cannot be read at commit {}; correct variableFiles, or push the missing file",
                    self.description.revision.short()
                ))
            })?;
            write_private(&ready.work_dir.join(copy_name(index, file)), &content).map_err(disk)?;
        }
        if given.variables.is_empty() {
            return Ok(());
        }
        let content =
            serde_json::to_vec(&given.variables).map_err(|error| Ending::bad_input(error.to_string()))?;
        write_private(&ready.work_dir.join(VALUES_FILE), &content).map_err(disk)
    }
}

/// What the tool says about a file, it says about this name, so the file's own is in it.
fn copy_name(index: usize, file: &LayerPath) -> String {
    let name = file.trimmed().rsplit('/').next().unwrap_or_default();
    let (stem, kind) = match name.strip_suffix(".json") {
        Some(stem) => (stem.strip_suffix(".tfvars").unwrap_or(stem), ".auto.tfvars.json"),
        None => (name.strip_suffix(".tfvars").unwrap_or(name), ".auto.tfvars"),
    };
    format!("{FILE_PREFIX}{index:02}-{stem}{kind}")
}

pub(crate) fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use api::inputs::DigestKey;
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;

    /// The inputs of a layer and a directory for each of their objects.
    fn told(
        inputs: Value,
        objects: &[&[(&str, &str)]],
    ) -> (GivenInputs, Vec<tempfile::TempDir>, Vec<PathBuf>) {
        let inputs: Inputs = serde_json::from_value(inputs).unwrap();
        let directories: Vec<tempfile::TempDir> = objects
            .iter()
            .map(|pairs| {
                let directory = tempfile::tempdir().unwrap();
                // As a kubelet lays them out.
                std::fs::create_dir(directory.path().join("..data")).unwrap();
                for (key, value) in *pairs {
                    std::fs::write(directory.path().join("..data").join(key), value).unwrap();
                    std::os::unix::fs::symlink(Path::new("..data").join(key), directory.path().join(key))
                        .unwrap();
                }
                directory
            })
            .collect();
        let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().to_owned()).collect();
        let key = DigestKey::new([3; DigestKey::LENGTH]);
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
        };
        let contents =
            inputs.objects().into_keys().zip(objects).map(|(object, pairs)| (object, data(pairs))).collect();
        let digest = inputs.digest(&key, &contents).unwrap();
        (GivenInputs { inputs, key, digest }, directories, paths)
    }

    fn layer() -> (GivenInputs, Vec<tempfile::TempDir>, Vec<PathBuf>) {
        let inputs = json!({
            "variables": [
                { "name": "sizes", "value": [1, { "a": "${literal}" }] },
                { "name": "password", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } },
                { "name": "zones", "valueFrom": { "configMapKeyRef": { "name": "common", "key": "zones" } }, "format": "json" },
                { "name": "hidden", "value": { "deep": ["plain-but-sensitive"] }, "sensitive": true },
            ],
            "variablesFrom": [{ "configMapRef": { "name": "common" } }],
            "environment": [{ "name": "REGION", "value": "north" }],
            "environmentFrom": [{ "secretRef": { "name": "cloud" } }],
        });
        // In the order of the objects: Secrets cloud and db, then the ConfigMap.
        told(
            inputs,
            &[
                &[("TOKEN", "cloud-token"), ("not.a.name", "x"), ("REGION", "south")],
                &[("password", "s3cret-word\n")],
                &[("zones", "[\"a\", \"b\"]"), ("owner", "team")],
            ],
        )
    }

    #[test]
    fn values_come_from_where_they_are_and_later_ones_win() {
        let (told, _kept, paths) = layer();
        let reading = Reading::of(Some(&told), &paths);
        let given = reading.given.unwrap();
        assert_eq!(
            Value::Object(given.variables),
            json!({
                "zones": ["a", "b"], "owner": "team", "sizes": [1, { "a": "${literal}" }], "password": "s3cret-word\n",
                "hidden": { "deep": ["plain-but-sensitive"] },
            })
        );
        let environment: Vec<(&str, &str)> = given
            .environment
            .iter()
            .map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap()))
            .collect();
        assert_eq!(environment, [("REGION", "north"), ("TOKEN", "cloud-token")]);
        assert_eq!(
            given.remarks,
            ["Key not.a.name of Secret cloud cannot name an environment variable; left out."]
        );
        let hidden: Vec<&str> = reading.secrets.iter().map(ExposeSecret::expose_secret).collect();
        for secret in ["s3cret-word\n", "cloud-token", "plain-but-sensitive"] {
            assert!(hidden.contains(&secret), "{secret:?}");
        }
        assert!(!hidden.contains(&"team"), "a ConfigMap is no secret");
    }

    #[test]
    fn an_attempt_that_is_given_something_else_does_not_begin() {
        let (told, kept, paths) = layer();
        std::fs::write(kept[1].path().join("..data/password"), "other").unwrap();
        let reading = Reading::of(Some(&told), &paths);
        let ending = reading.given.unwrap_err();
        assert_eq!(ending.reason, Reason::InputsChanged);
        assert!(!ending.message.contains("other"), "{}", ending.message);
        std::fs::remove_file(kept[1].path().join("password")).unwrap();
        let ending = Reading::of(Some(&told), &paths).given.unwrap_err();
        assert_eq!(ending.reason, Reason::InputsChanged);
        assert!(ending.message.starts_with("Secret db has no key password"), "{}", ending.message);
        assert!(Reading::of(Some(&told), &paths[..1]).given.is_err(), "a pod without the mounts");
    }

    #[test]
    fn what_is_no_json_is_told_by_its_place_alone() {
        let inputs = json!({ "variables": [
            { "name": "list", "valueFrom": { "secretKeyRef": { "name": "db", "key": "list" } }, "format": "json" },
        ] });
        let (told, _kept, paths) = told(inputs, &[&[("list", "[1, s3cret]")]]);
        let ending = Reading::of(Some(&told), &paths).given.unwrap_err();
        assert_eq!(
            ending.message,
            "the value of variable list from Secret db is not JSON (line 1, column 5); correct it, or leave format out"
        );
    }

    #[test]
    fn copies_are_read_in_order_and_tell_their_file() {
        let name = |index, path: &str| copy_name(index, &path.parse().unwrap());
        assert_eq!(name(0, "vars/prod.tfvars"), "~terrane-00-prod.auto.tfvars");
        assert_eq!(name(12, "vars/prod.tfvars.json"), "~terrane-12-prod.auto.tfvars.json");
        assert_eq!(name(3, "values"), "~terrane-03-values.auto.tfvars");
        assert!(name(63, "z.tfvars").as_str() < VALUES_FILE);
    }
}
