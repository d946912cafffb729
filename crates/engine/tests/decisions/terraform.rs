//! What a Terraform makes and says: the manifests as they were written, what follows a deploy, its end, and what it may meet.

use std::collections::BTreeMap;
use std::time::Duration;

use api::condition::{self, Truth};
use api::layer::{DeletionPolicy, TerraformLayerStatus};
use api::repository::TerraformRepositoryStatus;
use api::terraform::WorkloadState;
use api::{Terraform, TerraformLayer, TerraformRepository, WORKLOAD_FINALIZER};
use engine::door::surroundings::Surroundings;
use engine::door::terraform::{Effect, Given, Observed, Refused, Report, decide, report};
use engine::{Builds, Settings, Wake, later};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const INLINE: &str = include_str!("../../../../examples/seeds/000/inline.yaml");
const CONFIG_MAP: &str = include_str!("../../../../examples/seeds/000/config-map.yaml");

pub(crate) struct Scene {
    pub(crate) now: Timestamp,
    pub(crate) terraform: Terraform,
    pub(crate) repository: Option<TerraformRepository>,
    pub(crate) layer: Option<TerraformLayer>,
    pub(crate) outputs: Given,
    pub(crate) surroundings: Surroundings,
    pub(crate) settings: Settings,
    pub(crate) gone: bool,
}

pub(crate) fn scene(spec: Value) -> Scene {
    let terraform = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "spec": spec,
        "metadata": { "name": "db", "namespace": "default", "uid": "uid-terraform", "generation": 1 },
    });
    Scene {
        now: Timestamp::from_second(1_800_000_000).unwrap(),
        terraform: serde_json::from_value(terraform).unwrap(),
        repository: None,
        layer: None,
        outputs: Given::default(),
        surroundings: Surroundings::default(),
        settings: crate::world::settings(),
        gone: false,
    }
}

fn written(manifest: &str) -> Scene {
    let text = manifest.rsplit("\n---\n").next().unwrap();
    let manifest: Value = serde_saphyr::from_str(text).unwrap();
    scene(manifest["spec"].clone())
}

pub(crate) fn git() -> Value {
    json!({ "url": "https://github.com/team/infra/envs", "branch": "main" })
}

