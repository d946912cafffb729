//! Whether what is asked of a runner may be had: by the administrator's list, and by what no list can give. A runner has no rights in
//! Kubernetes, keeps what it is told and told by to itself, and is as confined as any other, whatever is asked for.

use k8s_openapi::api::core::v1::{Affinity, Container, PodSecurityContext, SecurityContext, Volume};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::allowed::{Allowed, Field};
use super::arguments::{self, Command};
use super::security::{self, Of};
use super::{RunnerOverride, name_of};
use crate::{PROCESS_NODE_TAINT, label};

/// Why an override is not had: whose it is, which field, what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

/// What runners call their own; a volume of that name would be in their way.
const OWN_VOLUMES: [&str; 5] = ["token", "work", "credentials", "terrane-program", "terrane-tmp"];
const OWN_VOLUMES_START: &str = "input-";
/// The runner itself, and what puts its program into an image.
const OWN_CONTAINERS: [&str; 2] = ["runner", "terrane"];

/// What nobody mounts over: what a runner is told and keeps, its program, and what that is loaded from.
const OWN_PATHS: [&str; 17] = [
    "/var/run/terrane",
    "/var/run/terrane-inputs",
    "/run/terrane",
    "/run/terrane-inputs",
    "/var/lib/terrane",
    "/etc/terrane",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
];
/// Nor over what the kernel and the loader say.
const SYSTEM_PATHS: [&str; 6] =
    ["/proc", "/sys", "/dev", "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf"];

/// Taints that keep pods off the machines of the cluster itself.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/";

/// What an init container can have. Its name counts too.
const CONTAINER_FIELDS: [&str; 11] = [
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "workingDir",
    "env",
    "envFrom",
    "resources",
    "volumeMounts",
    "securityContext",
];

/// How a mount of an init container is said.
const MOUNT_FIELDS: [&str; 5] = ["name", "mountPath", "subPath", "subPathExpr", "readOnly"];

impl Allowed {
    /// What a layer's runners have: its own words over its repository's, each allowed, and the two together whole. O(words).
    pub fn settle(
        &self,
        repository: Option<(&str, &RunnerOverride)>,
        layer: Option<&RunnerOverride>,
    ) -> Result<RunnerOverride, Refusal> {
        let mut settled = RunnerOverride::default();
        if let Some((name, asked)) = repository {
            let of = format!("spec.overrideRunnerSpec of repository {name}");
            self.check(asked).map_err(|why| Refusal(format!("{of}: {why}")))?;
            settled = asked.clone();
        }
        if let Some(asked) = layer {
            self.check(asked).map_err(|why| Refusal(format!("spec.overrideRunnerSpec: {why}")))?;
            settled = asked.over(&settled);
        }
        whole(&settled).map_err(|why| Refusal(format!("spec.overrideRunnerSpec: {why}")))?;
        Ok(settled)
    }

