//! A runner inside the image that is the code: the pod's container is of that image, and an init container of the runners' own image puts the
//! runner's program there, with the loader and the libraries that it was made for. Whatever libraries the image has are its programs' alone.

use std::collections::BTreeMap;

use api::image::{PinnedImage, REGISTRY_SECRET};
use api::inputs::Keys;
use api::overrides::RunnerOverride;
use api::{TerraformLayer, TerraformRun, label};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::asked::confinement;
use super::{RUNNER_PROGRAM, append, label_value, owner};
use crate::names;

/// The type of Secrets that a kubelet pulls with, and the key that it reads of them.
pub const DOCKER_CONFIG_TYPE: &str = "kubernetes.io/dockerconfigjson";
pub const DOCKER_CONFIG_KEY: &str = ".dockerconfigjson";

/// Where the program is, in a container of any image.
const PROGRAM_DIRECTORY: &str = "/var/lib/terrane/program";
const PROGRAM: [&str; 5] = [
    "/var/lib/terrane/program/lib/ld.so",
    "--library-path",
    "/var/lib/terrane/program/lib",
    "/var/lib/terrane/program/terrane",
    "runner",
];
/// The init container that puts it there.
const CARRIER: &str = "terrane";
/// Images may be made for root, which no runner is: the number that images without a shell have agreed on.
const USER: u32 = 65_532;
const TMP: &str = "/tmp";

/// How runs are containers of the images that they work on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagePods {
    /// What names of images begin with, and what they begin with for nodes, as the administrator has them read elsewhere.
    pub rewrites: Vec<(String, String)>,
    /// Secrets of each layer's namespace that nodes may pull with, beside the one that the controller logs in with.
    pub pull_secrets: Vec<String>,
}

/// What takes the place of the runners' image in one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    pub image: String,
    pub pull_secrets: Vec<String>,
}

impl ImagePods {
    /// What the pod of an attempt is a container of, as the controller logs in. A kubelet reads one key of Secrets of one type and passes over all
    /// others, those that are not there among them; what it cannot read itself there is a copy of, as far as there is one (`pull_copy`).
    pub fn inside(
        &self,
        run: &TerraformRun,
        attempt: u32,
        image: &PinnedImage,
        layer: Option<&TerraformLayer>,
    ) -> Inside {
        let (own, keys) = login(layer);
        let copy = run.metadata.name.as_deref().map(|run| names::pull_secret(&names::pod(run, attempt)));
        let is_read = matches!(keys, Keys::All);
        let others = self.pull_secrets.iter().filter(|name| !is_read || **name != own).cloned();
        let pull_secrets = is_read.then_some(own.clone()).into_iter().chain(copy).chain(others).collect();
        Inside { image: self.name(image), pull_secrets }
    }

    /// As a node pulls it: by its digest, from where the administrator has it read.
    fn name(&self, image: &PinnedImage) -> String {
        let place = image.place();
        let rewrites = self.rewrites.iter().map(|(from, to)| (from.as_str(), to));
        let name = match place.covered_by(rewrites) {
            Some((to, rest)) if rest.is_empty() => to.clone(),
            Some((to, rest)) => format!("{to}/{rest}"),
            None => place.to_string(),
        };
        format!("{name}@{}", image.digest)
    }
}

/// The Secret by which a layer's image is read, and the keys of it. One that no layer names has the name that all of a namespace share.
pub(crate) fn login(layer: Option<&TerraformLayer>) -> (String, Keys) {
    let named = layer.and_then(|layer| {
        let read = layer.spec.image.as_ref().and_then(|source| source.credentials.as_ref());
        read.or_else(|| layer.spec.build.as_ref().and_then(|build| build.credentials.as_ref()))
    });
    let name = named.map_or_else(|| REGISTRY_SECRET.to_owned(), |login| login.secret_name.to_string());
    match named.and_then(|login| login.key.clone()) {
        Some(key) if key.as_str() != DOCKER_CONFIG_KEY => (name, Keys::Only([key].into())),
        Some(_) | None => (name, Keys::All),
    }
}

/// The Secret that a node pulls the image of this attempt's pod with, without what it is to hold. It goes with the run, if not with the pod.
pub fn pull_copy(run: &TerraformRun, attempt: u32) -> Option<Secret> {
    let name = names::pull_secret(&names::pod(run.metadata.name.as_deref()?, attempt));
    let labels = BTreeMap::from([
        (label::MANAGED_BY.to_owned(), "terrane".to_owned()),
        (label::LAYER.to_owned(), label_value(run.spec.layer.name.as_str())),
    ]);
    Some(Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(run.metadata.namespace.clone()?),
            labels: Some(labels),
            owner_references: Some(vec![owner(run)?]),
            ..ObjectMeta::default()
        },
        type_: Some(DOCKER_CONFIG_TYPE.to_owned()),
        immutable: Some(true),
        ..Secret::default()
    })
}

/// Makes the runner's container one of that image.
pub(super) fn enter(pod: &mut Value, inside: &Inside, runner_image: &str, asked: &RunnerOverride) {
    let program = |read_only: bool| json!({ "name": "terrane-program", "mountPath": PROGRAM_DIRECTORY, "readOnly": read_only });
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        spec.insert(
            "initContainers".to_owned(),
            json!([{
                "name": CARRIER,
                "image": runner_image,
                "command": [RUNNER_PROGRAM, "carry", PROGRAM_DIRECTORY],
                "securityContext": confinement(),
                "volumeMounts": [program(false)],
            }]),
        );
        // A pod that names some is not given those of its account.
        let secrets: Vec<Value> = inside.pull_secrets.iter().map(|name| json!({ "name": name })).collect();
        spec.insert("imagePullSecrets".to_owned(), Value::Array(secrets));
    }
    if let Some(Value::Object(context)) = pod.pointer_mut("/spec/securityContext") {
        context.insert("runAsUser".to_owned(), json!(USER));
        context.insert("runAsGroup".to_owned(), json!(USER));
    }
    // The root is not to be written, and the runner needs nothing of `/tmp`; programs of the image may.
    let has_tmp = asked.volume_mounts.iter().any(|mount| mount.mount_path.as_str() == TMP);
    let tmp = |value: Value| (!has_tmp).then_some(value);
    let volumes = [json!({ "name": "terrane-program", "emptyDir": {} })];
    let volumes = volumes.into_iter().chain(tmp(json!({ "name": "terrane-tmp", "emptyDir": {} })));
    append(pod.pointer_mut("/spec/volumes"), volumes);
    let runner = pod.pointer_mut("/spec/containers/0");
    if let Some(Value::Object(runner)) = runner {
        runner.insert("image".to_owned(), json!(inside.image));
        runner.insert("command".to_owned(), json!(PROGRAM));
        let mounts = [program(true)].into_iter();
        let mounts = mounts.chain(tmp(json!({ "name": "terrane-tmp", "mountPath": TMP })));
        append(runner.get_mut("volumeMounts"), mounts);
        let env = [
            json!({ "name": "TERRANE_CARRIED", "value": PROGRAM_DIRECTORY }),
            // What the image names is root's.
            json!({ "name": "HOME", "value": TMP }),
            // Made for the image's libraries, which are not the runner's.
            json!({ "name": "LD_PRELOAD", "value": "" }),
        ];
        append(runner.get_mut("env"), env);
    }
}

/// Whether a pod is a container of the image that is the code.
pub(crate) fn is_inside(pod: &Pod) -> bool {
    let before = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
    before.is_some_and(|before| before.iter().any(|container| container.name == CARRIER))
}