impl Scene {
    pub(crate) fn observed(&self) -> Observed<'_> {
        Observed {
            now: self.now,
            terraform: &self.terraform,
            repository: self.repository.as_ref(),
            layer: self.layer.as_ref(),
            outputs: &self.outputs,
            surroundings: &self.surroundings,
            settings: &self.settings,
        }
    }

    /// Does what the decision says, as the API would, and writes what the report says.
    fn step(&mut self) -> (Vec<Effect>, Report) {
        let effects = decide(&self.observed());
        let said = report(&self.observed(), &[]);
        for effect in &effects {
            match effect {
                Effect::AddFinalizer => {
                    self.terraform.metadata.finalizers = Some(vec![WORKLOAD_FINALIZER.to_owned()]);
                    return (effects, said);
                }
                Effect::CreateRepository(made) => {
                    let mut made = made.as_ref().clone();
                    made.metadata.generation = Some(1);
                    self.repository = Some(made);
                }
                Effect::CreateLayer(made) => {
                    let mut made = made.as_ref().clone();
                    made.metadata.generation = Some(1);
                    made.metadata.uid = Some("uid-layer".to_owned());
                    self.layer = Some(made);
                }
                Effect::PatchRepository(patch) => {
                    let found = serde_json::to_value(self.repository.take().unwrap()).unwrap();
                    self.repository = Some(serde_json::from_value(patched(found, patch)).unwrap());
                }
                Effect::PatchLayer(patch) => {
                    let found = serde_json::to_value(self.layer.take().unwrap()).unwrap();
                    self.layer = Some(serde_json::from_value(patched(found, patch)).unwrap());
                }
                Effect::DeleteLayer(uid) => {
                    assert_eq!(uid, "uid-layer");
                    self.layer.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(self.now));
                }
            }
        }
        self.terraform.status = Some(said.status.clone());
        self.gone = said.let_go;
        (effects, said)
    }

    /// Takes turns until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..5 {
            if self.step().0.is_empty() {
                return;
            }
        }
        panic!("it does not settle: {:#?}", decide(&self.observed()));
    }

    /// The repository is looked at.
    pub(crate) fn look(&mut self, found: Result<(), &str>) {
        let repository = self.repository.as_mut().unwrap();
        let observed_generation = repository.metadata.generation;
        let mut status = TerraformRepositoryStatus { observed_generation, ..Default::default() };
        let (truth, reason, words) = match found {
            Ok(()) => (Truth::True, "Synced", "seen"),
            Err(why) => (Truth::False, "Unreadable", why),
        };
        condition::set(&mut status.conditions, "Ready", truth, reason, words, None, self.now);
        repository.status = Some(status);
    }

    /// The layer says so.
    fn say(&mut self, truth: Truth, kind: Option<&str>, reason: &str, words: &str) {
        let layer = self.layer.as_mut().unwrap();
        let mut status = layer.status.take().unwrap_or_default();
        status.observed_generation = layer.metadata.generation;
        status.conditions.clear();
        condition::set(&mut status.conditions, "Ready", truth, reason, words, None, self.now);
        if let Some(kind) = kind {
            condition::set(&mut status.conditions, kind, Truth::True, reason, words, None, self.now);
        }
        layer.status = Some(status);
        self.settle();
    }

    pub(crate) fn deployed(spec: Value) -> Self {
        let mut scene = scene(spec);
        scene.settle();
        scene.look(Ok(()));
        scene.settle();
        scene.say(Truth::True, None, "InSync", "up to date");
        scene
    }

    fn printed(&mut self, value: Value) {
        let status: &mut TerraformLayerStatus = self.layer.as_mut().unwrap().status.as_mut().unwrap();
        status.hook_outputs = BTreeMap::from([("postDeploy".to_owned(), value)]);
        self.settle();
    }

    fn told(&self) -> (WorkloadState, &str) {
        let status = self.terraform.status.as_ref().unwrap();
        (status.state.unwrap(), status.message.as_deref().unwrap())
    }

    fn condition(&self, kind: &str) -> Option<(&str, &str, &str)> {
        let found = condition::find(&self.terraform.status.as_ref()?.conditions, kind)?;
        Some((&found.status, &found.reason, &found.message))
    }

    fn url(&self) -> &str {
        self.repository.as_ref().unwrap().spec.repository.url.as_str()
    }
}

fn patched(mut found: Value, patch: &Value) -> Value {
    merge(&mut found["spec"], &patch["spec"]);
    found["metadata"]["generation"] = json!(found["metadata"]["generation"].as_i64().unwrap() + 1);
    found
}

fn merge(into: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
            Value::Object(_) if into.get(key).is_some_and(Value::is_object) => merge(&mut into[key], value),
            other => into[key] = other.clone(),
        }
    }
}

