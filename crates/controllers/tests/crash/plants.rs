//! Six bugs, planted on the way between the controllers and what they talk to, and each caught: a check that catches nothing
//! proves nothing.

use std::sync::{Arc, Mutex};

use api::label;
use engine::leader::LEASE;
use http::StatusCode;
use serde_json::Value;
use testkit::faults::{Fault, Passing, Refusal, Seam, Site, Tamper};

use crate::workloads::{HAUNTED, Workload, named};
use crate::{Trial, tried};

fn caught(
    workload: Workload,
    actor: &'static str,
    plant: Arc<dyn Tamper>,
    fault: Option<(Site, Fault)>,
) -> String {
    let trial = Trial { workload, fault, plant: Some((actor, plant)) };
    tried(&trial).complaints.join("\n")
}

/// Each pod of an apply is called something else. (A plan's would be missed, and followed by another attempt.)
#[derive(Debug, Default)]
struct NameNotDerived(Mutex<u32>);

impl Tamper for NameNotDerived {
    fn request(&self, passing: &mut Passing) {
        let mut pod = passing.json();
        let is_apply = pod["metadata"]["labels"][label::ACTION] == "apply";
        if passing.verb == "POST" && passing.path.contains("/pods") && is_apply {
            let mut count = self.0.lock().unwrap();
            *count += 1;
            pod["metadata"]["name"] = format!("runner-{count}").into();
            passing.body = pod.to_string().into_bytes();
        }
    }
}

#[test]
fn a_name_that_is_not_derived_is_caught() {
    let found = caught(named("plan and apply"), "controllers", Arc::new(NameNotDerived::default()), None);
    assert!(found.contains("S17:"), "{found}");
    assert!(found.contains("S18:"), "{found}");
}

/// Updates overwrite whatever is there.
#[derive(Debug)]
struct NoPrecondition;

impl Tamper for NoPrecondition {
    fn request(&self, passing: &mut Passing) {
        if passing.verb == "PUT" && passing.path.contains("/terraformruns/") {
            let mut object = passing.json();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            passing.body = object.to_string().into_bytes();
        }
    }
}

#[test]
fn a_missing_precondition_is_caught() {
    let found = caught(named("plan and apply"), "controllers", Arc::new(NoPrecondition), None);
    assert!(found.contains("S16:"), "{found}");
}

/// A result that cannot be read is taken for one that is not there.
#[derive(Debug)]
struct UnknownIsAbsent;

impl Tamper for UnknownIsAbsent {
    fn answer(&self, passing: &Passing, status: &mut StatusCode) {
        if passing.verb == "GET" && passing.path.ends_with("/result") && status.is_server_error() {
            *status = StatusCode::NOT_FOUND;
        }
    }
}

#[test]
fn unknown_read_as_absent_is_caught() {
    let site = Site {
        actor: "controllers".to_owned(),
        seam: Seam::Datastore,
        verb: "GET".to_owned(),
        target: "runs/result".to_owned(),
        occurrence: 1,
    };
    let fault = Some((site, Fault::Refuse(Refusal::Unavailable)));
    let workload = named("plan and apply");
    let found = caught(workload, "controllers", Arc::new(UnknownIsAbsent), fault.clone());
    assert!(found.contains("S5:"), "{found}");
    let honest = tried(&Trial { workload, fault, plant: None });
    assert!(honest.complaints.is_empty(), "{:?}", honest.complaints);
}

/// Another run takes the lock before the result of its holder is written down.
#[derive(Debug, Default)]
struct TakenTooSoon(Mutex<Option<(String, Value)>>);

impl Tamper for TakenTooSoon {
    fn before(&self, passing: &Passing) -> Vec<Passing> {
        let ends = passing.json()["status"]["finishedAt"].is_string();
        if !(passing.verb == "PUT" && passing.path.contains("/terraformruns/") && ends) {
            return Vec::new();
        }
        let Some((path, mut lease)) = self.0.lock().unwrap().take() else { return Vec::new() };
        lease["spec"]["holderIdentity"] = "another".into();
        lease["spec"]["leaseTransitions"] = 2.into();
        let body = lease.to_string().into_bytes();
        vec![Passing { verb: "PUT".to_owned(), path, headers: passing.headers.clone(), body }]
    }

    fn seen(&self, passing: &Passing, answer: &Value) {
        if passing.path.contains("/leases") && answer["spec"]["holderIdentity"].is_string() {
            let name = answer["metadata"]["name"].as_str().unwrap_or_default();
            let collection = passing.path.split('?').next().unwrap_or_default();
            let collection = collection.split("/leases").next().unwrap_or_default();
            *self.0.lock().unwrap() = Some((format!("{collection}/leases/{name}"), answer.clone()));
        }
    }
}

#[test]
fn a_lock_taken_from_a_holder_whose_result_is_not_recorded_is_caught() {
    let found = caught(named("plan and apply"), "controllers", Arc::new(TakenTooSoon::default()), None);
    assert!(found.contains("S1: state-"), "{found}");
}

/// Writes of states pass as if nobody looked at their fence.
#[derive(Debug)]
struct FenceUnchecked;

impl Tamper for FenceUnchecked {
    fn request(&self, passing: &mut Passing) {
        if passing.verb == "POST" && passing.path.starts_with("/v1/state/") && passing.path.contains("?ID=") {
            let unfenced = http::HeaderValue::from_static("Bearer controller");
            passing.headers.insert(http::header::AUTHORIZATION, unfenced);
        }
    }
}

#[test]
fn a_fence_that_is_not_checked_is_caught() {
    let found = caught(HAUNTED, "runner", Arc::new(FenceUnchecked), None);
    assert!(found.contains("S1b:"), "{found}");
}

/// A candidate takes the Lease of a leader that is at work.
#[derive(Debug, Default)]
struct Usurper(Mutex<Option<()>>);

impl Tamper for Usurper {
    fn before(&self, passing: &Passing) -> Vec<Passing> {
        let path = passing.path.split('?').next().unwrap_or_default().to_owned();
        let looks = passing.verb == "GET" && path.ends_with(LEASE);
        if !looks || self.0.lock().unwrap().replace(()).is_some() {
            return Vec::new();
        }
        let taken = serde_json::json!({ "spec": { "holderIdentity": "rival", "leaseTransitions": 7 } });
        let mut headers = passing.headers.clone();
        let merge = http::HeaderValue::from_static("application/merge-patch+json");
        headers.insert(http::header::CONTENT_TYPE, merge);
        vec![Passing { verb: "PATCH".to_owned(), path, headers, body: taken.to_string().into_bytes() }]
    }
}

#[test]
fn a_lease_taken_from_a_leader_at_work_is_caught() {
    let found = caught(named("two leaders"), "rival", Arc::new(Usurper::default()), None);
    assert!(found.contains("L8: controllers"), "{found}");
}
