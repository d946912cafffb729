//! What wakes an object that asked to be looked at again. The product leaves that to the queue of its controller; a test that
//! holds the clock takes the wishes down and wakes the objects itself, through [`crate::Desk::wake`].

use std::time::Duration;

use api::{Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun};
use kube::ResourceExt;
use kube::runtime::controller::Action;

use crate::Waiting;
use crate::feed::Handle;

pub trait Alarm: Send + Sync + std::fmt::Debug {
    /// Look at it again after this long; its wish before is forgotten.
    fn after(&self, who: Waiting, pause: Duration) -> Action;
    /// Look at it again when it changes, and not before.
    fn on_change(&self, who: Waiting) -> Action;
}

/// Real time.
#[derive(Debug, Clone, Copy)]
pub struct Timer;

impl Alarm for Timer {
    fn after(&self, _: Waiting, pause: Duration) -> Action {
        Action::requeue(pause)
    }

    fn on_change(&self, _: Waiting) -> Action {
        Action::await_change()
    }
}

impl From<&Handle<TerraformRepository>> for Waiting {
    fn from(object: &Handle<TerraformRepository>) -> Self {
        Waiting::Repository { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl From<&Handle<TerraformLayer>> for Waiting {
    fn from(object: &Handle<TerraformLayer>) -> Self {
        Waiting::Layer { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl From<&Handle<TerraformRun>> for Waiting {
    fn from(object: &Handle<TerraformRun>) -> Self {
        Waiting::Run { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl From<&Handle<Terraform>> for Waiting {
    fn from(object: &Handle<Terraform>) -> Self {
        Waiting::Terraform { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl From<&Handle<TerraformNotification>> for Waiting {
    fn from(object: &Handle<TerraformNotification>) -> Self {
        Waiting::Notification { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl From<&Handle<Repo>> for Waiting {
    fn from(object: &Handle<Repo>) -> Self {
        Waiting::Repo { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}
