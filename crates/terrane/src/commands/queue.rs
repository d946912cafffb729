//! Where a queued run stands: computed from what the API shows when somebody looks. It moves with time, so no status holds it.

use std::collections::BTreeMap;

use anyhow::Context;
use api::{TerraformLayer, TerraformRun, condition};
use engine::queue::{Busy, Holds, Named, Waiting, order};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::find;
use crate::arguments::Kind;

/// The reason of a run that waits for a free runner.
const QUEUED: &str = "Queued";
/// The reasons of a layer that a run works for, queued or not.
const AT_WORK: [&str; 2] = [engine::layer::PLANNING, engine::layer::APPLYING];

/// Everybody who queues, in the order of their starts.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: BTreeMap<Named, usize>,
    whose: Whose,
}

/// Whose runs could be seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Whose {
    #[default]
    Everybodys,
    /// The person may look at one namespace only.
    OfNamespace,
}

/// What may queue, and can be told where it stands.
pub(super) trait Queues {
    fn may_queue(&self) -> bool;
    /// Says in the object's own words where it stands.
    fn tell_place(&mut self, queue: &Queue);
}

/// Tells those that queue where they stand; asks the API only if there may be any.
pub(super) async fn tell_places<K: Queues>(
    client: &Client,
    namespace: &str,
    objects: &mut [K],
) -> anyhow::Result<()> {
    if objects.iter().any(Queues::may_queue) {
        let queue = Queue::read(client, namespace).await?;
        objects.iter_mut().for_each(|object| object.tell_place(&queue));
    }
    Ok(())
}

/// Where a layer's run or a run stands, for whoever waited in vain. What cannot be read is left out.
pub(super) async fn place_of(client: &Client, namespace: &str, kind: Kind, name: &str) -> Option<String> {
    let run = match kind {
        Kind::Runs => name.to_owned(),
        Kind::Layers => {
            let layer = Api::<TerraformLayer>::namespaced(client.clone(), namespace).get(name).await.ok()?;
            layer.status?.latest_runs.first()?.name.clone()
        }
        Kind::Repositories | Kind::Approvals | Kind::Repos | Kind::Terraforms => return None,
    };
    let queue = Queue::read(client, namespace).await.ok()?;
    Some(format!("its run is queued, {}", queue.place(Some(namespace.to_owned()), &run)?))
}

impl Queue {
    /// O(runs and layers that the person can see); layers only if something queues.
    async fn read(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let everything = ListParams::default();
        let (whose, runs) = match Api::<TerraformRun>::all(client.clone()).list(&everything).await {
            Ok(runs) => (Whose::Everybodys, runs.items),
            Err(kube::Error::Api(answer)) if answer.code == 403 => {
                let own = Api::<TerraformRun>::namespaced(client.clone(), namespace).list(&everything).await;
                (Whose::OfNamespace, own.context("list the runs")?.items)
            }
            Err(error) => return Err(error).context("list the runs"),
        };
        if !runs.iter().any(is_queued) {
            return Ok(Self { places: BTreeMap::new(), whose });
        }
        let layers = match whose {
            Whose::Everybodys => Api::<TerraformLayer>::all(client.clone()),
            Whose::OfNamespace => Api::<TerraformLayer>::namespaced(client.clone(), namespace),
        };
        let layers = layers.list(&everything).await.context("list the layers")?.items;
        Ok(Self::of(&runs, &layers, whose, Timestamp::now()))
    }

    fn of(runs: &[TerraformRun], layers: &[TerraformLayer], whose: Whose, now: Timestamp) -> Self {
        let named = |namespace: Option<String>, name: String| Named {
            namespace: namespace.unwrap_or_default(),
            name,
        };
        let repositories: BTreeMap<Named, String> = layers
            .iter()
            .filter_map(|layer| {
                let repository = layer.spec.repository_name()?.to_string();
                Some((named(layer.namespace(), layer.name_any()), repository))
            })
            .collect();
        let repository = |run: &TerraformRun| {
            let layer = named(run.namespace(), run.spec.layer.name.to_string());
            repositories.get(&layer).cloned().unwrap_or_default()
        };
        let mut busy = Busy::new();
        for run in runs.iter().filter(|run| is_at_work(run)) {
            *busy.entry(Some(named(run.namespace(), repository(run)))).or_default() += 1;
        }
        let waiting: Vec<Waiting> = runs
            .iter()
            .filter(|run| is_queued(run))
            .map(|run| Waiting::new(run, &repository(run), 0, Holds::Nothing))
            .collect();
        let places =
            order(&waiting, &busy, now).into_iter().zip(1..).map(|(one, place)| (one.run.clone(), place));
        Self { places: places.collect(), whose }
    }

    /// Such as `3rd of 12`.
    fn place(&self, namespace: Option<String>, run: &str) -> Option<String> {
        let name = Named { namespace: namespace.unwrap_or_default(), name: run.to_owned() };
        let place = ordinal(*self.places.get(&name)?);
        let all = self.places.len();
        Some(match self.whose {
            Whose::Everybodys => format!("{place} of {all}"),
            Whose::OfNamespace => format!("{place} of {all} in this namespace"),
        })
    }
}

impl Queues for TerraformRun {
    fn may_queue(&self) -> bool {
        is_queued(self)
    }

