//! Runs that undo an apply: what they are told, and that nothing that came since keeps them.

use crate::run::{Scene, scene};
use crate::run_described::description_of;
use crate::world::commit;
use api::run::{Action, Mode, TriggerKind, Undone};
use api::text::Sha256;
use engine::Read;
use serde_json::json;

fn undoing(kind: TriggerKind) -> Scene {
    let mut scene = scene(Action::Plan);
    let spec = &mut scene.run.spec;
    spec.mode = Mode::Destroy;
    spec.trigger.kind = kind;
    spec.bundle = Some(Sha256::of(b"bundle"));
    spec.inputs = Some(Sha256::of(b"then"));
    spec.state = Sha256::of(b"where it was");
    spec.undoes =
        Some(Undone { run_uid: "apply-uid".into(), attempt: 2, state: Sha256::of(b"where it was") });
    scene
}

#[test]
fn it_is_told_which_apply_it_undoes_whatever_the_layer_has_by_now() {
    for kind in [TriggerKind::Deletion, TriggerKind::Failure, TriggerKind::Manual] {
        let mut scene = undoing(kind);
        // Other inputs, other code, a backend that nobody knows, and no repository.
        let status = scene.world.layer.status.as_mut().unwrap();
        status.inputs = Some(Sha256::of(b"now"));
        status.revision.relevant = Some(commit('b'));
        scene.world.layer.spec.backend =
            serde_json::from_value(json!({ "provider": "no-such-thing" })).unwrap();
        scene.world.repository = None;
        let description = description_of(&scene.decide());
        let kept = description.kept.unwrap();
        assert_eq!((kept.run_uid.as_str(), kept.attempt), ("apply-uid", 2));
        assert_eq!(description.inputs.unwrap().digest, Sha256::of(b"then"));
        assert_eq!(description.state, Sha256::of(b"where it was"));
    }
}

#[test]
fn its_apply_is_on_the_state_that_the_datastore_keeps_and_not_elsewhere() {
    let mut scene = undoing(TriggerKind::Deletion);
    let artifact = json!({ "run": "p", "runUid": "p", "attempt": 0, "sha256": "a".repeat(64) });
    scene.run.spec.action = Action::Apply;
    scene.run.spec.artifact = serde_json::from_value(artifact).unwrap();
    scene.step();
    assert!(matches!(scene.lock, Read::Present(_)));
    let here = description_of(&scene.decide());
    assert_eq!(here.backend, None, "the layer's place may be another by now; the state's is not");
    scene.run.spec.state = Sha256::of(b"a bucket");
    assert_eq!(description_of(&scene.decide()).backend, Some(Sha256::of(b"a bucket")));
}
