//! A layer whose code is built into an image: a commit is built once, before it is planned, and its runs work on what was built.

use std::time::Duration;

use api::image::PinnedImage;
use api::run::{Action, RunState};
use api::text::ImageDigest;
use api::{TerraformRun, annotation, condition};
use engine::layer::Effect;
use engine::manifests::ImagePods;
use engine::{Builds, Wake};
use serde_json::json;

use crate::run::scene as run_scene;
use crate::world::{World, adds, commit, world};

fn building() -> World {
    let mut world = world().auto_apply();
    world.settings.builds = Some(Builds::default());
    world.layer.spec.build =
        serde_json::from_value(json!({ "name": "registry.example.org/team/code" })).unwrap();
    world
}

fn digest(letter: char) -> ImageDigest {
    ImageDigest::new(format!("sha256:{}", letter.to_string().repeat(64))).unwrap()
}

/// Lets the build under way end well.
fn build(world: &mut World, letter: char) -> PinnedImage {
    assert_eq!(world.active_action(), Some(Action::Build));
    let image = world.active().unwrap().spec.build.clone().unwrap().pinned(digest(letter));
    let name = world.active().unwrap().metadata.name.clone();
    world.succeed(adds(0));
    let run = world.runs.iter_mut().find(|run| run.metadata.name == name).unwrap();
    run.status.as_mut().unwrap().result.as_mut().unwrap().image = Some(image.clone());
    image
}

