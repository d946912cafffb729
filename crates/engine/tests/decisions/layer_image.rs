//! A layer whose code is an image: when its registry is asked, which image it is pinned to, and what it says of both.

use std::time::Duration;

use api::TerraformLayerSpec;
use api::condition::{self, Truth};
use api::image::ImageStatus;
use api::run::{Action, Attempt, TriggerKind};
use api::text::{ImageDigest, ImageTag};
use engine::image::{self, Found, Look};
use engine::layer::Effect;
use engine::manifests::ImagePods;
use engine::{Read, Wake, later};
use serde_json::json;

use crate::world::{World, adds, commit, world};

const HOURS: Duration = Duration::from_secs(6 * 60 * 60);

fn digest(letter: char) -> ImageDigest {
    ImageDigest::new(format!("sha256:{}", letter.to_string().repeat(64))).unwrap()
}

fn found(tag: &str, letter: char) -> Result<Found, String> {
    Ok(Found { tag: ImageTag::new(tag).ok(), digest: digest(letter) })
}

/// A layer that follows `~1.0.0`, and what the desk knows.
struct Scene {
    world: World,
    look: Option<Look>,
    looking: bool,
}

fn scene() -> Scene {
    let mut world = world().auto_apply();
    let image =
        json!({ "provider": "docker", "name": "alustan/infrastructure", "semanticVersion": "~1.0.0" });
    let strategy = json!({ "autoApply": true });
    let spec = json!({ "image": image, "path": ".", "remediationStrategy": strategy });
    world.layer.spec = serde_json::from_value::<TerraformLayerSpec>(spec).unwrap();
    world.repository = None;
    Scene { world, look: None, looking: false }
}

impl Scene {
    fn decision(&self) -> image::Decision {
        let world = &self.world;
        let seen = image::Observed {
            now: world.now,
            layer: &world.layer,
            look: self.look.as_ref(),
            looking: self.looking,
            settings: &world.settings,
        };
        image::decide(&seen).unwrap()
    }

    /// One reconcile. A look that is asked for is under way from then on; what it was asked for comes back.
    fn step(&mut self) -> Option<Option<String>> {
        self.world.image = Some(self.decision());
        let decision = self.world.step();
        let asked = decision.effects.into_iter().find_map(|effect| match effect {
            Effect::LookAtImage { asked } => Some(asked),
            _ => None,
        });
        self.looking |= asked.is_some();
        asked
    }

    /// The look that is under way ends so.
    fn answer(&mut self, found: Result<Found, String>, asked: Option<String>) {
        self.look = Some(Look { at: self.world.now, found, asked });
        self.looking = false;
        assert_eq!(self.step(), None, "one look is enough");
    }

    fn known(&self) -> ImageStatus {
        self.world.layer.status.as_ref().unwrap().image.clone().unwrap()
    }

    fn says(&self, kind: &str) -> (bool, String) {
        let status = self.world.layer.status.as_ref().unwrap();
        let found = condition::find(&status.conditions, kind).unwrap();
        (found.status == Truth::True.as_str(), found.reason.clone())
    }

    fn plans(&self) -> Vec<&api::TerraformRun> {
        self.world.runs.iter().filter(|run| run.spec.action == Action::Plan).collect()
    }
}

