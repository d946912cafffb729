//! Who waits for a free runner, in the order of their starts: computed when somebody looks, for it moves with time.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use engine::queue::{Busy, Named, Waiting, order};
use jiff::Timestamp;

use crate::answers::digested;
use crate::may::Caller;
use crate::views::{Queue, Queued};
use crate::{Refusal, Service};

/// Those that wait for a free runner, in the order of their starts
#[utoipa::path(
    get, operation_id = "getQueue", tag = "runs",
    path = "/api/v1/queue",
    responses((status = 200, body = Queue), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn list(
    Caller(person): Caller,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (runs, layers) = (service.runs.all().await?, service.layers.all().await?);
    // O(runs and layers).
    let repositories: BTreeMap<_, &str> =
        layers.iter().map(|(key, layer)| (key.clone(), layer.repository.as_str())).collect();
    let repository = |namespace: &str, layer: &str| Named {
        namespace: namespace.to_owned(),
        name: repositories.get(&(namespace.into(), layer.into())).copied().unwrap_or_default().to_owned(),
    };
    let mut busy = Busy::new();
    let mut waiting = Vec::new();
    for (_, run) in &runs {
        if run.at_work {
            *busy.entry(Some(repository(&run.namespace, &run.layer))).or_default() += 1;
        } else if let Some(one) = &run.waiting {
            waiting
                .push(Waiting { repository: repository(&run.namespace, &run.layer), ..Waiting::clone(one) });
        }
    }
    let places: BTreeMap<_, usize> = order(&waiting, &busy, Timestamp::now())
        .into_iter()
        .zip(1..)
        .map(|(one, place)| ((one.run.namespace.as_str().into(), one.run.name.as_str().into()), place))
        .collect();
    let working = runs.iter().filter(|(_, run)| run.at_work).count();
    let queued = runs.into_iter().filter(|(key, _)| places.contains_key(key)).collect();
    let visible = service.visible(&person, "terraformruns", queued).await?;
    let mut items: Vec<Queued> = visible
        .into_iter()
        .map(|(key, run)| Queued {
            place: places.get(&key).copied().unwrap_or_default(),
            namespace: run.namespace.to_string(),
            run: run.name.to_string(),
            layer: run.layer.to_string(),
            action: run.action.as_str().to_owned(),
            waits_for: run.message.to_string(),
            since: run.created_at.map(|at| at.to_string()).unwrap_or_default(),
        })
        .collect();
    items.sort_by_key(|one| one.place);
    Ok(digested(&headers, &Queue { waiting: places.len(), working, items }))
}
