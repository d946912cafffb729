//! What the spec of a Terraform comes to: the fields of its repository and its layer, or why they cannot be told.

use std::collections::BTreeMap;

use api::hooks::{ArgumentFrom, Hook, Hooks, Script, Scripts};
use api::image::{ImageBuild, ImageCredentials, ImageSource};
use api::inputs::KeyRef;
use api::layer::DeletionPolicy;
use api::outputs::OutputTarget;
use api::repository::Credentials;
use api::terraform::{ContainerRegistry, PostDeploy, ScriptText, TerraformSpec};
use api::text::{
    EnvironmentName, ImageRepository, ImageTag, LayerPath, ObjectName, OutputName, PathGlob, RefName,
};
use api::{Terraform, TerraformLayer};
use serde_json::{Map, Value, json};

use super::place::{Place, places};

/// Under which the layer keeps what `postDeploy` printed.
pub(super) const POST_DEPLOY: &str = "postDeploy";
const TF_VAR: &str = "TF_VAR_";

/// All fields of a layer's spec that are wholly its Terraform's.
pub(super) const LAYER_FIELDS: [&str; 12] = [
    "repository",
    "branch",
    "build",
    "image",
    "path",
    "triggerPaths",
    "environment",
    "backend",
    "scripts",
    "hooks",
    "writeOutputsTo",
    "deletionPolicy",
];

/// Why nothing can be made of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What a Terraform asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wish {
    /// Where the code may be; empty only where it is an image.
    pub(super) places: Vec<Place>,
    /// The image that the code is in, where it is in no repository.
    pub(super) image: Option<ImageSource>,
    /// The image that the repository's code is built into.
    pub(super) build: Option<ImageBuild>,
    pub(super) credentials: Option<Credentials>,
    scripts: Scripts,
    hooks: Hooks,
    environment: BTreeMap<EnvironmentName, String>,
}

pub(super) fn wish(spec: &TerraformSpec) -> Result<Wish, Problem> {
    let (places, image, build) = match (&spec.git_repo, &spec.container_registry) {
        (Some(git), registry) => (places(&git.url), None, registry.as_ref().map(of_build).transpose()?),
        (None, Some(registry)) => (Vec::new(), Some(of_image(registry)?), None),
        (None, None) => {
            let message = "nothing says where the code is; name a Git repository in spec.gitRepo.url, or an image in spec.containerRegistry";
            return Err(Problem { reason: "CodeMissing", message: message.to_owned() });
        }
    };
    let key = spec.git_repo.as_ref().and_then(|git| git.ssh_key_secret.as_ref());
    let credentials =
        key.map(|KeyRef { name, key }| Credentials { secret_name: name.clone(), ssh_key: Some(key.clone()) });
    let apply = match (&spec.scripts.apply, &spec.scripts.deploy) {
        (Some(_), Some(_)) => {
            return Err(script_problem("spec.scripts has apply and deploy, which mean the same; remove one"));
        }
        (Some(text), None) => Some(of_text("apply", text)?),
        (None, Some(words)) => Some(of_file("spec.scripts.deploy", words)?),
        (None, None) => None,
    };
    let destroy = spec.scripts.destroy.as_ref().map(of_destroy).transpose()?;
    let after_apply = spec.post_deploy.as_ref().map(hook).transpose()?;
    Ok(Wish {
        places,
        image,
        build,
        credentials,
        scripts: Scripts { apply, destroy },
        hooks: Hooks { after_apply: after_apply.into_iter().collect(), ..Hooks::default() },
        environment: environment(&spec.variables)?,
    })
}

/// The name of an image, and what is behind it that is none of it.
pub(super) fn image_name(registry: &ContainerRegistry) -> (&str, &str) {
    let said = registry.image_name.trim();
    let (name, remark) = said.split_once(char::is_whitespace).unwrap_or((said, ""));
    (name, remark.trim())
}

fn refused(message: String) -> Problem {
    Problem { reason: "ImageRefused", message }
}

fn refused_name(error: api::text::Error) -> Problem {
    refused(format!("spec.containerRegistry.imageName: {error}"))
}

/// A colon before a slash is that of a port.
fn name_and_tag(registry: &ContainerRegistry) -> (&str, Option<&str>) {
    let (whole, _) = image_name(registry);
    match whole.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        Some(_) | None => (whole, None),
    }
}

