//! Reads what is true of a pod on this machine: its record and the attempts of its containers. Changes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::api::ObjectMeta;

use super::decide::{Numbered, View, every_container};
use crate::records::{self, Attempt, PodRecord, Records};

/// One view for each container that the pod names. O(containers).
pub(super) fn views(records: &Records, pod: &Pod) -> Result<BTreeMap<String, View>, records::Error> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let mut views = BTreeMap::new();
    for container in pod.spec.iter().flat_map(every_container) {
        views.insert(container.name.clone(), view(records, uid, &container.name)?);
    }
    Ok(views)
}

fn view(records: &Records, uid: &str, container: &str) -> Result<View, records::Error> {
    let mut numbers = records.attempts(uid, container)?;
    while let Some(number) = numbers.pop() {
        let directory = records.attempt(uid, container, number);
        // A directory without an intent is what a crash left before the first record; it never ran.
        let Some(attempt) = directory.observe()? else { continue };
        let backoff = directory.intent()?.map_or(0, |intent| intent.backoff);
        let previous = match number.checked_sub(1) {
            Some(before) => records.attempt(uid, container, before).exit()?,
            None => None,
        };
        return Ok(View { current: Some(Numbered { number, backoff, attempt }), previous, blocked: None });
    }
    Ok(View::default())
}

/// A pod of which only the records are left: the API has forgotten it while the node was away.
pub(super) fn orphan(records: &Records, record: &PodRecord) -> Result<Pod, records::Error> {
    let containers = records.containers(&record.uid)?;
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(record.name.clone()),
            namespace: Some(record.namespace.clone()),
            uid: Some(record.uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: containers
                .into_iter()
                .map(|name| Container { name, ..Container::default() })
                .collect(),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// The shims that look after containers of this pod now.
pub(super) fn shims(views: &BTreeMap<String, View>) -> Vec<crate::process::Process> {
    let attempts = views.values().filter_map(|view| view.current.as_ref()).map(|current| &current.attempt);
    attempts
        .filter_map(|attempt| match attempt {
            Attempt::Running { shim, .. } => Some(*shim),
            Attempt::Starting { shim } => *shim,
            Attempt::Intended | Attempt::Lost { .. } | Attempt::Exited(_) => None,
        })
        .collect()
}
