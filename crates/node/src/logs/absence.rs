//! Why a container has no log, in the words of a kubelet. Pure.

use serde_json::Value;

use super::Which;

/// For a container of `pod`, an object as the API has it, of which [`super::open`] found nothing.
pub fn absence(pod: &Value, container: &str, which: Which) -> String {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let lists = ["/status/containerStatuses", "/status/initContainerStatuses"];
    let status = lists
        .iter()
        .filter_map(|list| pod.pointer(list)?.as_array())
        .flatten()
        .find(|status| status.get("name").and_then(Value::as_str) == Some(container));
    let what = format!("container {container:?} in pod {name:?}");
    let Some(status) = status else { return format!("{what} is not available") };
    match which {
        Which::Previous => format!("previous terminated {what} not found"),
        Which::Current => match status.pointer("/state/waiting/reason").and_then(Value::as_str) {
            Some("ErrImagePull") => format!("{what} is waiting to start: image can't be pulled"),
            Some("ImagePullBackOff") => {
                format!("{what} is waiting to start: trying and failing to pull image")
            }
            Some(reason) => format!("{what} is waiting to start: {reason}"),
            None => match status.pointer("/state/terminated") {
                Some(_) => format!("{what} is terminated"),
                None => format!("{what} is waiting to start - no logs yet"),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_log_is_explained_as_a_kubelet_does() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        for (state, which, expected) in [
            (waiting("ContainerCreating"), Which::Current, "is waiting to start: ContainerCreating"),
            (waiting("ErrImagePull"), Which::Current, "is waiting to start: image can't be pulled"),
            (
                waiting("ImagePullBackOff"),
                Which::Current,
                "is waiting to start: trying and failing to pull image",
            ),
            (json!({}), Which::Current, "is waiting to start - no logs yet"),
            (json!({"terminated": {"exitCode": 137}}), Which::Current, "is terminated"),
        ] {
            let pod = json!({"metadata": {"name": "p"},
                "status": {"initContainerStatuses": [{"name": "first", "state": state}]}});
            assert_eq!(absence(&pod, "first", which), format!("container \"first\" in pod \"p\" {expected}"));
            assert_eq!(
                absence(&pod, "first", Which::Previous),
                "previous terminated container \"first\" in pod \"p\" not found"
            );
            assert_eq!(absence(&pod, "x", which), "container \"x\" in pod \"p\" is not available");
        }
    }
}
