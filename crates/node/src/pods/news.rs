//! What people are told of a pod's containers, in a kubelet's words. Pure: it follows from the change of the status that was
//! written, so a node that is started again does not tell it twice.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateWaiting, ContainerStatus, Pod, PodStatus};

use super::decide::every_container;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    pub(super) container: String,
    pub(super) weight: Weight,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Normal,
    Warning,
}

/// O(containers), once for each written status.
pub(super) fn build(pod: &Pod, now: &PodStatus) -> Vec<News> {
    let before = pod.status.clone().unwrap_or_default();
    let all = |status: &PodStatus| -> Vec<ContainerStatus> {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect()
    };
    let old = all(&before);
    let mut news = Vec::new();
    for status in all(now) {
        let before = old.iter().find(|old| old.name == status.name);
        of_container(pod, before, &status, &mut news);
    }
    news
}

fn of_container(pod: &Pod, before: Option<&ContainerStatus>, status: &ContainerStatus, news: &mut Vec<News>) {
    let mut tell = |weight, reason, message| {
        news.push(News { container: status.name.clone(), weight, reason, message });
    };
    let container = pod.spec.iter().flat_map(every_container).find(|container| container.name == status.name);
    let image = container.and_then(|container| container.image.as_deref()).unwrap_or_default();
    let pulled = format!("Container image {image:?} already present on machine");
    let state = status.state.clone().unwrap_or_default();

    let is_new = |status: &ContainerStatus| {
        status.container_id.is_some()
            && before.and_then(|before| before.container_id.as_ref()) != status.container_id.as_ref()
    };
    if is_new(status) {
        tell(Weight::Normal, "Pulled", pulled.clone());
        tell(Weight::Normal, "Created", "Container created".to_owned());
        match start_error(&state).or_else(|| start_error(status.last_state.as_ref()?)) {
            Some(message) => tell(Weight::Warning, "Failed", format!("Error: {message}")),
            None => tell(Weight::Normal, "Started", "Container started".to_owned()),
        }
    }

    let waited = before.and_then(|before| before.state.as_ref()?.waiting.as_ref());
    let Some(waiting) = state.waiting.as_ref().filter(|waiting| Some(*waiting) != waited) else { return };
    let ContainerStateWaiting { reason, message } = waiting;
    let message = message.as_deref().unwrap_or_default();
    let reason = reason.as_deref().unwrap_or_default();
    match reason {
        "CrashLoopBackOff" => tell(
            Weight::Warning,
            "BackOff",
            format!("Back-off restarting failed container {} in pod {}", status.name, full_name(pod)),
        ),
        "ErrImagePull" => {
            tell(Weight::Warning, "Failed", format!("Failed to pull image {image:?}: {message}"));
            tell(Weight::Warning, "Failed", format!("Error: {reason}"));
        }
        "ImagePullBackOff" => {
            tell(Weight::Normal, "BackOff", format!("Back-off pulling image {image:?}"));
            tell(Weight::Warning, "Failed", format!("Error: {reason}"));
        }
        "ErrImageNeverPull" => {
            tell(Weight::Warning, "ErrImageNeverPull", message.to_owned());
            tell(Weight::Warning, "Failed", format!("Error: {reason}"));
        }
        "InvalidImageName" => {
            tell(Weight::Warning, "InspectFailed", message.to_owned());
            tell(Weight::Warning, "Failed", format!("Error: {reason}"));
        }
        "CreateContainerConfigError" | "CreateContainerError" => {
            tell(Weight::Normal, "Pulled", pulled);
            tell(Weight::Warning, "Failed", format!("Error: {message}"));
        }
        // Waiting for its turn is nothing to tell.
        _ => {}
    }
}

fn start_error(state: &ContainerState) -> Option<String> {
    let ended = state.terminated.as_ref().filter(|ended| ended.reason.as_deref() == Some("StartError"))?;
    Some(ended.message.clone().unwrap_or_default())
}