fn login(registry: &ContainerRegistry) -> Option<ImageCredentials> {
    let KeyRef { name, key } = registry.secret_ref.as_ref()?;
    Some(ImageCredentials { secret_name: name.clone(), key: Some(key.clone()) })
}

fn of_build(registry: &ContainerRegistry) -> Result<ImageBuild, Problem> {
    let (name, tag) = name_and_tag(registry);
    if let Some(tag) = tag {
        return Err(refused(format!(
            "spec.containerRegistry.imageName has the tag {tag}, but each commit is built under a tag of its own; remove it"
        )));
    }
    if registry.semantic_version.is_some() {
        let why = "spec.containerRegistry.semanticVersion chooses among images that are there, but beside spec.gitRepo each commit is built into one; remove one of the two";
        return Err(refused(why.to_owned()));
    }
    let build = ImageBuild {
        provider: registry.provider.clone(),
        name: ImageRepository::new(name).map_err(refused_name)?,
        credentials: login(registry),
        base: None,
        dockerfile: None,
    };
    build.place().map_err(|error| refused(error.to_string()))?;
    Ok(build)
}

fn of_image(registry: &ContainerRegistry) -> Result<ImageSource, Problem> {
    let (name, tag) = name_and_tag(registry);
    let tag = match (&registry.semantic_version, tag) {
        (Some(_), Some(tag)) => {
            return Err(refused(format!(
                "spec.containerRegistry.imageName has the tag {tag}, and semanticVersion chooses one; remove one of them"
            )));
        }
        (Some(_), None) => None,
        (None, tag) => Some(ImageTag::new(tag.unwrap_or("latest")).map_err(refused_name)?),
    };
    let source = ImageSource {
        provider: registry.provider.clone(),
        name: ImageRepository::new(name).map_err(refused_name)?,
        semantic_version: registry.semantic_version.clone(),
        tag,
        digest: None,
        credentials: login(registry),
        interval: None,
    };
    source.place().map_err(|error| refused(error.to_string()))?;
    Ok(source)
}

fn script_problem(message: impl Into<String>) -> Problem {
    Problem { reason: "ScriptRefused", message: message.into() }
}

fn of_text(which: &str, text: &ScriptText) -> Result<Script, Problem> {
    let script = Script {
        inline: text.inline.clone(),
        config_map_ref: text.config_map_ref.clone(),
        path: None,
        args: Vec::new(),
        timeout: None,
    };
    match (&text.inline, &text.config_map_ref) {
        (Some(_), None) | (None, Some(_)) => Ok(script),
        (Some(_), Some(_)) | (None, None) => Err(script_problem(format!(
            "spec.scripts.{which} must have exactly one of inline and configMapRef"
        ))),
    }
}

/// A file of the code, and what it is called with.
fn of_file(field: &str, words: &str) -> Result<Script, Problem> {
    let mut words = words.split_whitespace();
    let file = words.next().unwrap_or_default();
    let path = LayerPath::new(file.trim_start_matches("./").trim_start_matches('/'))
        .map_err(|error| script_problem(format!("{field} names no file of the code: {error}")))?;
    let args = words.map(str::to_owned).collect();
    Ok(Script { inline: None, config_map_ref: None, path: Some(path), args, timeout: None })
}

