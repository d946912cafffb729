//! One watch of a kind, however many listen. An API server then sends each change once, and it is read once. What a listener hears it
//! hears in order and whole; an interrupted watch is told of in the log alone, for it goes on by itself.

use std::sync::Arc;

use engine::shard::Shard;
use futures::channel::mpsc;
use futures::{SinkExt, Stream, StreamExt};
use kube::Client;
use kube::runtime::controller::Controller;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::readable::{self, Kind};
use crate::scope::Namespaces;

/// Changes that a listener may be behind. A controller takes in what it hears even while it can begin no more work, so none is for long.
const BEHIND: usize = 64;

type Beside<K> = Box<dyn Fn(&K) + Send + Sync>;

pub(crate) struct Feed<K> {
    client: Client,
    namespaces: Namespaces,
    shard: Shard,
    /// Told of objects that are another shard's.
    beside: Option<Beside<K>>,
    config: watcher::Config,
    events: Arc<Events>,
    listeners: Vec<mpsc::Sender<Event<K>>>,
}

impl<K: Kind> Feed<K> {
    pub(crate) fn new(
        client: &Client,
        namespaces: &Namespaces,
        shard: Shard,
        config: watcher::Config,
        events: &Arc<Events>,
    ) -> Self {
        Self {
            client: client.clone(),
            namespaces: namespaces.clone(),
            shard,
            beside: None,
            config,
            events: Arc::clone(events),
            listeners: Vec::new(),
        }
    }

    /// Has another listener for objects that appear, change or go in another shard than this feed's.
    pub(crate) fn with_beside(self, tell: impl Fn(&K) + Send + Sync + 'static) -> Self {
        Self { beside: Some(Box::new(tell)), ..self }
    }

    /// A controller for the objects of the kind.
    pub(crate) fn controller(&mut self) -> Controller<K> {
        let (reader, writer) = reflector::store();
        let objects = reflector(writer, self.listen()).applied_objects();
        Controller::for_stream(objects, reader)
    }

    /// Every change of an object of the kind, its deletion included.
    pub(crate) fn touched(&mut self) -> impl Stream<Item = Result<K, watcher::Error>> + Send + use<K> {
        self.listen().touched_objects()
    }

    fn listen(&mut self) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        self.listeners.push(sender);
        receiver.map(Ok)
    }

    /// Watches until told to stop. O(listeners) a change.
    pub(crate) async fn work(mut self, stop: CancellationToken) {
        let mut watch = readable::watch(&self.client, &self.namespaces, self.config, &self.events);
        let telling = async {
            while let Some(change) = watch.next().await {
                match change {
                    Ok(event) => match stranger(&event, self.shard) {
                        None => tell(&mut self.listeners, &event).await,
                        Some(object) => {
                            if let Some(beside) = &self.beside {
                                beside(object);
                            }
                        }
                    },
                    Err(error) => {
                        tracing::warn!(kind = %K::kind(&()), %error, "the watch was interrupted and goes on");
                    }
                }
            }
        };
        stop.run_until_cancelled(telling).await;
    }
}

/// The object of an event, if it is another shard's.
fn stranger<K: Kind>(event: &Event<K>, shard: Shard) -> Option<&K> {
    match event {
        Event::Init | Event::InitDone => None,
        Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) => {
            let namespace = object.meta().namespace.as_deref().unwrap_or_default();
            (!shard.holds(namespace)).then_some(object)
        }
    }
}

async fn tell<K: Kind>(listeners: &mut [mpsc::Sender<Event<K>>], event: &Event<K>) {
    for listener in listeners {
        // One that is gone has ended its work and misses nothing.
        let _ = listener.send(event.clone()).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use std::sync::Mutex;

    use api::TerraformApproval;
    use http::{Request, Response};
    use kube::ResourceExt;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API that tells of one approval that comes and goes, and then of nothing more; with what was asked of it.
    fn api() -> (Client, Arc<Mutex<Vec<&'static str>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        let approval = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformApproval",
            "metadata": { "name": "a", "namespace": "default", "resourceVersion": "2" },
            "spec": { "layer": "network", "planSha256": "a".repeat(64), "user": "jane", "decision": "approve" },
        });
        let told = |kind| json!({ "type": kind, "object": approval }).to_string() + "\n";
        let told = told("ADDED") + &told("DELETED");
        let list = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformApprovalList",
            "metadata": { "resourceVersion": "1" }, "items": [],
        });
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut notes = notes.lock().unwrap();
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            let is_first = !notes.contains(&"watch");
            notes.push(if is_watch { "watch" } else { "list" });
            let (told, list) = (told.clone(), list.to_string());
            async move {
                match (is_watch, is_first) {
                    (false, _) => Ok::<_, std::convert::Infallible>(Response::new(list)),
                    (true, true) => Ok(Response::new(told)),
                    (true, false) => std::future::pending().await,
                }
            }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test]
    async fn one_list_and_one_watch_tell_all_listeners_of_what_came_and_went() {
        let (client, asked) = api();
        let mut feed = Feed::<TerraformApproval>::new(
            &client,
            &Namespaces::All,
            Shard::WHOLE,
            watcher::Config::default(),
            &Arc::default(),
        );
        let heard = [feed.touched(), feed.touched()].map(|listener| listener.take(2).collect::<Vec<_>>());
        let stop = CancellationToken::new();
        let listening = async {
            let heard = futures::future::join_all(heard).await;
            stop.cancel();
            heard
        };
        let (heard, ()) = tokio::join!(listening, feed.work(stop.clone()));
        for listener in heard {
            let names: Vec<String> = listener.into_iter().map(|object| object.unwrap().name_any()).collect();
            assert_eq!(names, ["a", "a"], "once when it came and once when it went");
        }
        assert_eq!(asked.lock().unwrap()[..2], ["list", "watch"]);
        assert!(!asked.lock().unwrap()[2..].contains(&"list"), "nobody asked for it all again");
    }
}