#[test]
fn the_manifests_as_they_were_written_become_a_repository_and_a_layer() {
    let mut scene = written(INLINE);
    assert_eq!(scene.step().0, [Effect::AddFinalizer], "before anything is made");
    scene.settle();
    let location = serde_json::to_value(&scene.repository.as_ref().unwrap().spec.repository).unwrap();
    assert_eq!(
        location,
        json!({ "url": "git@github.com:example/terraform-repo",
                "credentials": { "secretName": "my-ssh-secret", "sshKey": "ssh-privatekey" } })
    );
    let layer = scene.layer.clone().unwrap();
    assert_eq!(layer.metadata.owner_references.unwrap()[0].uid, "uid-terraform");
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    assert_eq!(
        serde_json::to_value(&layer.spec).unwrap(),
        json!({
            "repository": { "name": "db" }, "branch": "main", "path": "terraform",
            "environment": [
                variable("TF_VAR_var1", "value1"), variable("TF_VAR_var2", "value2"),
                variable("var1", "value1"), variable("var2", "value2"),
            ],
            "backend": { "provider": "aws", "s3": "s3-store", "dynamoDB": "db-table", "region": "us-east-1" },
            "scripts": {
                "apply": { "inline": "terraform apply -auto-approve\n" },
                "destroy": { "inline": "terraform destroy -auto-approve\n" },
            },
            "remediationStrategy": { "autoApply": true },
            "writeOutputsTo": [{ "configMap": "db-outputs" }, { "secret": "db-outputs" }],
            "deletionPolicy": "Destroy",
        })
    );
    let (truth, reason, message) = scene.condition("ImageBuilt").unwrap();
    assert_eq!((truth, reason), ("False", "NotBuilt"));
    assert_eq!(
        message,
        "images are not built here: runs take the code from Git itself, and docker.io/alustan/terrform is not made; \
         an administrator can let them be built, by --build-images; \"(image name to be built and push by the controller)\" is no part of the image's name and is left out"
    );

    // The other one in its place: nothing of the first is left where the two differ.
    scene.terraform.spec = written(CONFIG_MAP).terraform.spec;
    scene.settle();
    assert_eq!(scene.url(), "https://github.com/example/terraform-repo");
    assert!(scene.repository.unwrap().spec.repository.credentials.is_none());
    let scripts = serde_json::to_value(&scene.layer.unwrap().spec.scripts).unwrap();
    let key = |key: &str| json!({ "configMapRef": { "name": "terraform-scripts", "key": key } });
    assert_eq!(scripts, json!({ "apply": key("apply-script.sh"), "destroy": key("destroy-script.sh") }));
}

#[test]
fn the_state_follows_the_layer() {
    let mut scene = scene(json!({ "gitRepo": git() }));
    scene.step();
    scene.step();
    assert_eq!(scene.told(), (WorkloadState::Pending, "looking at https://github.com/team/infra"));
    scene.settle();
    let cases = [
        (Truth::False, Some("Reconciling"), "planning the first time", WorkloadState::Progressing),
        (Truth::False, None, "the apply failed; the next try is in 30s", WorkloadState::Progressing),
        (Truth::False, Some("Stalled"), "given up after 5 failures", WorkloadState::Error),
        (Truth::True, None, "up to date", WorkloadState::Completed),
    ];
    for (truth, kind, words, state) in cases {
        scene.say(truth, kind, "Reason", words);
        assert_eq!(scene.told(), (state, words));
    }
    assert_eq!(serde_json::to_value(WorkloadState::Error).unwrap(), "error");
    scene.say(Truth::False, Some("Stalled"), "OutputsNotWritten", "Secret db-outputs is somebody else's");
    assert_eq!(scene.told().0, WorkloadState::Success, "it is deployed all the same");
    let more = scene.layer.as_mut().unwrap();
    more.spec.suspend = true;
    more.spec.remediation_strategy =
        serde_json::from_value(json!({ "autoApply": true, "onError": { "maxRetries": 9 } })).ok();
    assert!(decide(&scene.observed()).is_empty(), "what it does not set is left as it is");
    scene.layer.as_mut().unwrap().spec.scripts =
        serde_json::from_value(json!({ "apply": { "inline": "x" } })).unwrap();
    scene.settle();
    let layer = scene.layer.unwrap();
    assert!(layer.spec.scripts.is_empty() && layer.spec.suspend);
    let strategy = layer.spec.remediation_strategy.unwrap();
    assert_eq!((strategy.auto_apply, strategy.on_error.unwrap().max_retries), (Some(true), Some(9)));
}