    fn tell_place(&mut self, queue: &Queue) {
        let Some(place) = queue.place(self.namespace(), &self.name_any()) else { return };
        let conditions = self.status.iter_mut().flat_map(|status| &mut status.conditions);
        for ready in conditions.filter(|condition| condition.type_ == "Ready") {
            ready.message = format!("{place}, {}", ready.message);
        }
    }
}

impl Queues for TerraformLayer {
    fn may_queue(&self) -> bool {
        let conditions = self.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition::find(conditions, "Ready").is_some_and(|ready| AT_WORK.contains(&ready.reason.as_str()))
    }

    fn tell_place(&mut self, queue: &Queue) {
        let namespace = self.namespace();
        let Some(status) = self.status.as_mut() else { return };
        // The run under way is the newest.
        let Some(run) = status.latest_runs.first() else { return };
        let Some(place) = queue.place(namespace, &run.name) else { return };
        status.why = status.why.take().map(|why| format!("{why}: queued, {place}"));
    }
}

impl Queues for api::TerraformRepository {
    fn may_queue(&self) -> bool {
        false
    }

    fn tell_place(&mut self, _queue: &Queue) {}
}

impl Queues for api::TerraformApproval {
    fn may_queue(&self) -> bool {
        false
    }

    fn tell_place(&mut self, _queue: &Queue) {}
}

impl Queues for api::Terraform {
    fn may_queue(&self) -> bool {
        false
    }

    fn tell_place(&mut self, _queue: &Queue) {}
}

impl Queues for api::Repo {
    fn may_queue(&self) -> bool {
        false
    }

    fn tell_place(&mut self, _queue: &Queue) {}
}

fn is_queued(run: &TerraformRun) -> bool {
    let conditions = run.status.as_ref().map_or(&[][..], |status| &status.conditions);
    !find::has_ended(run) && condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == QUEUED)
}

/// It has an attempt that has not ended.
fn is_at_work(run: &TerraformRun) -> bool {
    let last = run.status.as_ref().and_then(|status| status.attempts.last());
    !find::has_ended(run) && last.is_some_and(|attempt| attempt.finished_at.is_none())
}

fn ordinal(place: usize) -> String {
    let suffix = match (place % 10, place % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        (_, _) => "th",
    };
    format!("{place}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(name: &str, layer: &str, created: &str, ready: Option<&str>) -> TerraformRun {
        let conditions: Vec<Value> = ready
            .map(|reason| {
                json!({ "type": "Ready", "status": "False", "reason": reason, "message": "queued: at most 1", "lastTransitionTime": created })
            })
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": name, "namespace": "default", "creationTimestamp": created },
            "spec": {
                "layer": { "name": layer, "uid": "l", "revision": "b".repeat(40) }, "action": "plan", "state": "a".repeat(64),
                "trigger": { "kind": "commit", "reason": "new" },
            },
            "status": { "state": "Initial", "conditions": conditions },
        }))
        .unwrap()
    }

    fn layer(name: &str, repository: &str, newest: &str) -> TerraformLayer {
        serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name, "namespace": "default" },
            "spec": { "repository": { "name": repository }, "branch": "main", "path": name },
            "status": {
                "why": "planning bbbbbbb",
                "latestRuns": [{ "name": newest, "action": "plan", "commit": "b".repeat(40), "date": "2026-01-01T00:00:00Z", "result": "running" }],
                "conditions": [{ "type": "Ready", "status": "False", "reason": "Planning", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_place_is_told_in_the_order_of_the_engine() {
        let layers = [layer("a", "one", "a-1"), layer("b", "one", "b-1"), layer("c", "two", "c-1")];
        let mut runs = [
            run("a-1", "a", "2026-01-01T00:00:01Z", Some("Queued")),
            run("b-1", "b", "2026-01-01T00:00:02Z", Some("Queued")),
            run("c-1", "c", "2026-01-01T00:00:03Z", Some("Queued")),
            run("d-1", "c", "2026-01-01T00:00:00Z", Some("Starting")),
        ];
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let queue = Queue::of(&runs, &layers, Whose::Everybodys, now);
        // Repositories take turns.
        let place = |run: &str| queue.place(Some("default".to_owned()), run);
        assert_eq!(place("a-1").as_deref(), Some("1st of 3"));
        assert_eq!(place("c-1").as_deref(), Some("2nd of 3"));
        assert_eq!(place("b-1").as_deref(), Some("3rd of 3"));
        assert_eq!(place("d-1"), None);

        let [_, _, mut last] = layers;
        assert!(last.may_queue());
        last.tell_place(&queue);
        assert_eq!(last.status.unwrap().why.as_deref(), Some("planning bbbbbbb: queued, 2nd of 3"));
        runs[1].tell_place(&queue);
        let told = runs[1].status.as_ref().unwrap().conditions[0].message.clone();
        assert_eq!(told, "3rd of 3, queued: at most 1");

        let own = Queue::of(&runs, &[], Whose::OfNamespace, now);
        assert!(own.place(Some("default".to_owned()), "a-1").unwrap().ends_with("of 3 in this namespace"));
    }

    #[test]
    fn places_are_counted_as_people_count() {
        for (place, expected) in [
            (1, "1st"),
            (2, "2nd"),
            (3, "3rd"),
            (4, "4th"),
            (11, "11th"),
            (12, "12th"),
            (13, "13th"),
            (21, "21st"),
            (102, "102nd"),
            (111, "111th"),
        ] {
            assert_eq!(ordinal(place), expected);
        }
    }
}