#[test]
fn the_registry_is_asked_at_once_then_at_its_interval_and_the_digest_is_pinned() {
    let mut scene = scene();
    assert_eq!(scene.step(), Some(None), "a new layer asks");
    assert_eq!(scene.step(), None, "and not twice");
    assert!(scene.world.runs.is_empty());
    scene.answer(found("1.0.1", 'a'), None);
    let known = scene.known();
    assert_eq!(known.to_string(), format!("docker.io/alustan/infrastructure:1.0.1@{}", digest('a')));
    let [plan] = scene.plans()[..] else { panic!("{:?}", scene.world.runs) };
    let pinned = plan.spec.image.clone().unwrap();
    assert_eq!((pinned.digest, pinned.tag), (digest('a'), ImageTag::new("1.0.1").ok()));
    assert_eq!(plan.spec.layer.revision.as_str(), "a".repeat(64));
    assert_eq!(plan.spec.trigger.kind, TriggerKind::Commit);
    let reason = "image docker.io/alustan/infrastructure:1.0.1 (sha256:aaaaaaaaaaaa) for ~1.0.0";
    assert_eq!(plan.spec.trigger.reason, reason);

    let due = match scene.decision().wake {
        Wake::At(due) => due,
        other => panic!("{other:?}"),
    };
    assert!(
        due >= later(scene.world.now, HOURS) && due <= later(scene.world.now, HOURS.mul_f64(1.11)),
        "{due}"
    );
    // A new process knows when it was asked.
    scene.look = None;
    scene.world.now = later(due, Duration::from_secs(1));
    assert_eq!(scene.step(), Some(None));
    // Another constraint is another question, and asked at once.
    scene.looking = false;
    scene.world.layer.spec.image.as_mut().unwrap().semantic_version = Some("~2.0".parse().unwrap());
    scene.world.now = later(scene.world.now, Duration::from_secs(1));
    assert_eq!(scene.decision().look, Some(None));
    assert_eq!(scene.decision().source, Read::Unknown);
}

#[test]
fn a_newer_version_is_planned_and_a_tag_that_was_moved_is_told() {
    let mut scene = scene();
    scene.step();
    scene.answer(found("1.0.1", 'a'), None);
    assert_eq!(scene.says("IsImageTagMoved"), (false, "TagStayed".to_owned()));
    scene.world.runs.clear();
    for (tag, letter, moved) in
        [("1.0.2", 'b', false), ("1.0.2", 'c', true), ("1.0.2", 'c', true), ("1.0.3", 'd', false)]
    {
        scene.world.pass(2 * HOURS);
        assert_eq!(scene.step(), Some(None));
        scene.world.runs.clear();
        scene.answer(found(tag, letter), None);
        assert_eq!(scene.says("IsImageTagMoved").0, moved, "{tag} {letter}");
        assert_eq!(scene.known().digest, Some(digest(letter)));
        if moved {
            assert_eq!(scene.known().moved_from, Some(digest('b')));
            let reason = &scene.plans().last().unwrap().spec.trigger.reason;
            assert!(reason.contains("tag 1.0.2 of docker.io/alustan/infrastructure was moved"), "{reason}");
        }
        let status = scene.world.layer.status.clone().unwrap();
        assert_eq!(status.revision.short.as_deref(), Some(tag));
        assert!(scene.plans().iter().all(|plan| plan.spec.image.is_some()));
        scene.world.runs.clear();
    }
    // A layer that goes back to a repository says nothing of images.
    let mut layer = world().layer;
    layer.status = scene.world.layer.status.clone();
    scene.world.layer = layer;
    scene.world.repository = world().repository;
    scene.world.image = None;
    let status = scene.world.decide().status;
    assert!(status.image.is_none() && condition::find(&status.conditions, "IsImageTagMoved").is_none());
}

#[test]
fn a_registry_that_cannot_be_read_stalls_a_new_layer_and_leaves_another_with_its_image() {
    let refused = || Err("docker.io/alustan/infrastructure needs credentials".to_owned());
    let mut new = scene();
    new.step();
    new.answer(refused(), None);
    assert_eq!(new.says("Stalled"), (true, "SourceUnavailable".to_owned()));
    assert!(new.world.layer.status.as_ref().unwrap().why.as_ref().unwrap().contains("needs credentials"));
    // It is asked again soon, and the same answer is nothing to write.
    let before = new.world.layer.status.clone();
    new.world.pass(Duration::from_secs(150));
    assert_eq!(new.step(), Some(None));
    new.answer(refused(), None);
    assert_eq!(new.world.layer.status, before);

    let mut pinned = scene();
    pinned.step();
    pinned.answer(found("1.0.1", 'a'), None);
    pinned.world.pass(2 * HOURS);
    pinned.step();
    pinned.answer(Err("its registry fails with 500".to_owned()), None);
    assert_eq!(pinned.says("HasLastSyncFailed"), (true, "RegistryUnreadable".to_owned()));
    assert_eq!(pinned.known().digest, Some(digest('a')));
    assert!(matches!(pinned.decision().source, Read::Present(Ok(_))));
    pinned.world.pass(Duration::from_secs(150));
    assert_eq!(pinned.step(), Some(None), "soon again");
    pinned.answer(found("1.0.1", 'a'), None);
    assert_eq!(pinned.says("HasLastSyncFailed"), (false, "Synced".to_owned()));
}