#[test]
fn what_follows_a_deploy_is_kept_or_refused_and_the_deploy_stays() {
    let post_deploy = json!({ "script": "./aws-resource --all", "args": { "region": "TF_VAR_region" } });
    let mut scene = Scene::deployed(json!({ "gitRepo": git(), "postDeploy": post_deploy }));
    let spec = serde_json::to_value(&scene.layer.as_ref().unwrap().spec).unwrap();
    let hook = json!({
        "path": "aws-resource", "args": ["--all"], "argsFrom": [{ "name": "region", "variable": "TF_VAR_region" }],
        "outputTo": "postDeploy", "optional": true,
    });
    assert_eq!(spec["hooks"], json!({ "afterApply": [hook] }));
    assert_eq!(spec["triggerPaths"], json!(["aws-resource"]), "a file beside the directory counts too");
    assert_eq!(scene.told().0, WorkloadState::Success);
    assert_eq!(scene.condition("PostDeployed").unwrap().0, "Unknown");

    let good = json!({ "outputs": { "EC2": [{ "State": "running" }] } });
    scene.printed(good.clone());
    assert_eq!(scene.told(), (WorkloadState::Completed, "up to date"));
    assert_eq!(scene.terraform.status.as_ref().unwrap().post_deploy_output, Some(good));

    for (printed, reason) in
        [(json!({ "EC2": [] }), "OutputRefused"), (json!({ "failed": "exit code 3" }), "Failed")]
    {
        scene.printed(printed);
        let (truth, said, message) = scene.condition("PostDeployed").unwrap();
        assert_eq!((truth, said), ("False", reason));
        assert_eq!(scene.told(), (WorkloadState::Success, format!("up to date; {message}").as_str()));
        assert_eq!(scene.condition("Ready").unwrap().0, "True");
        assert_eq!(scene.terraform.status.as_ref().unwrap().post_deploy_output, None);
    }
}

#[test]
fn outputs_are_shown_and_what_is_sensitive_or_large_is_named() {
    let mut scene = Scene::deployed(json!({ "gitRepo": git() }));
    let big = "x".repeat(2000);
    scene.outputs.shown = BTreeMap::from([("arn".into(), "arn:1".into()), ("big".into(), big)]);
    scene.outputs.names = ["arn", "big", "password"].map(str::to_owned).into();
    scene.step();
    let expected = json!({
        "arn": "arn:1", "big": "(2000 bytes; key big of ConfigMap db-outputs)",
        "password": "*** (sensitive; key password of Secret db-outputs)",
    });
    assert_eq!(serde_json::to_value(&scene.terraform.status.unwrap().output).unwrap(), expected);
}

#[test]
fn the_layer_goes_first_and_with_it_the_infrastructure_where_a_script_says_how() {
    let scripts = |destroy: Value| json!({ "gitRepo": git(), "scripts": { "destroy": destroy } });
    let mut scene = Scene::deployed(scripts(json!("destroy -c")));
    let destroy = scene.layer.as_ref().unwrap().spec.scripts.destroy.clone().unwrap();
    assert_eq!((destroy.path.unwrap().as_str(), destroy.args), ("destroy", vec!["-c".to_owned()]));
    scene.terraform.metadata.deletion_timestamp = Some(Time(scene.now));
    assert_eq!(scene.step().0, [Effect::DeleteLayer("uid-layer".to_owned())]);
    assert_eq!(scene.told(), (WorkloadState::Progressing, "being deleted"));
    scene.say(Truth::False, Some("Stalled"), "Failed", "the destroy failed");
    assert_eq!(scene.told(), (WorkloadState::Error, "the destroy failed"));
    assert!(!scene.gone);
    // Without the script it is let go as it is.
    let with = scene.terraform.spec.clone();
    scene.terraform.spec.scripts.destroy = None;
    scene.settle();
    assert_eq!(scene.layer.as_ref().unwrap().spec.deletion_policy, Some(DeletionPolicy::Orphan));
    scene.terraform.spec = with;
    scene.layer = None;
    scene.settle();
    assert_eq!(scene.told(), (WorkloadState::Completed, "destroyed"));
    assert!(scene.gone);

    let mut kept = Scene::deployed(json!({ "gitRepo": git() }));
    assert_eq!(kept.layer.as_ref().unwrap().spec.deletion_policy, Some(DeletionPolicy::Orphan));
    kept.terraform.metadata.deletion_timestamp = Some(Time(kept.now));
    kept.layer = None;
    kept.settle();
    assert_eq!(kept.told(), (WorkloadState::Completed, "deleted; the infrastructure stays as it is"));
}

