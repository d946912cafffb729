//! One watch of a kind, however many listen. An API server then sends each change once, and it is read once. What a listener hears it
//! hears in order; an interrupted watch is told of in the log alone, for it goes on by itself.
//!
//! Each listener says what of an object concerns it (see [`crate::concern`]). It hears of an object when it first sees it, when that
//! changes, and when the object is gone: most changes are our own words, and a look at them would find nothing to do.
//!
//! **Of what went while a watch was too old to go on, nobody hears**: the list that follows has no word on it. Whoever waits for such an object looks
//! at all that it knows (`anew`). A watch that fell silent, as over a connection that only seems to be there, is given up by `kube`'s watcher
//! 5 seconds after the API should have ended it, and goes on from what was heard last.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use engine::shard::Shard;
use futures::channel::mpsc;
use futures::{SinkExt, Stream, StreamExt, future, stream};
use kube::core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt};
use kube::runtime::controller::Controller;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::readable::{self, Kind};
use crate::scope::Namespaces;

/// Changes that a listener may be behind. A controller takes in what it hears even while it can begin no more work, so none is for long.
const BEHIND: usize = 64;

/// What of an object concerns a listener, as one number: as long as it stays the same there is nothing to hear.
pub(crate) type Concern<K> = fn(&K) -> u64;

/// What is kept in memory of an object that is reconciled: its name. A fleet has many objects, most of them at rest, and what decides is
/// read from the API anyway.
pub(crate) type Handle<K> = PartialObjectMeta<K>;

/// Lets go of the names of objects that nothing is left to do about. One that changes all the same is heard of again.
pub(crate) struct Forget<K>(mpsc::UnboundedSender<Handle<K>>);

impl<K: Kind> Forget<K> {
    pub(crate) fn forget(&self, object: &Handle<K>) {
        // A closed channel means that the controller has stopped, and all is forgotten.
        let _ = self.0.unbounded_send(object.clone());
    }
}

type Beside<K> = Box<dyn Fn(&K) + Send + Sync>;
/// The namespace that an object serves.
type Home<K> = Box<dyn for<'a> Fn(&'a K) -> &'a str + Send + Sync>;