fn plan_and_apply(world: &mut World) -> TerraformRun {
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
    let plan = world.active().unwrap().clone();
    world.succeed(adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    assert_eq!(world.active().unwrap().spec.image, plan.spec.image);
    world.succeed(adds(0));
    world.step();
    // Of what ends in the same second nobody knows which came last.
    world.pass(Duration::from_secs(1));
    plan
}

fn builds(world: &World) -> usize {
    world.runs.iter().filter(|run| run.spec.action == Action::Build).count()
}

#[test]
fn a_commit_is_built_once_before_it_is_planned_and_its_runs_work_on_the_image() {
    let mut world = building();
    world.step();
    let run = world.active().unwrap().clone();
    assert_eq!(
        (run.spec.action, run.spec.image.clone(), run.spec.inputs.clone()),
        (Action::Build, None, None)
    );
    assert_eq!(run.spec.layer.revision, commit('a'));
    let wanted = run.spec.build.unwrap();
    assert!(wanted.tag.as_str().starts_with(commit('a').short()), "{wanted}");
    assert_eq!(wanted.place().to_string(), "registry.example.org/team/code");
    let why = world.status().why.clone().unwrap();
    assert!(why.starts_with("building the image of aaaaaaa"), "{why}");

    let image = build(&mut world, '1');
    let plan = plan_and_apply(&mut world);
    assert_eq!(plan.spec.image, Some(image.clone()));
    assert_eq!(plan.spec.bundle, None, "the files of the build are no files of the image");
    assert!(condition::is_true(&world.status().conditions, "Ready"));
    assert_eq!(world.status().image.clone().unwrap().to_string(), image.to_string());

    // Neither a look for drift nor a person's wish builds anything.
    world.annotate(annotation::SYNC, "now");
    world.step();
    assert_eq!(world.active().unwrap().spec.image, Some(image.clone()));
    world.succeed(adds(0));
    let decision = world.step();
    world.wait(&decision);
    world.step();
    assert_eq!((world.active_action(), builds(&world)), (Some(Action::Plan), 1));
    world.succeed(adds(0));

    // A new commit is another image; the first is where it was.
    world.push('b');
    world.step();
    let other = build(&mut world, '2');
    assert_ne!(other.tag, image.tag);
    assert_eq!(plan_and_apply(&mut world).spec.image, Some(other));
}

#[test]
fn a_build_that_failed_is_told_and_tried_again_when_somebody_asks_or_it_is_time() {
    let mut world = building();
    world.step();
    world.fail("BuildFailed");
    world.step();
    assert_eq!(world.active_action(), None);
    let status = world.status();
    assert!(condition::is_true(&status.conditions, "Stalled"));
    let why = status.why.clone().unwrap();
    assert!(why.contains("a new commit or terrane sync db tries again: it ended with BuildFailed"), "{why}");
    let image = status.image.clone().unwrap();
    assert_eq!((image.digest, image.message.as_deref()), (None, Some("it ended with BuildFailed")));

    world.annotate(annotation::SYNC, "again");
    world.step();
    assert_eq!(world.active_action(), Some(Action::Build));
    world.fail("BuildFailed");
    world.step();
    assert_eq!(world.active_action(), None, "one wish is one build");

    let again = world.decide();
    assert_ne!(again.wake, Wake::OnChange);
    world.wait(&again);
    world.step();
    build(&mut world, '1');
    plan_and_apply(&mut world);
    assert_eq!(world.status().image.clone().unwrap().message, None);
}

#[test]
fn another_name_or_base_is_another_image_and_without_a_build_the_code_is_the_commits() {
    let mut world = building();
    world.step();
    let first = build(&mut world, '1');
    plan_and_apply(&mut world);

    let base = format!("registry.example.org/team/base@{}", digest('f'));
    world.settings.builds.as_mut().unwrap().base = Some(base.parse().unwrap());
    world.step();
    let second = build(&mut world, '2');
    assert_ne!(first.tag, second.tag);
    assert_eq!(plan_and_apply(&mut world).spec.image, Some(second.clone()));

    // What was applied is what is destroyed, whatever the layer says by then.
    world.layer.spec.build = None;
    world.step();
    assert_eq!(world.active().unwrap().spec.image, None, "the commit itself is planned");
    world.fail("ToolFailed");
    world.layer.spec.deletion_policy = Some(api::layer::DeletionPolicy::Destroy);
    world.delete();
    world.step();
    let destroy = world.active().unwrap();
    assert_eq!(destroy.spec.image, Some(second));
    assert!(destroy.spec.bundle.is_some());
}

#[test]
fn the_build_of_the_relevant_commit_is_not_forgotten_and_older_ones_are() {
    let mut world = building();
    world.settings.runs_kept = 1;
    world.step();
    build(&mut world, '1');
    plan_and_apply(&mut world);
    for _ in 0..3 {
        let decision = world.decide();
        world.wait(&decision);
        world.step();
        if world.active_action() == Some(Action::Plan) {
            world.succeed(adds(0));
            world.step();
        }
    }
    assert_eq!(builds(&world), 1);
    world.push('b');
    world.step();
    build(&mut world, '2');
    plan_and_apply(&mut world);
    world.pass(Duration::from_secs(60));
    world.step();
    let left: Vec<_> = world.runs.iter().filter(|run| run.spec.action == Action::Build).collect();
    assert_eq!(left.len(), 1, "{left:#?}");
    assert_eq!(left[0].spec.layer.revision, commit('b'));
}

#[test]
fn where_nothing_is_built_the_layer_says_so() {
    let mut world = building();
    world.settings.builds = None;
    let decision = world.step();
    assert!(!decision.effects.iter().any(|effect| matches!(effect, Effect::CreateRun(_))));
    let why = world.status().why.clone().unwrap();
    assert!(why.contains("images are not built here"), "{why}");
    assert!(condition::is_true(&world.status().conditions, "Stalled"));
}

#[test]
fn the_pod_of_a_build_is_given_the_login_of_its_registry_and_nothing_of_the_clouds() {
    let mut scene = run_scene(Action::Plan);
    let mut world = building();
    let credentials = json!({ "secretName": "login", "key": "cred" });
    world.layer.spec.build.as_mut().unwrap().credentials = Some(serde_json::from_value(credentials).unwrap());
    world.step();
    scene.run = world.active().unwrap().clone();
    scene.run.metadata.uid = Some("run-1".to_owned());
    scene.settings.builds = Some(Builds::default());
    scene.settings.runner.secrets.environment = Some("cloud".to_owned());
    scene.world = world;
    let effects = scene.decide().effects;
    let described = effects.iter().find_map(|effect| match effect {
        engine::run::Effect::PutDescription(description) => Some(description.clone()),
        _ => None,
    });
    let order = described.unwrap().build.unwrap();
    assert_eq!(order.login.as_deref(), Some("key cred of Secret login"));
    let pod = effects.iter().find_map(|effect| match effect {
        engine::run::Effect::CreatePod(pod) => Some(serde_json::to_value(pod).unwrap()),
        _ => None,
    });
    let spec = pod.unwrap()["spec"].clone();
    let items = json!([{ "key": "cred", "path": "cred" }]);
    assert_eq!(
        spec["volumes"][2],
        json!({ "name": "input-0", "secret": { "secretName": "login", "items": items, "optional": true } })
    );
    assert_eq!(spec["containers"][0].get("envFrom"), None);

    // A layer that has its code built no more needs no such run.
    scene.world.layer.spec.build = None;
    assert_eq!(scene.step(), ["set status"]);
    let status = scene.run.status.clone().unwrap();
    assert_eq!(
        (status.state, status.result.unwrap().reason.as_str()),
        (Some(RunState::Failed), "Superseded")
    );
}

#[test]
fn runs_are_in_a_built_image_where_that_has_more_than_the_code() {
    let base = format!("example.org/base@sha256:{}", "b".repeat(64));
    for (base, expected) in [(None, false), (Some(base), true)] {
        let mut world = building();
        world.settings.image_pods = Some(ImagePods::default());
        world.layer.spec.build.as_mut().unwrap().base = base.map(|base| base.parse().unwrap());
        world.step();
        assert!(!world.active().unwrap().spec.in_image, "nothing of it is executed for the build");
        build(&mut world, '1');
        world.step();
        assert_eq!(
            (world.active_action(), world.active().unwrap().spec.in_image),
            (Some(Action::Plan), expected)
        );
    }
}