fn of_destroy(found: &Value) -> Result<Script, Problem> {
    const FIELD: &str = "spec.scripts.destroy";
    match found {
        Value::String(words) => of_file(FIELD, words),
        Value::Object(fields) => {
            if let Some(unknown) =
                fields.keys().find(|key| !["inline", "configMapRef"].contains(&key.as_str()))
            {
                return Err(script_problem(format!(
                    "{FIELD} has no field {unknown}; it has inline or configMapRef"
                )));
            }
            let text = serde_json::from_value::<ScriptText>(found.clone())
                .map_err(|error| script_problem(format!("{FIELD} cannot be understood: {error}")))?;
            if text.inline.as_ref().is_some_and(String::is_empty) {
                return Err(script_problem(format!(
                    "{FIELD}.inline is empty; remove it, or write what destroys"
                )));
            }
            of_text("destroy", &text)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(script_problem(format!(
            "{FIELD} must be an object with inline or configMapRef, or the name of a file of the code"
        ))),
    }
}

fn hook(asked: &PostDeploy) -> Result<Hook, Problem> {
    let refused = |message: String| Problem { reason: "PostDeployRefused", message };
    let Script { path, args, .. } =
        of_file("spec.postDeploy.script", &asked.script).map_err(|problem| refused(problem.message))?;
    let argument = |(name, variable): (&String, &String)| {
        let name = OutputName::new(name.as_str());
        let variable = EnvironmentName::new(variable.as_str());
        let told = |error: api::text::Error| refused(format!("spec.postDeploy.args: {error}"));
        Ok(ArgumentFrom { name: name.map_err(told)?, variable: variable.map_err(told)? })
    };
    Ok(Hook {
        inline: None,
        config_map_ref: None,
        path,
        args,
        args_from: asked.args.iter().map(argument).collect::<Result<_, Problem>>()?,
        timeout: None,
        output_to: OutputName::new(POST_DEPLOY).ok(),
        optional: true,
    })
}

/// Each under its own name, and as a variable of the code. What is named so in full counts before what follows from another name.
fn environment(variables: &BTreeMap<String, String>) -> Result<BTreeMap<EnvironmentName, String>, Problem> {
    let mut found = BTreeMap::new();
    let named = |name: String| {
        EnvironmentName::new(name).map_err(|error| Problem {
            reason: "VariableRefused",
            message: format!("spec.variables: {error}"),
        })
    };
    for (name, value) in variables {
        if !name.starts_with(TF_VAR) {
            found.insert(named(format!("{TF_VAR}{name}"))?, value.clone());
        }
    }
    for (name, value) in variables {
        found.insert(named(name.clone())?, value.clone());
    }
    Ok(found)
}

/// What a layer's outputs are written to, by its name; nothing where no object can have such a name.
pub(super) fn outputs_name(terraform: &Terraform) -> Option<ObjectName> {
    ObjectName::new(format!("{}-outputs", terraform.metadata.name.as_deref()?)).ok()
}

impl Wish {
    pub(super) fn deletion_policy(&self) -> DeletionPolicy {
        if self.scripts.destroy.is_some() { DeletionPolicy::Destroy } else { DeletionPolicy::Orphan }
    }

    /// All fields of the layer's spec that the Terraform sets and that are wholly its own; null is one that is not to be there.
    pub(super) fn layer_fields(
        &self,
        terraform: &Terraform,
        branch: Option<&RefName>,
        path: &LayerPath,
        build: Option<&ImageBuild>,
    ) -> Option<Value> {
        let name = ObjectName::new(terraform.metadata.name.as_deref()?).ok()?;
        let files = self.scripts.all().filter_map(|script| script.path.as_ref());
        let files = files.chain(self.hooks.all().filter_map(|hook| hook.path.as_ref()));
        // The whole repository counts for a layer at its root.
        let files = files.filter(|_| !path.trimmed().is_empty());
        let trigger_paths: Vec<PathGlob> =
            files.filter_map(|file| PathGlob::new(file.as_str()).ok()).collect();
        let environment: Vec<Value> =
            self.environment.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let write_outputs_to: Vec<OutputTarget> = outputs_name(terraform)
            .into_iter()
            .flat_map(|name| {
                let config_map =
                    OutputTarget { secret: None, config_map: Some(name.clone()), keys: Vec::new() };
                [config_map, OutputTarget { secret: Some(name), config_map: None, keys: Vec::new() }]
            })
            .collect();
        let repository = branch.map(|_| json!({ "name": name }));
        let fields = json!({
            "repository": repository, "branch": branch, "image": self.image, "build": build, "path": path,
            "triggerPaths": trigger_paths, "environment": environment, "backend": terraform.spec.backend,
            "scripts": self.scripts, "hooks": self.hooks, "writeOutputsTo": write_outputs_to,
            "deletionPolicy": self.deletion_policy(),
        });
        // As the API will give it back: what is empty is not there.
        let typed: api::TerraformLayerSpec = serde_json::from_value(fields).ok()?;
        let kept = serde_json::to_value(typed).ok()?;
        let whole: Map<String, Value> = LAYER_FIELDS
            .iter()
            .map(|name| ((*name).to_owned(), kept.get(name).cloned().unwrap_or_default()))
            .collect();
        Some(Value::Object(whole))
    }
}

/// Whether the layer applies its plans by itself, as every layer of a Terraform does.
pub(super) fn applies_by_itself(layer: &TerraformLayer) -> bool {
    layer.spec.remediation_strategy.as_ref().and_then(|strategy| strategy.auto_apply) == Some(true)
}