#[test]
fn what_cannot_be_meant_is_told_and_makes_nothing() {
    let with = |field: &str, value: Value| json!({ "gitRepo": git(), field: value });
    for (spec, reason, words) in [
        (
            json!({ "variables": { "a": "b" } }),
            "CodeMissing",
            "name a Git repository in spec.gitRepo.url, or an image in spec.containerRegistry",
        ),
        (
            json!({ "containerRegistry": { "imageName": "Team/Code" } }),
            "ImageRefused",
            "spec.containerRegistry.imageName",
        ),
        (
            json!({ "containerRegistry": { "imageName": "team/code", "provider": "harbor" } }),
            "ImageRefused",
            "write the registry's host before the name",
        ),
        (
            json!({ "gitRepo": git(), "containerRegistry": { "imageName": "team/code:1.0" } }),
            "ImageRefused",
            "each commit is built under a tag of its own; remove it",
        ),
        (
            json!({ "gitRepo": git(), "containerRegistry": { "imageName": "team/code", "semanticVersion": "~1" } }),
            "ImageRefused",
            "beside spec.gitRepo each commit is built into one; remove one of the two",
        ),
        (
            json!({ "containerRegistry": { "imageName": "team/code:1.0", "semanticVersion": "~1" } }),
            "ImageRefused",
            "has the tag 1.0, and semanticVersion chooses one",
        ),
        (
            with("scripts", json!({ "destroy": 7 })),
            "ScriptRefused",
            "must be an object with inline or configMapRef",
        ),
        (
            with("scripts", json!({ "destroy": {} })),
            "ScriptRefused",
            "exactly one of inline and configMapRef",
        ),
        (with("scripts", json!({ "destroy": { "inlin": "x" } })), "ScriptRefused", "has no field inlin"),
        (with("scripts", json!({ "destroy": "../up" })), "ScriptRefused", "names no file of the code"),
        (
            with("scripts", json!({ "apply": { "inline": "x" }, "deploy": "deploy" })),
            "ScriptRefused",
            "mean the same",
        ),
        (with("variables", json!({ "not good": "x" })), "VariableRefused", "spec.variables"),
        (with("variables", json!({ "TERRANE_RUN": "x" })), "VariableRefused", "spec.variables"),
        (
            with("postDeploy", json!({ "script": "x", "args": { "a": "b c" } })),
            "PostDeployRefused",
            "spec.postDeploy.args",
        ),
    ] {
        let mut scene = scene(spec);
        scene.settle();
        assert!(scene.repository.is_none() && scene.layer.is_none());
        let (state, message) = scene.told();
        assert_eq!(state, WorkloadState::Error);
        assert!(message.contains(words), "{message}");
        assert_eq!(scene.condition("Ready").unwrap().1, reason);
        assert_eq!(scene.condition("Stalled").unwrap().1, reason);
    }
}