pub(crate) struct Feed<K> {
    client: Client,
    namespaces: Namespaces,
    shard: Shard,
    /// Told of objects that are another shard's.
    beside: Option<Beside<K>>,
    home: Home<K>,
    config: watcher::Config,
    events: Arc<Events>,
    listeners: Vec<mpsc::Sender<Event<K>>>,
    /// Told when everything was told anew.
    again: Vec<mpsc::UnboundedSender<()>>,
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
            home: Box::new(|object| object.meta().namespace.as_deref().unwrap_or_default()),
            config,
            events: Arc::clone(events),
            listeners: Vec::new(),
            again: Vec::new(),
        }
    }

    /// Has another listener for objects that appear, change or go in another shard than this feed's.
    pub(crate) fn with_beside(self, tell: impl Fn(&K) + Send + Sync + 'static) -> Self {
        Self { beside: Some(Box::new(tell)), ..self }
    }

    /// Counts objects to the shard of the namespace that they serve, where that is not their own.
    pub(crate) fn with_home(self, home: impl for<'a> Fn(&'a K) -> &'a str + Send + Sync + 'static) -> Self {
        Self { home: Box::new(home), ..self }
    }

    /// A controller for the objects of the kind, which it knows by name; and how it forgets those that are at rest for good.
    pub(crate) fn controller(&mut self, concern: Concern<K>) -> (Controller<Handle<K>>, Forget<K>) {
        let (reader, writer) = reflector::store();
        let handles = heard(self.listen(), concern).map(|event| event.map(handles));
        let (forget, forgotten) = mpsc::unbounded();
        let handles = stream::select(handles, forgotten.map(|handle| Ok(Event::Delete(handle))));
        (Controller::for_stream(reflector(writer, handles).applied_objects(), reader), Forget(forget))
    }

    /// A controller for a kind of which there are few objects. Its store has all of each.
    pub(crate) fn whole_controller(&mut self, concern: Concern<K>) -> Controller<K> {
        let (reader, writer) = reflector::store();
        let objects = heard(reflector(writer, self.listen()), concern).applied_objects();
        Controller::for_stream(objects, reader)
    }

    /// Objects whose change concerns the listener, and those that are gone.
    pub(crate) fn touched(
        &mut self,
        concern: Concern<K>,
    ) -> impl Stream<Item = Result<K, watcher::Error>> + Send + use<K> {
        heard(self.listen(), concern).touched_objects()
    }

    /// Everything that happens to the objects.
    pub(crate) fn listen(&mut self) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        self.listeners.push(sender);
        receiver.map(Ok)
    }

    /// Each time when all objects were told anew, which says nothing of those that went meanwhile.
    pub(crate) fn anew(&mut self) -> impl Stream<Item = ()> + Send + use<K> {
        let (sender, receiver) = mpsc::unbounded();
        self.again.push(sender);
        receiver
    }

    /// Watches until told to stop. O(listeners) a change.
    pub(crate) async fn work(mut self, stop: CancellationToken) {
        let mut watch = readable::watch(&self.client, &self.namespaces, self.config, &self.events);
        let telling = async {
            let mut is_listed = false;
            while let Some(change) = watch.next().await {
                match change {
                    Ok(event) => match stranger(&event, self.shard, &self.home) {
                        None => {
                            tell(&mut self.listeners, &event).await;
                            if matches!(event, Event::InitDone) && std::mem::replace(&mut is_listed, true) {
                                // One that is gone has ended its work and misses nothing.
                                self.again.iter().for_each(|again| drop(again.unbounded_send(())));
                            }
                        }
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

/// Leaves out what does not concern. Remembers two numbers an object; a watch that starts over tells of all of them again.
fn heard<K: Kind, E>(
    events: impl Stream<Item = Result<Event<K>, E>>,
    concern: Concern<K>,
) -> impl Stream<Item = Result<Event<K>, E>> {
    let mut known: HashMap<u64, u64> = HashMap::new();
    // Seeded by chance, so that nobody can choose names that are taken for each other.
    let hasher = RandomState::new();
    let place = move |object: &K| hasher.hash_one((object.namespace(), object.name_any()));
    events.filter(move |event| {
        let concerns = match event {
            Ok(Event::Init) => {
                known.clear();
                true
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                let now = version(object, concern);
                known.insert(place(object), now) != Some(now)
            }
            Ok(Event::Delete(object)) => {
                known.remove(&place(object));
                true
            }
            Ok(Event::InitDone) | Err(_) => true,
        };
        future::ready(concerns)
    })
}

/// One number for the object that bears a name now, and what of it concerns.
fn version<K: Kind>(object: &K, concern: Concern<K>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (object.meta().uid.as_deref(), concern(object)).hash(&mut hasher);
    hasher.finish()
}

fn handles<K: Kind>(event: Event<K>) -> Event<Handle<K>> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(handle(&object)),
        Event::Apply(object) => Event::Apply(handle(&object)),
        Event::Delete(object) => Event::Delete(handle(&object)),
    }
}

fn handle<K: Kind>(object: &K) -> Handle<K> {
    let meta = object.meta();
    let (name, namespace, uid) = (meta.name.clone(), meta.namespace.clone(), meta.uid.clone());
    ObjectMeta { name, namespace, uid, ..ObjectMeta::default() }.into_request_partial()
}

/// The object of an event, if it is another shard's.
fn stranger<'a, K: Kind>(event: &'a Event<K>, shard: Shard, home: &Home<K>) -> Option<&'a K> {
    match event {
        Event::Init | Event::InitDone => None,
        Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) => {
            (!shard.holds(home(object))).then_some(object)
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
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use kube::runtime::controller::Action;
    use serde_json::{Value, json};

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

    /// What a watch of the scripted API tells.
    enum Told {
        /// Lines, and then nothing more without an end.
        Silent(String),
        /// Lines, and then the connection breaks.
        Broken(String),
        /// Lines, and then an end.
        Ended(String),
    }

    /// An API that answers lists and watches with these, one after the other; with what was asked of it.
    fn scripted(lists: Vec<Value>, watches: Vec<Told>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (notes, lists, watches) =
            (Arc::clone(&asked), Mutex::new(lists.into_iter()), Mutex::new(watches.into_iter()));
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let of = |name: &str| {
                let mut parts = query.split('&').filter_map(|part| part.split_once('='));
                parts.find(|(key, _)| *key == name).map_or("-", |(_, value)| value).to_owned()
            };
            let body = if of("watch") == "true" {
                let (from, limit) = (of("resourceVersion"), of("timeoutSeconds"));
                notes.lock().unwrap().push(format!("watch from {from} for {limit} s"));
                let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                let (lines, rest) = match watches.lock().unwrap().next().expect("another watch") {
                    Told::Silent(lines) => (lines, stream::pending().boxed()),
                    Told::Broken(lines) => (lines, stream::iter([Err(broken)]).boxed()),
                    Told::Ended(lines) => (lines, stream::empty().boxed()),
                };
                axum::body::Body::from_stream(stream::iter([Ok(lines)]).chain(rest))
            } else {
                notes.lock().unwrap().push("list".to_owned());
                axum::body::Body::from(lists.lock().unwrap().next().expect("another list").to_string())
            };
            future::ready(Ok::<_, std::convert::Infallible>(Response::new(body)))
        });
        (Client::new(service, "default"), asked)
    }

    fn pod_at(name: &str, version: u32) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": "default", "uid": name, "resourceVersion": version.to_string() } })
    }

    fn list_at(version: u32, items: &[Value]) -> Value {
        json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": version.to_string() }, "items": items })
    }

    fn line(kind: &str, object: &Value) -> String {
        format!("{}\n", json!({ "type": kind, "object": object }))
    }

    /// Any change.
    fn of_version(pod: &Pod) -> u64 {
        pod.resource_version().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_watch_that_breaks_is_too_old_or_falls_silent_goes_on_where_it_was_and_says_what_it_may_have_missed()
     {
        let gone = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                           "message": "too old resource version", "reason": "Expired", "code": 410 });
        let half = line("ADDED", &pod_at("b", 3)).split_at(30).0.to_owned();
        let (client, asked) = scripted(
            vec![list_at(1, &[]), list_at(10, &[pod_at("b", 3), pod_at("c", 9)])],
            vec![
                Told::Broken(line("ADDED", &pod_at("a", 2)) + &half),
                Told::Ended(line("ADDED", &pod_at("b", 3)) + &line("ERROR", &gone)),
                // Nothing more comes, no bookmark either.
                Told::Silent(line("MODIFIED", &pod_at("c", 11))),
                Told::Silent(line("DELETED", &pod_at("c", 12))),
            ],
        );
        // The API is asked to end it after a second, and does not.
        let (config, events) = (watcher::Config::default().timeout(1), Arc::default());
        let mut feed = Feed::<Pod>::new(&client, &Namespaces::All, Shard::WHOLE, config, &events);
        let heard = feed.touched(of_version).take(6).collect::<Vec<_>>();
        let anew = feed.anew().collect::<Vec<()>>();
        let stop = CancellationToken::new();
        let listening = async {
            let heard = heard.await;
            stop.cancel();
            heard
        };
        let (heard, (), anew) = tokio::join!(listening, feed.work(stop.clone()), anew);
        let names: Vec<String> = heard.into_iter().map(|pod| pod.unwrap().name_any()).collect();
        assert_eq!(names, ["a", "b", "b", "c", "c", "c"]);
        assert_eq!(anew.len(), 1, "a is gone, of which nothing was told");
        let expected = ["list", "watch from 1", "watch from 2", "list", "watch from 10", "watch from 11"];
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), expected.len(), "{asked:?}");
        assert!(asked.iter().zip(expected).all(|(asked, expected)| asked.starts_with(expected)), "{asked:?}");
    }

    #[tokio::test]
    async fn every_watch_is_one_that_the_api_is_asked_to_end() {
        let (client, asked) =
            scripted(vec![list_at(1, &[])], vec![Told::Silent(line("ADDED", &pod_at("a", 2)))]);
        let (config, events) = (watcher::Config::default().any_semantic(), Arc::default());
        let mut feed = Feed::<Pod>::new(&client, &Namespaces::All, Shard::WHOLE, config, &events);
        let mut heard = Box::pin(feed.touched(of_version));
        let stop = CancellationToken::new();
        tokio::select! {
            _ = heard.next() => {}
            () = feed.work(stop) => {}
        }
        assert_eq!(
            *asked.lock().unwrap(),
            ["list", "watch from 1 for 290 s"],
            "a client gives it up 5 s later"
        );
    }

    fn labelled(name: &str, uid: &str, label: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": uid, "labels": { "of": label } },
        }))
        .unwrap()
    }

    fn of_label(pod: &Pod) -> u64 {
        pod.labels().get("of").map_or(0, |label| label.len().try_into().unwrap())
    }

    #[tokio::test]
    async fn a_listener_hears_of_what_is_new_what_changed_for_it_and_what_is_gone() {
        let (one, same, other) =
            (labelled("a", "1", "x"), labelled("a", "1", "y"), labelled("a", "1", "long"));
        let again = labelled("a", "2", "long");
        let told = [
            Event::Init,
            Event::InitApply(one.clone()),
            Event::InitDone,
            Event::Apply(same.clone()),
            Event::Apply(other.clone()),
            Event::Apply(other.clone()),
            Event::Delete(other.clone()),
            Event::Apply(other.clone()),
            Event::Apply(again.clone()),
            Event::Init,
            Event::InitApply(again.clone()),
            Event::InitDone,
        ];
        let told = futures::stream::iter(told.map(Ok::<_, std::convert::Infallible>));
        let heard: Vec<Pod> = heard(told, of_label)
            .filter_map(|event| {
                future::ready(match event.unwrap() {
                    Event::InitApply(pod) | Event::Apply(pod) | Event::Delete(pod) => Some(pod),
                    Event::Init | Event::InitDone => None,
                })
            })
            .collect()
            .await;
        let new_changed_gone_and_back = [one, other.clone(), other.clone(), other];
        let another_of_the_same_name_and_once_more = [again.clone(), again];
        assert_eq!(
            heard,
            [&new_changed_gone_and_back[..], &another_of_the_same_name_and_once_more[..]].concat()
        );
    }

    #[tokio::test]
    async fn a_controller_keeps_names_and_forgets_what_it_is_told_to() {
        let (client, _) = api();
        let (config, events) = (watcher::Config::default(), Arc::default());
        let mut feed = Feed::<Pod>::new(&client, &Namespaces::All, Shard::WHOLE, config, &events);
        let (controller, forget) = feed.controller(of_label);
        let store = controller.store();
        let running = controller.run(
            |_, _| future::ready(Ok::<_, std::convert::Infallible>(Action::await_change())),
            |_, _, _| Action::await_change(),
            Arc::new(()),
        );
        let mut running = std::pin::pin!(running);
        let told = [labelled("a", "1", "x"), labelled("b", "2", "x")];
        tell(&mut feed.listeners, &Event::Init).await;
        for pod in told {
            tell(&mut feed.listeners, &Event::InitApply(pod)).await;
        }
        tell(&mut feed.listeners, &Event::InitDone).await;
        for _ in 0..2 {
            running.next().await.unwrap().unwrap();
        }
        let mut kept = store.state();
        kept.sort_by_key(|kept| kept.name_any());
        let name = |name: &str, uid: &str| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let metadata: Vec<&ObjectMeta> = kept.iter().map(|kept| &kept.metadata).collect();
        assert_eq!(metadata, [&name("a", "1"), &name("b", "2")], "no labels, nothing else");

        forget.forget(&kept[0]);
        // Whatever comes next is taken in after what was there before.
        tell(&mut feed.listeners, &Event::Apply(labelled("b", "2", "longer"))).await;
        running.next().await.unwrap().unwrap();
        while store.len() > 1 {
            tokio::select! {
                _ = running.next() => {}
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(store.state().first().map(|kept| kept.name_any()).as_deref(), Some("b"));
        tell(&mut feed.listeners, &Event::Apply(labelled("a", "1", "longer"))).await;
        running.next().await.unwrap().unwrap();
        assert_eq!(store.len(), 2, "one that changes all the same is looked at again");
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
        let all: Concern<TerraformApproval> = |approval| u64::from(approval.name_any() == "a");
        let heard =
            [feed.touched(all), feed.touched(all)].map(|listener| listener.take(2).collect::<Vec<_>>());
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
