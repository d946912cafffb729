//! Which taints of a node a pod puts up with. Pure.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// What a cluster puts on a node that is cordoned; tolerating it is how a pod goes there all the same.
const CORDON: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// The first taint that keeps the pod away. O(taints × tolerations), both a handful.
pub(crate) fn first_untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    // PreferNoSchedule only ranks nodes, and here there is no other to prefer.
    let keeps_away = |taint: &&Taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE);
    taints
        .iter()
        .filter(keeps_away)
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

pub(crate) fn tolerate_cordon(tolerations: &[Toleration]) -> bool {
    let cordon = Taint { key: CORDON.to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() };
    tolerations.iter().any(|toleration| tolerates(toleration, &cordon))
}

/// What is left out of a toleration matches everything, except the value of an `Equal`.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let effect = given(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key = given(&toleration.key).is_none_or(|key| key == taint.key);
    let value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        // An operator that is not known tolerates nothing.
        Some(_) => false,
    };
    effect && key && value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_toleration_matches_by_key_operator_value_and_effect() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        let tolerated = |toleration: Value| {
            let toleration = serde_json::from_value(toleration).unwrap();
            first_untolerated(std::slice::from_ref(&taint), &[toleration]).is_none()
        };
        for (toleration, expected) in [
            (json!({"key": "k", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "v"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "operator": "Equal"}), false),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "v"}), false),
        ] {
            assert_eq!(tolerated(toleration.clone()), expected, "{toleration}");
        }
    }
}
