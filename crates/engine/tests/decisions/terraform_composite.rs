//! What metacontroller is told to keep for a Terraform, with metacontroller's part played here: it makes and changes what is named as
//! `kubectl apply` would, and deletes what is not.

use api::condition::{self, Truth};
use api::layer::DeletionPolicy;
use api::terraform::WorkloadState;
use api::{TerraformLayer, TerraformRepository, WORKLOAD_FINALIZER};
use engine::door::composite::{Answer, answer};
use engine::door::terraform::{Effect, decide, report};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde_json::{Value, json};

use crate::terraform::{Scene, git, scene};

const FINALIZER: &str = "metacontroller.io/compositecontroller-terrane";

/// A Terraform that metacontroller has taken on.
fn kept(spec: Value) -> Scene {
    let mut scene = scene(spec);
    scene.terraform.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    scene
}

/// Asks, and does what metacontroller would.
fn sync(scene: &mut Scene) -> Answer {
    let answer = answer(&scene.observed());
    let named = |kind: &str| answer.children.iter().find(|child| child["kind"] == kind);
    scene.repository = kept_as(scene.repository.take(), named("TerraformRepository"), scene);
    let layer = kept_as(scene.layer.take(), named("TerraformLayer"), scene);
    scene.layer = layer;
    scene.terraform.status = Some(answer.status.clone());
    answer
}

fn kept_as<K>(found: Option<K>, named: Option<&Value>, scene: &Scene) -> Option<K>
where
    K: Resource<DynamicType = ()> + k8s_openapi::serde::Serialize + k8s_openapi::serde::de::DeserializeOwned,
{
    let Some(named) = named else {
        return found.map(|mut found| {
            found.meta_mut().deletion_timestamp = Some(Time(scene.now));
            found
        });
    };
    let owner = scene.terraform.controller_owner_ref(&()).unwrap();
    let mut object = found.map_or_else(
        || json!({ "metadata": { "uid": "uid-layer", "ownerReferences": [owner] } }),
        |found| serde_json::to_value(found).unwrap(),
    );
    let before = object["spec"].clone();
    // What it applied before and does not find named any more goes; all that is not a Terraform's stays.
    object["spec"] = named["spec"].clone();
    if let (Some(theirs), Some(spec)) = (before.get("suspend"), object["spec"].as_object_mut()) {
        spec.insert("suspend".to_owned(), theirs.clone());
    }
    for field in ["apiVersion", "kind"] {
        object[field] = named[field].clone();
    }
    for field in ["name", "namespace", "labels"] {
        object["metadata"][field] = named["metadata"][field].clone();
    }
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    object["metadata"]["generation"] = json!(generation + i64::from(before != object["spec"]));
    Some(serde_json::from_value(object).unwrap())
}

fn kinds(answer: &Answer) -> Vec<&str> {
    answer.children.iter().map(|child| child["kind"].as_str().unwrap()).collect()
}

fn in_sync(scene: &mut Scene) {
    let layer = scene.layer.as_mut().unwrap();
    let mut status = layer.status.take().unwrap_or_default();
    status.observed_generation = layer.metadata.generation;
    condition::set(&mut status.conditions, "Ready", Truth::True, "InSync", "up to date", None, scene.now);
    layer.status = Some(status);
}

fn deployed(spec: Value) -> Scene {
    let mut scene = kept(spec);
    sync(&mut scene);
    scene.look(Ok(()));
    sync(&mut scene);
    in_sync(&mut scene);
    sync(&mut scene);
    scene
}

#[test]
fn the_same_objects_are_named_as_terrane_itself_would_make() {
    let spec = json!({
        "gitRepo": git(), "variables": { "REGION": "eu" }, "scripts": { "deploy": "deploy", "destroy": "destroy -c" },
    });
    let mut scene = deployed(spec.clone());
    let own = Scene::deployed(spec);
    assert_eq!(scene.repository.as_ref().unwrap().spec, own.repository.as_ref().unwrap().spec);
    assert_eq!(scene.layer.as_ref().unwrap().spec, own.layer.as_ref().unwrap().spec);
    let again = sync(&mut scene);
    assert_eq!(kinds(&again), ["TerraformRepository", "TerraformLayer"]);
    assert_eq!(again.status.state, Some(WorkloadState::Completed));
    assert_eq!((again.finalized, again.resync), (false, None));
    for child in &again.children {
        assert!(child["metadata"].get("ownerReferences").is_none(), "metacontroller adds itself: {child}");
        assert_eq!(child["metadata"]["labels"]["controller-uid"], "uid-terraform");
    }
    // Once more, nothing has changed for it to do.
    let before = (scene.repository.clone(), scene.layer.clone());
    assert_eq!(sync(&mut scene).children, again.children);
    assert_eq!((scene.repository, scene.layer), before);
}

