//! What the remediation strategy of a layer inherits.

use api::run::Action;
use serde_json::{Value, json};

use crate::world::{adds, world};

/// `autoApply` and `maxRetries` as they are written; either may be left out.
fn strategy(auto_apply: Option<bool>, max_retries: Option<u32>) -> Value {
    let mut strategy = json!({});
    if let Some(auto_apply) = auto_apply {
        strategy["autoApply"] = json!(auto_apply);
    }
    if let Some(max_retries) = max_retries {
        strategy["onError"] = json!({ "maxRetries": max_retries });
    }
    strategy
}

#[test]
fn what_a_layer_leaves_out_of_its_remediation_is_its_repositorys_and_then_the_administrators() {
    let none = (None, None);
    // The repository's, the layer's, and what counts.
    for (repository, layer, (applies, retries)) in [
        (none, none, (false, 3)),
        ((Some(true), None), none, (true, 3)),
        ((Some(true), None), (Some(false), None), (false, 3)),
        ((Some(false), None), (Some(true), None), (true, 3)),
        (none, (Some(true), None), (true, 3)),
        ((None, Some(1)), none, (false, 1)),
        ((None, Some(1)), (None, Some(2)), (false, 2)),
        ((None, Some(1)), (None, Some(0)), (false, 0)),
        ((Some(true), Some(1)), (None, Some(2)), (true, 2)),
        ((Some(true), Some(1)), (Some(false), None), (false, 1)),
    ] {
        let case = format!("repository {repository:?}, layer {layer:?}");
        let mut world = world();
        world.settings.max_retries = 3;
        let read =
            |(auto_apply, max_retries)| serde_json::from_value(strategy(auto_apply, max_retries)).unwrap();
        world.layer.spec.remediation_strategy = read(layer);
        world.repository.as_mut().unwrap().spec.remediation_strategy = read(repository);
        world.step();
        assert_eq!(world.active().unwrap().spec.max_retries, retries, "{case}");
        world.succeed(adds(1));
        world.step();
        assert_eq!(world.active_action() == Some(Action::Apply), applies, "{case}");
    }
}
