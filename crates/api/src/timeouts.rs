//! How long a plan and an apply may take.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::layer::TerraformLayer;
use crate::repository::TerraformRepository;
use crate::run::Action;
use crate::text::Span;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// How long an attempt at a plan may take, from its start, with its hooks; then the tool is asked to stop, and the attempt has failed
    /// with the reason `TimedOut`. Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Span>,
    /// The same of an apply, also of one that destroys. Default: as long as it needs, because one that is stopped leaves its work half done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Span>,
}

impl TerraformLayer {
    /// How long an action may take, where the layer or else its repository says so.
    pub fn timeout(&self, action: Action, repository: Option<&TerraformRepository>) -> Option<Span> {
        let inherited = repository.and_then(|repository| repository.spec.timeouts.as_ref());
        let of = |timeouts: &Timeouts| match action {
            Action::Plan => timeouts.plan,
            Action::Apply => timeouts.apply,
            Action::Build => None,
        };
        self.spec.timeouts.as_ref().and_then(of).or_else(|| inherited.and_then(of))
    }
}