#[test]
fn a_change_reaches_the_layer_and_what_others_set_there_stays() {
    let mut scene = deployed(json!({ "gitRepo": git(), "variables": { "B": "1" } }));
    scene.layer.as_mut().unwrap().spec.suspend = true;
    scene.terraform.spec.variables.insert("A".to_owned(), "2".to_owned());
    sync(&mut scene);
    let layer = scene.layer.as_mut().unwrap();
    let names: Vec<&str> = layer.spec.environment.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["A", "B", "TF_VAR_A", "TF_VAR_B"]);
    assert!(layer.spec.suspend);
    // Metacontroller puts what is new behind what it finds; that is no other wish.
    layer.spec.environment.reverse();
    in_sync(&mut scene);
    let answer = sync(&mut scene);
    assert_eq!(answer.status.state, Some(WorkloadState::Completed), "{:?}", answer.status.message);
    assert!(answer.children.iter().all(|child| child["spec"].get("suspend").is_none()));

    // What cannot be understood leaves everything as it is.
    let before = (scene.repository.clone(), scene.layer.clone());
    scene.terraform.spec.git_repo = None;
    let answer = sync(&mut scene);
    assert_eq!(kinds(&answer), ["TerraformRepository", "TerraformLayer"]);
    assert_eq!(answer.status.state, Some(WorkloadState::Error));
    assert_eq!((scene.repository, scene.layer), before);
}

#[test]
fn it_is_finalized_once_its_layer_is_gone() {
    let mut scene = deployed(json!({ "gitRepo": git(), "scripts": { "destroy": "destroy" } }));
    scene.terraform.metadata.deletion_timestamp = Some(Time(scene.now));
    let answer = sync(&mut scene);
    // The repository stays for as long as its layer needs it.
    assert_eq!((kinds(&answer), answer.finalized), (vec!["TerraformRepository"], false));
    assert!(scene.layer.as_ref().unwrap().metadata.deletion_timestamp.is_some());
    let answer = sync(&mut scene);
    assert_eq!((kinds(&answer), answer.finalized), (vec!["TerraformRepository"], false));
    // Without the script that destroys, the layer is told to go without, before it goes.
    let mut changed = deployed(json!({ "gitRepo": git(), "scripts": { "destroy": "destroy" } }));
    changed.terraform.metadata.deletion_timestamp = Some(Time(changed.now));
    changed.terraform.spec.scripts.destroy = None;
    assert_eq!(kinds(&sync(&mut changed)), ["TerraformRepository", "TerraformLayer"]);
    assert_eq!(changed.layer.as_ref().unwrap().spec.deletion_policy, Some(DeletionPolicy::Orphan));
    assert_eq!(kinds(&sync(&mut changed)), ["TerraformRepository"]);

    scene.layer = None;
    let answer = sync(&mut scene);
    assert!(answer.finalized);
    assert_eq!(answer.status.message.as_deref(), Some("destroyed"));
}

#[test]
fn what_is_somebody_elses_is_never_named_and_a_pause_is_asked_for() {
    let mut scene = deployed(json!({ "gitRepo": git() }));
    let layer: &mut TerraformLayer = scene.layer.as_mut().unwrap();
    layer.metadata.owner_references = None;
    let said = answer(&scene.observed());
    assert_eq!(kinds(&said), ["TerraformRepository"]);
    assert!(said.status.message.unwrap().contains("does not belong to this Terraform"));

    // A URL that can mean several things is gone through again after a while.
    let mut unclear = kept(json!({ "gitRepo": { "url": "https://git.example/a/b/c", "branch": "main" } }));
    sync(&mut unclear);
    for _ in 0..5 {
        unclear.look(Err("not found"));
        sync(&mut unclear);
    }
    let pause = sync(&mut unclear).resync.unwrap();
    assert!(pause.as_secs() > 1 && pause.as_secs() <= 600, "{pause:?}");
    let repository: &TerraformRepository = unclear.repository.as_ref().unwrap();
    assert!(repository.spec.repository.url.as_str().starts_with("https://git.example/"));
}

#[test]
fn terrane_leaves_alone_what_metacontroller_keeps() {
    let mut scene = Scene::deployed(json!({ "gitRepo": git() }));
    scene.terraform.spec.variables.insert("NEW".to_owned(), "1".to_owned());
    assert!(matches!(decide(&scene.observed())[..], [Effect::PatchLayer(_)]));
    scene.terraform.metadata.finalizers = Some(vec![WORKLOAD_FINALIZER.to_owned(), FINALIZER.to_owned()]);
    assert_eq!(decide(&scene.observed()), []);
    let before = scene.terraform.status.clone().unwrap();
    assert_eq!(report(&scene.observed(), &[]).status, before);
    scene.terraform.metadata.deletion_timestamp = Some(Time(scene.now));
    assert_eq!(decide(&scene.observed()), []);
    assert!(!report(&scene.observed(), &[]).let_go);
    // A mere decorator keeps nothing.
    let decorated = "metacontroller.io/decoratorcontroller-x";
    scene.terraform.metadata.finalizers = Some(vec![WORKLOAD_FINALIZER.to_owned(), decorated.to_owned()]);
    assert!(!decide(&scene.observed()).is_empty());
}
