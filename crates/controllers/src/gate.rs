//! Who is looked at next, where more objects of a kind want it than are looked at at once. Namespaces take turns, and within one who came
//! first goes first: a namespace with thousands of layers keeps none of the others waiting.
//!
//! The queue of a controller has no order among those that are due. So it hands over everything at once, whoever finds no room is put in
//! line and let go, and is called when it is its turn.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Wake;
use engine::queue::Named;
use futures::channel::mpsc;
use futures::future::{self, BoxFuture, Ready};
use kube::ResourceExt;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;

use crate::feed::Handle;
use crate::readable::Kind;
use crate::{Context, Error, Waiting, log, measured};

/// Objects of one kind that are looked at at the same time. A look waits for the API only, so a few do.
const INSIDE: usize = 8;

type Looked<K> = Result<(ObjectRef<Handle<K>>, Action), controller::Error<Error, watcher::Error>>;
type Calls<K> = mpsc::UnboundedReceiver<ObjectRef<Handle<K>>>;

pub(crate) struct Gate<K: Kind> {
    state: Mutex<State>,
    call: mpsc::UnboundedSender<ObjectRef<Handle<K>>>,
}

/// As long as somebody is in line, as many are inside or called as may be.
#[derive(Debug, Default)]
struct State {
    inside: usize,
    /// Who was called and has not come yet: their place is kept.
    called: HashSet<Named>,
    in_line: HashSet<Named>,
    /// By namespace.
    lines: BTreeMap<String, VecDeque<String>>,
    /// The namespace that had the last turn.
    last: String,
}

/// Kept while an object is looked at.
struct Inside<'a, K: Kind>(&'a Gate<K>);

impl<K: Kind> Drop for Inside<'_, K> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inside = state.inside.saturating_sub(1);
        self.0.call_next(&mut state);
    }
}

impl<K: Kind> Gate<K> {
    /// A gate, and those that it calls.
    pub(crate) fn new() -> (Arc<Self>, Calls<K>) {
        let (call, calls) = mpsc::unbounded();
        (Arc::new(Self { state: Mutex::default(), call }), calls)
    }

    /// A reconcile of those that are let in, one after the other.
    pub(crate) fn guarding<F>(
        self: &Arc<Self>,
        reconcile: impl Fn(Arc<Handle<K>>, Arc<Context>) -> F,
    ) -> impl FnMut(Arc<Handle<K>>, Arc<Context>) -> BoxFuture<'static, Result<Action, Error>>
    where
        F: Future<Output = Result<Wake, Error>> + Send + 'static,
        Waiting: for<'a> From<&'a Handle<K>>,
    {
        let gate = Arc::clone(self);
        move |object, context| {
            let (gate, who) = (Arc::clone(&gate), Waiting::from(&*object));
            let name = Named { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
            let reconcile = reconcile(object, Arc::clone(&context));
            Box::pin(async move {
                match gate.enter(name) {
                    Some(_inside) => measured(who, context, reconcile).await,
                    None => Ok(Action::await_change()),
                }
            })
        }
    }

    /// What is said of each look at an object.
    pub(crate) fn logging(
        self: &Arc<Self>,
        kind: &'static str,
    ) -> impl FnMut(Looked<K>) -> Ready<()> + use<K> {
        let gate = Arc::clone(self);
        move |result| {
            if let Err(controller::Error::ObjectNotFound(gone)) = &result {
                let namespace = gone.namespace.clone().unwrap_or_default();
                gate.gone(&Named { namespace, name: gone.name.clone() });
            }
            log(kind, result);
            future::ready(())
        }
    }

    /// Lets the object in, or else puts it in line to be called. O(log n) in the namespaces that wait.
    fn enter(&self, who: Named) -> Option<Inside<'_, K>> {
        let mut state = self.state();
        if state.in_line.contains(&who) {
            return None;
        }
        if state.called.remove(&who) || state.inside + state.called.len() < INSIDE {
            state.inside += 1;
            return Some(Inside(self));
        }
        state.lines.entry(who.namespace.clone()).or_default().push_back(who.name.clone());
        state.in_line.insert(who);
        None
    }

    /// Whoever was called and is gone does not come.
    fn gone(&self, who: &Named) {
        let mut state = self.state();
        if state.called.remove(who) {
            self.call_next(&mut state);
        }
    }