    fn check(&self, asked: &RunnerOverride) -> Result<(), String> {
        for field in Field::ALL {
            let subjects = subjects(field, asked)?;
            if subjects.is_empty() {
                continue;
            }
            if self.on_processes && field.is_lost_on_processes() {
                return Err(format!("{field} has no effect where runners are processes; remove it"));
            }
            let Some(values) = self.fields.get(&field) else {
                return Err(format!(
                    "{field} is not among the fields that the administrator allows; remove it, or have --allow-runner-override name it"
                ));
            };
            for subject in subjects {
                let fits = if must_be_named(field, &subject) {
                    values.name(&subject)
                } else {
                    values.cover(&subject)
                };
                if !fits {
                    let what = field.subject();
                    return Err(format!(
                        "{field}: the administrator does not allow the {what} {} (allowed: {values}); choose another, or have --allow-runner-override name it",
                        short(&subject)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// What no list of fields without its name covers.
fn must_be_named(field: Field, subject: &str) -> bool {
    match field {
        Field::Tolerations => subject.starts_with(CONTROL_PLANE),
        Field::Volumes => subject == "hostPath",
        Field::Image
        | Field::ImagePullPolicy
        | Field::ImagePullSecrets
        | Field::ServiceAccountName
        | Field::NodeSelector
        | Field::Affinity
        | Field::Resources
        | Field::Env
        | Field::EnvFrom
        | Field::VolumeMounts
        | Field::Metadata
        | Field::InitContainers
        | Field::ExtraInitArgs
        | Field::ExtraPlanArgs
        | Field::ExtraApplyArgs
        | Field::SecurityContext
        | Field::PodSecurityContext => false,
    }
}

/// What of a field the administrator's patterns are about; none where the field says nothing. What nobody can allow is refused here.
fn subjects(field: Field, asked: &RunnerOverride) -> Result<Vec<String>, String> {
    let named = |why: String| format!("{field}: {why}");
    Ok(match field {
        Field::Image => asked.image.iter().map(ToString::to_string).collect(),
        Field::ImagePullPolicy => {
            asked.image_pull_policy.iter().map(|policy| policy.as_str().to_owned()).collect()
        }
        Field::ImagePullSecrets => {
            asked.image_pull_secrets.iter().map(|secret| secret.name.to_string()).collect()
        }
        Field::ServiceAccountName => asked.service_account_name.iter().map(ToString::to_string).collect(),
        Field::Tolerations => {
            if asked.tolerations.iter().any(|toleration| toleration.key == PROCESS_NODE_TAINT) {
                return Err(named(format!("{PROCESS_NODE_TAINT} is for Terrane to tolerate; remove it")));
            }
            asked.tolerations.iter().map(|toleration| toleration.key.clone()).collect()
        }
        Field::NodeSelector => asked.node_selector.keys().cloned().collect(),
        Field::Affinity => match &asked.affinity {
            Some(affinity) => affinities(affinity).map_err(named)?,
            None => Vec::new(),
        },
        Field::Resources => {
            let resources = asked.resources.iter();
            resources.flat_map(|asked| asked.requests.keys().chain(asked.limits.keys())).cloned().collect()
        }
        Field::Env => asked.env.iter().map(|variable| variable.name.to_string()).collect(),
        Field::EnvFrom => {
            let objects = asked.env_from.iter().filter_map(|from| from.object());
            objects.map(|object| object.name.to_string()).collect()
        }
        Field::Volumes => asked.volumes.iter().map(volume).collect::<Result<Vec<_>, _>>().map_err(named)?,
        Field::VolumeMounts => {
            let paths = asked.volume_mounts.iter().map(|mount| mount.mount_path.as_str());
            for path in paths.clone() {
                if let Some(own) = in_the_way(path) {
                    return Err(named(format!(
                        "{path} would hide {own}, which is the runner's; mount it elsewhere"
                    )));
                }
            }
            paths.map(str::to_owned).collect()
        }
        Field::Metadata => {
            let keys = asked.metadata.labels.keys().chain(asked.metadata.annotations.keys());
            for key in keys.clone() {
                if is_own_key(key) {
                    return Err(named(format!("{} is for Terrane to set; remove it", short(key))));
                }
            }
            keys.cloned().collect()
        }
        Field::InitContainers => {
            asked.init_containers.iter().map(container).collect::<Result<Vec<_>, _>>().map_err(named)?
        }
        Field::ExtraInitArgs => flags(Command::Init, &asked.extra_init_args).map_err(named)?,
        Field::ExtraPlanArgs => flags(Command::Plan, &asked.extra_plan_args).map_err(named)?,
        Field::ExtraApplyArgs => flags(Command::Apply, &asked.extra_apply_args).map_err(named)?,
        Field::SecurityContext => {
            settings::<SecurityContext>(Of::Container, &asked.security_context).map_err(named)?
        }
        Field::PodSecurityContext => {
            settings::<PodSecurityContext>(Of::Pod, &asked.pod_security_context).map_err(named)?
        }
    })
}

fn flags(command: Command, asked: &[crate::text::ToolArgument]) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for argument in asked {
        arguments::check(command, argument)?;
        found.push(format!("-{}", argument.parts().0));
    }
    Ok(found)
}

fn settings<T: DeserializeOwned + Serialize>(
    of: Of,
    asked: &Map<String, Value>,
) -> Result<Vec<String>, String> {
    security::check(of, asked)?;
    typed::<T>(&Value::Object(asked.clone()))?;
    Ok(asked.keys().cloned().collect())
}

/// The kinds of affinity. Those that look at pods look at none of other namespaces: whoever could keep those away would hold up the work
/// of others.
fn affinities(asked: &Value) -> Result<Vec<String>, String> {
    typed::<Affinity>(asked)?;
    let kinds = asked.as_object().map(|kinds| kinds.keys().cloned().collect()).unwrap_or_default();
    if mentions(asked, &["namespaces", "namespaceSelector"]) {
        return Err(
            "pods of other namespaces do not count; leave namespaces and namespaceSelector out".to_owned()
        );
    }
    Ok(kinds)
}

/// Whether one of these fields stands anywhere in the value, whose depth is bounded by its parser.
fn mentions(value: &Value, names: &[&str]) -> bool {
    match value {
        Value::Object(fields) => {
            fields.iter().any(|(name, below)| names.contains(&name.as_str()) || mentions(below, names))
        }
        Value::Array(items) => items.iter().any(|item| mentions(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The kind of a volume.
fn volume(asked: &Value) -> Result<String, String> {
    let name = name_of(asked);
    if OWN_VOLUMES.contains(&name) || name.starts_with(OWN_VOLUMES_START) {
        return Err(format!("{} is a name of the runner's own; choose another", short(name)));
    }
    typed::<Volume>(asked).map_err(|why| format!("{}: {why}", short(name)))?;
    let kinds: Vec<&String> =
        asked.as_object().into_iter().flat_map(Map::keys).filter(|key| *key != "name").collect();
    let [kind] = kinds.as_slice() else {
        return Err(format!("{} must be of one kind, such as emptyDir: {{}}", short(name)));
    };
    if mentions(asked, &["serviceAccountToken", "podCertificate"]) {
        return Err(format!(
            "{}: no token or certificate of a ServiceAccount is given to a run; remove it",
            short(name)
        ));
    }
    Ok((*kind).clone())
}

/// The image of an init container.
fn container(asked: &Value) -> Result<String, String> {
    let name = name_of(asked);
    let mut fields = asked.as_object().into_iter().flat_map(Map::keys);
    if OWN_CONTAINERS.contains(&name) {
        return Err(format!("{name} is the runner's own; choose another name"));
    }
    if let Some(field) = fields.find(|field| !CONTAINER_FIELDS.contains(&field.as_str())) {
        return Err(format!("{}: {} cannot be set; remove it", short(name), short(field)));
    }
    typed::<Container>(asked).map_err(|why| format!("{}: {why}", short(name)))?;
    if let Some(Value::Object(context)) = asked.get("securityContext") {
        security::check(Of::Container, context).map_err(|why| format!("{}: {why}", short(name)))?;
    }
    for mount in mounts(asked) {
        let mut fields = mount.as_object().into_iter().flat_map(Map::keys);
        if let Some(field) = fields.find(|field| !MOUNT_FIELDS.contains(&field.as_str())) {
            return Err(format!("{}: {} of a mount cannot be set; remove it", short(name), short(field)));
        }
    }
    match asked.get("image").and_then(Value::as_str) {
        Some(image) => Ok(image.to_owned()),
        None => Err(format!("{} needs an image", short(name))),
    }
}

fn mounts(container: &Value) -> &[Value] {
    container.get("volumeMounts").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Mounts are of volumes that are asked for, whoever of the two asks: those of the runner are its own.
fn whole(settled: &RunnerOverride) -> Result<(), String> {
    let is_there = |name: &str| settled.volumes.iter().any(|volume| name_of(volume) == name);
    let unknown = |field: Field, name: &str| {
        format!("{field}: there is no volume {} among volumes; add it, or remove the mount", short(name))
    };
    if let Some(mount) = settled.volume_mounts.iter().find(|mount| !is_there(&mount.name)) {
        return Err(unknown(Field::VolumeMounts, &mount.name));
    }
    let mut of_containers = settled.init_containers.iter().flat_map(mounts).map(name_of);
    match of_containers.find(|name| !is_there(name)) {
        Some(name) => Err(unknown(Field::InitContainers, name)),
        None => Ok(()),
    }
}

/// What of the runner's a mount at this path would hide.
fn in_the_way(path: &str) -> Option<&'static str> {
    let is_at_or_below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut own = OWN_PATHS.into_iter().chain(SYSTEM_PATHS);
    own.find(|own| is_at_or_below(path, own) || is_at_or_below(own, path))
}

/// A label or an annotation that decides something of Terrane's.
fn is_own_key(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == crate::GROUP
        || domain.strip_suffix(crate::GROUP).is_some_and(|rest| rest.ends_with('.'))
        || [label::MANAGED_BY, label::COMPONENT].contains(&key)
}

/// Reads a value as what a pod would have in its place, and finds what such a thing does not have: an API would drop it without a word.
fn typed<T: DeserializeOwned + Serialize>(asked: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(asked.clone()).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    match surplus(asked, &known) {
        Some(field) => Err(format!("there is no field {}; correct or remove it", short(&field))),
        None => Ok(()),
    }
}

/// The first field that is asked for and not known, by its path.
fn surplus(asked: &Value, known: &Value) -> Option<String> {
    match (asked, known) {
        (Value::Object(asked), Value::Object(known)) => {
            asked.iter().find_map(|(name, below)| match (below, known.get(name)) {
                (Value::Null, _) => None,
                (_, None) => Some(name.clone()),
                (_, Some(found)) => surplus(below, found).map(|rest| format!("{name}.{rest}")),
            })
        }
        (Value::Array(asked), Value::Array(known)) => {
            asked.iter().zip(known).find_map(|(asked, known)| surplus(asked, known))
        }
        _ => None,
    }
}

/// What a person wrote, as far as it fits into a sentence.
fn short(text: &str) -> String {
    const MOST: usize = 80;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{start}…")
}