fn full_name(pod: &Pod) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let metadata = &pod.metadata;
    format!("{}_{}({})", text(&metadata.name), text(&metadata.namespace), text(&metadata.uid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn told(before: Value, now: Value) -> Vec<String> {
        let status = |container: Value| json!({"containerStatuses": [container]});
        let with = |mut container: Value| {
            let fields = container.as_object_mut().unwrap();
            for (key, value) in [
                ("name", json!("main")),
                ("image", json!("i")),
                ("imageID", json!("")),
                ("ready", json!(false)),
                ("restartCount", json!(0)),
            ] {
                fields.entry(key).or_insert(value);
            }
            container
        };
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main", "image": "tool:1"}]}, "status": status(with(before))});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let now: PodStatus = serde_json::from_value(status(with(now))).unwrap();
        let line = |news: News| format!("{:?} {} {}", news.weight, news.reason, news.message);
        build(&pod, &now).into_iter().map(line).collect()
    }

    #[test]
    fn containers_are_told_of_in_the_words_of_a_kubelet() {
        let nothing = json!({"state": {"waiting": {"reason": "ContainerCreating"}}});
        let running = json!({"containerID": "terrane://u.main.0", "state": {"running": {}}});
        let begun = [
            "Normal Pulled Container image \"tool:1\" already present on machine",
            "Normal Created Container created",
            "Normal Started Container started",
        ];
        assert_eq!(told(nothing.clone(), running.clone()), begun);
        assert!(told(running.clone(), running.clone()).is_empty(), "what was told is not told again");
        let ended = json!({"containerID": "terrane://u.main.0", "state": {"terminated": {"exitCode": 1}}});
        assert_eq!(told(nothing.clone(), ended.clone()), begun, "it ended before anybody looked");
        let back_off = "back-off 10s restarting failed container=main pod=p_ns(u)";
        let crashing = json!({"containerID": "terrane://u.main.0", "lastState": ended["state"],
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}});
        assert_eq!(
            told(ended, crashing.clone()),
            ["Warning BackOff Back-off restarting failed container main in pod p_ns(u)"]
        );
        assert!(told(crashing.clone(), crashing).is_empty());
        let unknown = json!({"containerID": "terrane://u.main.0", "state": {"terminated": {"exitCode": 128,
            "reason": "StartError", "message": "exec: \"x\": executable file not found in $PATH"}}});
        assert_eq!(
            told(nothing, unknown).last().unwrap(),
            "Warning Failed Error: exec: \"x\": executable file not found in $PATH"
        );
    }

    #[test]
    fn what_keeps_a_container_from_starting_is_told_once() {
        let waiting = |reason: &str, message: &str| json!({"state": {"waiting": {"reason": reason, "message": message}}});
        for (reason, message, expected) in [
            (
                "ErrImagePull",
                "not found",
                [
                    "Warning Failed Failed to pull image \"tool:1\": not found",
                    "Warning Failed Error: ErrImagePull",
                ],
            ),
            (
                "ImagePullBackOff",
                "Back-off pulling image \"tool:1\": ErrImagePull: not found",
                [
                    "Normal BackOff Back-off pulling image \"tool:1\"",
                    "Warning Failed Error: ImagePullBackOff",
                ],
            ),
            (
                "ErrImageNeverPull",
                "Container image \"tool:1\" is not present with pull policy of Never",
                [
                    "Warning ErrImageNeverPull Container image \"tool:1\" is not present with pull policy of Never",
                    "Warning Failed Error: ErrImageNeverPull",
                ],
            ),
            (
                "InvalidImageName",
                "Failed to apply default image tag",
                [
                    "Warning InspectFailed Failed to apply default image tag",
                    "Warning Failed Error: InvalidImageName",
                ],
            ),
            (
                "CreateContainerConfigError",
                "secret \"later\" not found",
                [
                    "Normal Pulled Container image \"tool:1\" already present on machine",
                    "Warning Failed Error: secret \"later\" not found",
                ],
            ),
        ] {
            assert_eq!(told(json!({}), waiting(reason, message)), expected);
            assert!(told(waiting(reason, message), waiting(reason, message)).is_empty());
        }
        assert!(told(json!({}), waiting("PodInitializing", "")).is_empty());
    }
}
