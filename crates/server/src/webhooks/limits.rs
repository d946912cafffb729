//! How much a stranger can cost. Bodies are read for repositories that exist, a few at a time and fewer for each, and who has failed too
//! often for one is not heard for the rest of the minute. That keeps hooks of that repository from being heard too; the polls go on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Refusal;
use crate::cache::Key;

/// Bodies that are read at the same time, and of those for one repository: what they hold in memory is this many times the limit.
const AT_ONCE: usize = 8;
const OF_ONE: usize = 2;
/// How long a delivery waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many may fail for a repository within a minute.
const FAILURES: u32 = 30;
const WHILE: Duration = Duration::from_secs(60);
/// More repositories than so many are forgotten, but for those at work.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Limits {
    all: Arc<Semaphore>,
    each: Mutex<HashMap<Key, Arc<One>>>,
}

#[derive(Debug)]
struct One {
    turns: Arc<Semaphore>,
    failed: Mutex<(u32, Instant)>,
}

/// A delivery that is being read.
#[derive(Debug)]
pub(crate) struct Turn {
    one: Arc<One>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), each: Mutex::default() }
    }
}

impl Limits {
    pub(crate) async fn enter(&self, key: &Key) -> Result<Turn, Refusal> {
        let one = self.one(key);
        one.check(Instant::now())?;
        let waiting = async {
            // The repository's own turn first, so that those who wait for it take nobody else's.
            let own = Arc::clone(&one.turns).acquire_owned().await.ok()?;
            Some([own, Arc::clone(&self.all).acquire_owned().await.ok()?])
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(Some(permits)) => Ok(Turn { one, _permits: permits }),
            Ok(None) | Err(_) => Err(Refusal::TooOften {
                message: "too many deliveries arrive at once; the next poll finds what was pushed".to_owned(),
                seconds: PATIENCE.as_secs(),
            }),
        }
    }

    fn one(&self, key: &Key) -> Arc<One> {
        let mut each = locked(&self.each);
        if each.len() >= MOST {
            each.retain(|_, one| Arc::strong_count(one) > 1);
        }
        let new = || {
            Arc::new(One { turns: Arc::new(Semaphore::new(OF_ONE)), failed: Mutex::new((0, Instant::now())) })
        };
        Arc::clone(each.entry(key.clone()).or_insert_with(new))
    }
}

impl One {
    fn check(&self, now: Instant) -> Result<(), Refusal> {
        let (failed, since) = *locked(&self.failed);
        let rest = WHILE.saturating_sub(now.duration_since(since));
        if failed < FAILURES || rest.is_zero() {
            return Ok(());
        }
        Err(Refusal::TooOften {
            message: "too many deliveries for this repository were not believed; the next poll finds what was pushed".to_owned(),
            seconds: rest.as_secs().max(1),
        })
    }

    fn failed(&self, now: Instant) {
        let mut failed = locked(&self.failed);
        if failed.0 == 0 || now.duration_since(failed.1) >= WHILE {
            *failed = (0, now);
        }
        failed.0 = failed.0.saturating_add(1);
    }
}

impl Turn {
    pub(crate) fn failed(&self) {
        self.one.failed(Instant::now());
    }
}

/// A panic while one was held leaves at worst a count that is one too low.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(name: &str) -> Key {
        ("a".into(), name.into())
    }

    #[tokio::test]
    async fn who_fails_too_often_waits_for_the_rest_of_the_minute() {
        let limits = Limits::default();
        let one = limits.one(&key("x"));
        let begun = Instant::now();
        for _ in 0..FAILURES {
            one.check(begun).unwrap();
            one.failed(begun);
        }
        let refused = one.check(begun + Duration::from_secs(20)).unwrap_err();
        assert!(matches!(refused, Refusal::TooOften { seconds: 40, .. }), "{refused:?}");
        assert!(limits.enter(&key("x")).await.is_err());
        assert!(limits.enter(&key("y")).await.is_ok(), "others are heard");
        one.check(begun + WHILE).unwrap();
        one.failed(begun + WHILE);
        one.check(begun + WHILE).unwrap();
    }

    #[tokio::test]
    async fn one_repository_never_takes_all_turns() {
        let limits = Limits::default();
        let mut held = Vec::new();
        for _ in 0..OF_ONE {
            held.push(limits.enter(&key("slow")).await.unwrap());
        }
        assert!(limits.enter(&key("slow")).now_or_never().is_none(), "it waits");
        for number in 0..AT_ONCE - OF_ONE {
            held.push(limits.enter(&key(&number.to_string())).await.unwrap());
        }
        assert!(limits.enter(&key("late")).now_or_never().is_none());
        held.clear();
        assert!(limits.enter(&key("late")).await.is_ok());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let limits = Limits::default();
        let held = limits.one(&key("held"));
        for number in 0..MOST + 10 {
            limits.one(&key(&number.to_string()));
        }
        assert!(locked(&limits.each).len() <= MOST);
        assert!(Arc::ptr_eq(&held, &limits.one(&key("held"))), "what is at work is not forgotten");
    }
}