    fn call_next(&self, state: &mut State) {
        let Some(next) = state.next() else { return };
        // A closed channel means that the controller has stopped; then nobody waits.
        let _ = self.call.unbounded_send(ObjectRef::new(&next.name).within(&next.namespace));
        state.called.insert(next);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the first of the next namespace out of the line. O(log n) in the namespaces that wait.
    fn next(&mut self) -> Option<Named> {
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let following = self.lines.range::<str, _>(after).next();
        let namespace = following.or_else(|| self.lines.iter().next())?.0.clone();
        let line = self.lines.get_mut(&namespace)?;
        let name = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&namespace);
        }
        self.last.clone_from(&namespace);
        let next = Named { namespace, name };
        self.in_line.remove(&next);
        // All objects come at a start, and the room for them would be kept for ever.
        if self.in_line.is_empty() {
            self.in_line.shrink_to_fit();
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use api::TerraformLayer;
    use proptest::prelude::*;

    use super::*;

    fn named(namespace: &str, name: &str) -> Named {
        Named { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn gate() -> (Arc<Gate<TerraformLayer>>, Calls<TerraformLayer>) {
        Gate::new()
    }

    fn called(calls: &mut Calls<TerraformLayer>) -> Option<Named> {
        let object = calls.try_recv().ok()?;
        Some(named(&object.namespace.unwrap(), &object.name))
    }

    #[test]
    fn namespaces_take_turns_and_who_came_first_goes_first() {
        let (gate, mut calls) = gate();
        let mut inside: Vec<_> =
            (0..INSIDE).map(|one| gate.enter(named("large", &format!("in-{one}"))).unwrap()).collect();
        for one in 0..100 {
            assert!(gate.enter(named("large", &format!("{one:03}"))).is_none());
        }
        for namespace in ["small", "another"] {
            assert!(gate.enter(named(namespace, "a")).is_none());
            assert!(gate.enter(named(namespace, "b")).is_none());
        }
        assert!(gate.enter(named("small", "a")).is_none(), "in line already");
        let mut order = Vec::new();
        while let Some(one) = inside.pop() {
            drop(one);
            order.extend(called(&mut calls).map(|who| format!("{}/{}", who.namespace, who.name)));
        }
        let expected = [
            "another/a",
            "large/000",
            "small/a",
            "another/b",
            "large/001",
            "small/b",
            "large/002",
            "large/003",
        ];
        assert_eq!(order, expected);
        assert!(gate.enter(named("small", "late")).is_none(), "their places are kept");
        assert!(gate.enter(named("small", "a")).is_some());
    }

    #[test]
    fn whoever_is_gone_when_it_is_called_makes_room() {
        let (gate, mut calls) = gate();
        let mut inside: Vec<_> =
            (0..INSIDE).map(|one| gate.enter(named("a", &format!("in-{one}"))).unwrap()).collect();
        assert!(gate.enter(named("a", "deleted")).is_none());
        assert!(gate.enter(named("a", "next")).is_none());
        inside.pop();
        assert_eq!(called(&mut calls), Some(named("a", "deleted")));
        gate.gone(&named("a", "stranger"));
        assert_eq!(called(&mut calls), None);
        gate.gone(&named("a", "deleted"));
        assert_eq!(called(&mut calls), Some(named("a", "next")));
    }

    proptest! {
        /// Whatever comes, goes and vanishes: there are never too many inside, and all that stay are let in in the end.
        #[test]
        fn nobody_is_forgotten(wishes in prop::collection::vec((0_u8..4, 0_u8..30, any::<bool>()), 1..200)) {
            let (gate, mut calls) = gate();
            let mut inside = Vec::new();
            let mut waiting = HashSet::new();
            for (namespace, name, ends) in wishes {
                let who = named(&namespace.to_string(), &name.to_string());
                match gate.enter(who.clone()) {
                    Some(entered) => {
                        waiting.remove(&who);
                        inside.push(entered);
                    }
                    None => drop(waiting.insert(who)),
                }
                prop_assert!(inside.len() <= INSIDE);
                if ends {
                    inside.pop();
                }
            }
            inside.clear();
            while let Some(who) = called(&mut calls) {
                if who.name == "7" {
                    gate.gone(&who);
                } else {
                    // One that looked by itself after it was called is let in, and finds nothing kept for it later.
                    drop(gate.enter(who.clone()));
                }
                waiting.remove(&who);
            }
            prop_assert!(waiting.is_empty(), "{waiting:?}");
        }
    }
}
