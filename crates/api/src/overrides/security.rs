//! What a security context may say: only what keeps a runner as confined as it is. Everything else of it, new fields included, is refused.

use serde_json::{Map, Value};

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Container,
    Pod,
}

/// Why it cannot be had, beginning with the setting.
pub(super) fn check(of: Of, context: &Map<String, Value>) -> Result<(), String> {
    context.iter().try_for_each(|(key, value)| setting(of, key, value))
}

fn setting(of: Of, key: &str, value: &Value) -> Result<(), String> {
    let only = |wanted: bool| {
        let fits = value.as_bool() == Some(wanted);
        if fits { Ok(()) } else { Err(format!("{key} can be {wanted} only")) }
    };
    let number = |least: i64| {
        let fits = value.as_i64().is_some_and(|number| number >= least);
        if fits { Ok(()) } else { Err(format!("{key} must be a number from {least} on")) }
    };
    match (of, key) {
        (Of::Container, "privileged" | "allowPrivilegeEscalation") => only(false),
        (Of::Container, "readOnlyRootFilesystem") => only(true),
        (_, "runAsNonRoot") => only(true),
        (_, "runAsUser") => number(1),
        (_, "runAsGroup") => number(0),
        (Of::Pod, "fsGroup") => number(1),
        (Of::Pod, "fsGroupChangePolicy" | "supplementalGroupsPolicy") => match value {
            Value::String(_) => Ok(()),
            _ => Err(format!("{key} must be a word")),
        },
        (Of::Pod, "supplementalGroups") => {
            let groups = value.as_array().map_or(&[][..], Vec::as_slice);
            let fits = groups.iter().all(|group| group.as_i64().is_some_and(|group| group >= 1));
            if fits && value.is_array() { Ok(()) } else { Err(format!("{key} must be numbers from 1 on")) }
        }
        (_, "seccompProfile" | "appArmorProfile") => match value.get("type").and_then(Value::as_str) {
            Some("RuntimeDefault" | "Localhost") => Ok(()),
            Some(_) | None => Err(format!("the type of {key} can be RuntimeDefault or Localhost")),
        },
        (_, "seLinuxOptions") => {
            let fields = value.as_object();
            let fits = fields.is_some_and(|fields| fields.keys().all(|field| field == "level"));
            if fits { Ok(()) } else { Err(format!("{key} can have a level only")) }
        }
        (Of::Container, "capabilities") => Err("capabilities are all dropped already".to_owned()),
        (Of::Container | Of::Pod, _) => Err(format!("{key} cannot be set")),
    }
}