#[test]
fn the_code_of_a_repository_is_built_into_the_image_of_its_manifest() {
    let mut scene = written(INLINE);
    scene.settings.builds = Some(Builds::default());
    scene.step();
    scene.settle();
    let layer = scene.layer.as_mut().unwrap();
    let login = json!({ "secretName": "my-dockerhub-secret", "key": "dockerhub-cred" });
    assert_eq!(
        serde_json::to_value(&layer.spec.build).unwrap(),
        json!({ "name": "docker.io/alustan/terrform", "credentials": login })
    );
    let (truth, reason, message) = scene.condition("ImageBuilt").unwrap();
    assert_eq!((truth, reason), ("Unknown", "NotBuiltYet"));
    assert!(message.ends_with("is no part of the image's name and is left out"), "{message}");

    let said = |image: Value| {
        json!({ "conditions": [{ "type": "Ready", "status": "False", "reason": "Building", "message": "building",
            "lastTransitionTime": "2027-01-15T08:00:00Z" }], "image": image })
    };
    let digest = format!("sha256:{}", "a".repeat(64));
    let name = "docker.io/alustan/terrform";
    for (image, expected, words) in [
        (
            json!({ "name": name, "wanted": "abc", "message": "it is refused" }),
            ("False", "BuildFailed"),
            format!("{name}: it is refused"),
        ),
        (
            json!({ "name": name, "wanted": "abc", "tag": "abc-1", "digest": digest }),
            ("True", "Built"),
            format!("{name}:abc-1@{digest} holds commit abc"),
        ),
    ] {
        scene.layer.as_mut().unwrap().status = Some(serde_json::from_value(said(image)).unwrap());
        scene.step();
        let (truth, reason, message) = scene.condition("ImageBuilt").unwrap();
        assert_eq!((truth, reason), expected);
        assert!(message.starts_with(&words), "{message}");
    }
    assert!(scene.told().1.contains(&format!("; image {name}:abc-1@{digest}")), "{}", scene.told().1);

    // Where images are built no more, the code is taken from Git again.
    scene.settings.builds = None;
    scene.settle();
    assert_eq!(scene.layer.as_ref().unwrap().spec.build, None);
    assert_eq!(scene.condition("ImageBuilt").unwrap().1, "NotBuilt");
}

const IMAGE: &str = include_str!("../../../../examples/seeds/001/workload.yaml");

#[test]
fn an_image_becomes_a_layer_without_a_repository() {
    let mut scene = written(IMAGE);
    scene.step();
    scene.settle();
    assert!(scene.repository.is_none());
    let layer = scene.layer.as_ref().unwrap();
    let spec = serde_json::to_value(&layer.spec).unwrap();
    assert_eq!(
        spec["image"],
        json!({ "provider": "docker", "name": "alustan/infrastructure", "semanticVersion": "~1.0.0" })
    );
    assert_eq!((&spec["path"], spec.get("repository"), spec.get("branch")), (&json!("."), None, None));
    assert_eq!(spec["scripts"]["apply"], json!({ "path": "deploy" }));
    assert_eq!(spec["scripts"]["destroy"], json!({ "path": "destroy", "args": ["-c"] }));
    assert_eq!(spec["hooks"]["afterApply"][0]["path"], "aws-resource");
    assert_eq!(spec["deletionPolicy"], "Destroy");
    assert_eq!(spec.get("triggerPaths"), None);
    assert_eq!(scene.told(), (WorkloadState::Progressing, "looking at image alustan/infrastructure"));
    assert!(scene.condition("ImageBuilt").is_none());

    // Once the layer knows it, the digest is shown.
    let layer = scene.layer.as_mut().unwrap();
    let digest = format!("sha256:{}", "a".repeat(64));
    let status = json!({
        "observedGeneration": layer.metadata.generation,
        "image": { "name": "docker.io/alustan/infrastructure", "wanted": "~1.0.0", "tag": "1.0.1", "digest": digest },
        "conditions": [{ "type": "Ready", "status": "False", "reason": "Planning", "message": "planning",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }],
    });
    layer.status = Some(serde_json::from_value(status).unwrap());
    scene.settle();
    let shown = format!("planning; image docker.io/alustan/infrastructure:1.0.1@{digest}");
    assert_eq!(scene.told(), (WorkloadState::Progressing, shown.as_str()));
}

