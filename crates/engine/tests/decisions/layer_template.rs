//! A template: nothing of it runs, it holds nobody up, and its status says which variables its code declares.

use api::condition;
use api::template::{Declared, Template};
use engine::Read;

use crate::world::{World, world};

fn template() -> World {
    let mut world = world().auto_apply();
    world.layer.spec.template = Some(Template::default());
    world.declared = Read::Unknown;
    world
}

fn variable(name: &str) -> Declared {
    Declared {
        name: name.to_owned(),
        kind: Some("string".to_owned()),
        description: None,
        required: true,
        sensitive: false,
    }
}

#[test]
fn a_template_starts_nothing_and_tells_its_variables() {
    let mut world = template();
    let decision = world.decide();
    assert!(decision.effects.is_empty(), "{decision:?}");

    world.declared = Read::Present(Ok(vec![variable("name")]));
    let decision = world.decide();
    assert!(decision.effects.is_empty(), "{decision:?}");
    assert_eq!(decision.status.declared, [variable("name")]);
    assert_eq!(decision.status.why.as_deref(), Some("a template for stacks, with 1 variable"));
    assert!(condition::is_true(&decision.status.conditions, "Ready"));

    // A new commit is looked at: what was known stays until more is.
    world.layer.status = Some(decision.status);
    world.push('b');
    world.declared = Read::Unknown;
    let decision = world.decide();
    assert_eq!(decision.status.declared, [variable("name")]);
    assert!(decision.effects.is_empty(), "{decision:?}");

    world.declared = Read::Present(Err("no such path".to_owned()));
    let decision = world.decide();
    assert!(decision.status.declared.is_empty());
    assert!(condition::is_true(&decision.status.conditions, "Stalled"));
    let why = "a template whose variables cannot be read: no such path";
    assert_eq!(decision.status.why.as_deref(), Some(why));
}

#[test]
fn a_suspended_template_says_so_and_keeps_its_variables() {
    let mut world = template();
    world.layer.spec.suspend = true;
    world.declared = Read::Present(Ok(vec![variable("name")]));
    let decision = world.decide();
    assert!(decision.effects.is_empty(), "{decision:?}");
    assert_eq!(decision.status.declared, [variable("name")]);
    assert!(!condition::is_true(&decision.status.conditions, "Ready"));
}

#[test]
fn a_template_is_let_go_at_once() {
    let mut world = template();
    world.layer.spec.deletion_policy = Some(api::layer::DeletionPolicy::Destroy);
    world.layer.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    let decision = world.decide();
    assert!(decision.effects.is_empty(), "nothing holds it, and nothing is destroyed: {decision:?}");
}