#[test]
fn whoever_asks_by_hand_gets_what_is_there_now() {
    let mut scene = scene();
    scene.step();
    scene.answer(found("1.0.1", 'a'), None);
    scene.world.runs.clear();
    scene.world.annotate(api::annotation::SYNC, "now");
    assert_eq!(scene.step(), Some(Some("now".to_owned())));
    assert!(scene.world.runs.is_empty(), "nothing is planned before the answer");
    scene.answer(found("1.0.2", 'b'), Some("now".to_owned()));
    let [plan] = scene.plans()[..] else { panic!("{:?}", scene.world.runs) };
    assert_eq!(plan.spec.image.as_ref().unwrap().digest, digest('b'));
    assert_eq!(scene.step(), None, "it is answered");
}

#[test]
fn a_digest_asks_nobody_and_a_suspended_layer_neither() {
    let mut fixed = scene();
    let image = fixed.world.layer.spec.image.as_mut().unwrap();
    (image.semantic_version, image.digest) = (None, Some(digest('f')));
    assert_eq!(fixed.step(), None);
    assert_eq!(fixed.plans().len(), 1);
    assert_eq!(fixed.world.image.as_ref().unwrap().wake, Wake::OnChange);

    let mut still = scene();
    still.world.layer.spec.suspend = true;
    assert_eq!(still.step(), None);

    let mut nowhere = scene();
    nowhere.world.layer.spec.image.as_mut().unwrap().provider = Some("harbor".parse().unwrap());
    assert_eq!(nowhere.step(), None);
    let why = nowhere.world.layer.status.clone().unwrap().why.unwrap();
    assert!(why.contains("write the registry's host before the name"), "{why}");
}

#[test]
fn files_that_an_earlier_run_worked_on_are_used_again_and_each_layer_has_a_state_of_its_own() {
    let mut scene = scene();
    scene.step();
    scene.answer(found("1.0.1", 'a'), None);
    scene.world.succeed(adds(1));
    let plan = scene.world.runs.first().unwrap();
    let files = plan.status.as_ref().unwrap().attempts.first().unwrap().bundle.clone();
    assert!(files.is_some());
    scene.step();
    assert_eq!(scene.world.active_action(), Some(Action::Apply));
    let apply = scene.world.active().unwrap();
    assert_eq!((apply.spec.bundle.clone(), apply.spec.image.clone().unwrap().digest), (files, digest('a')));

    let mut other = scene.world.layer.clone();
    other.metadata.name = Some("other".to_owned());
    assert_ne!(engine::layer::state_of(&scene.world.layer), engine::layer::state_of(&other));
    assert_ne!(engine::layer::state_of(&scene.world.layer), engine::layer::state_of(&world().layer));
    // A commit of a repository is no image.
    assert!(ImageDigest::of_revision(&commit('a')).is_none());
}

#[test]
fn runs_are_in_the_image_where_pods_are_containers_and_an_apply_is_where_its_plan_was() {
    let plan_and_apply = |pods: Option<ImagePods>, was_pulled: bool| {
        let mut scene = scene();
        scene.world.settings.image_pods = pods;
        scene.step();
        scene.answer(found("1.0.1", 'a'), None);
        let plan = scene.plans()[0].spec.in_image;
        scene.world.succeed(adds(1));
        let attempts = &mut scene.world.runs[0].status.as_mut().unwrap().attempts;
        if !was_pulled {
            let first = Attempt { reason: Some("ImageNotPulled".to_owned()), ..attempts[0].clone() };
            attempts.insert(0, first);
        }
        scene.step();
        let apply = scene.world.active().unwrap();
        assert_eq!(apply.spec.action, Action::Apply);
        (plan, apply.spec.in_image)
    };
    assert_eq!(plan_and_apply(Some(ImagePods::default()), true), (true, true));
    assert_eq!(plan_and_apply(Some(ImagePods::default()), false), (true, false));
    assert_eq!(plan_and_apply(None, true), (false, false));
}