#[test]
fn a_tag_a_secret_a_remark_and_a_change_of_source_count() {
    let registry = json!({
        "imageName": "registry.example.org:5000/team/code:v2 the image of the team", "secretRef": { "name": "login", "key": "config" },
    });
    let mut scene =
        scene(json!({ "containerRegistry": registry, "scripts": { "deploy": "/bin/deploy --all" } }));
    scene.step();
    scene.settle();
    let spec = serde_json::to_value(&scene.layer.as_ref().unwrap().spec).unwrap();
    assert_eq!(
        spec["image"],
        json!({ "name": "registry.example.org:5000/team/code", "tag": "v2", "credentials": { "secretName": "login", "key": "config" } })
    );
    assert_eq!(spec["scripts"]["apply"], json!({ "path": "bin/deploy", "args": ["--all"] }));
    assert_eq!(spec["deletionPolicy"], "Orphan");
    let (_, words) = scene.told();
    assert!(words.contains("\"the image of the team\" is no part of the image's name"), "{words}");
    // Without a tag the newest is meant, as everywhere.
    scene.terraform.spec.container_registry.as_mut().unwrap().image_name = "team/code".to_owned();
    scene.settle();
    assert_eq!(
        scene.layer.as_ref().unwrap().spec.image.as_ref().unwrap().tag.as_ref().unwrap().as_str(),
        "latest"
    );
    // A repository takes the image's place.
    scene.terraform.spec.git_repo = Some(serde_json::from_value(git()).unwrap());
    scene.settle();
    scene.look(Ok(()));
    scene.settle();
    let spec = serde_json::to_value(&scene.layer.as_ref().unwrap().spec).unwrap();
    assert_eq!((spec.get("image"), &spec["repository"]["name"]), (None, &json!("db")));
}

#[test]
fn elsewhere_the_whole_url_is_tried_first_and_then_what_it_may_mean_else() {
    let mut scene =
        scene(json!({ "gitRepo": { "url": "https://git.example/team/infra/envs", "branch": "main" } }));
    scene.settle();
    assert_eq!(scene.url(), "https://git.example/team/infra/envs");
    assert!(scene.layer.is_none(), "what it means is not known yet");
    scene.look(Err("there is none"));
    scene.settle();
    assert_eq!(scene.url(), "https://git.example/team/infra");
    scene.look(Err("nor there"));
    let (effects, said) = scene.step();
    assert!(effects.is_empty());
    let words = "none of https://git.example/team/infra/envs, https://git.example/team/infra can be read; the last of them: nor there";
    assert_eq!(scene.told(), (WorkloadState::Error, words));
    let again = later(scene.now, Duration::from_secs(600));
    assert_eq!(said.wake, Wake::At(again));
    scene.now = again;
    scene.step();
    assert_eq!(scene.url(), "https://git.example/team/infra/envs", "they are gone through again");
    scene.look(Err("there is none"));
    scene.settle();
    scene.look(Ok(()));
    scene.settle();
    assert_eq!(scene.layer.as_ref().unwrap().spec.path.as_str(), "envs");
    // What was found once is not given up for a while without a network.
    scene.look(Err("no route"));
    scene.settle();
    assert_eq!(scene.url(), "https://git.example/team/infra");
    assert_eq!(scene.condition("Ready").unwrap().2, "no route");
}

#[test]
fn what_is_somebody_elses_is_left_alone_and_what_is_refused_is_told() {
    let mut scene = scene(json!({ "gitRepo": git() }));
    scene.step();
    let refused = [Refused { kind: "TerraformRepository", words: "exceeded quota".to_owned() }];
    let said = report(&scene.observed(), &refused);
    assert_eq!(said.status.message.unwrap(), "the API would not have TerraformRepository db: exceeded quota");
    assert_eq!(said.wake, Wake::At(later(scene.now, Duration::from_secs(60))));
    scene.settle();
    scene.layer.as_mut().unwrap().metadata.owner_references = None;
    assert!(decide(&scene.observed()).is_empty());
    scene.settle();
    assert_eq!(scene.condition("Ready").unwrap().1, "NameTaken");
    scene.terraform.metadata.deletion_timestamp = Some(Time(scene.now));
    scene.settle();
    assert!(scene.gone, "it is not deleted either");
}
