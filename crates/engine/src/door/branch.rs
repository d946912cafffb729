//! The branch that a door's layer follows.

use api::condition;
use api::text::RefName;
use api::{TerraformLayer, TerraformRepository};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::child::is_ours;

const BRANCH_OF_NO_NAME: &str = "main";

/// The branch to follow, once it is known: the one that is asked for, else the repository's own. A layer stays with what it follows while
/// the repository cannot be asked.
pub(super) fn followed(
    door: &ObjectMeta,
    asked: Option<&RefName>,
    repository: Option<&TerraformRepository>,
    layer: Option<&TerraformLayer>,
) -> Option<RefName> {
    if let Some(named) = asked {
        return Some(named.clone());
    }
    let repository = repository.filter(|repository| is_ours(door, &repository.metadata))?;
    let status = repository.status.as_ref();
    let status = status.filter(|status| status.observed_generation == repository.metadata.generation);
    let default = status.and_then(|status| status.default_branch.clone());
    let was_seen = status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"));
    default
        .or_else(|| layer.and_then(|layer| layer.spec.branch.clone()))
        .or_else(|| RefName::new(BRANCH_OF_NO_NAME).ok().filter(|_| was_seen))
}
