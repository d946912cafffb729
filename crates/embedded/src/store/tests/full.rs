//! A full disk: the write fails and says so, nothing that was answered is lost, and room is all it takes to go on.

use std::fs;

use testkit::needs::{Need, found};

use super::*;

fn quota(bytes: u64) -> Options {
    Options { max_file_bytes: Some(bytes), ..Options::default() }
}

/// Creates numbered pods from `first` on until one fails; returns those that were answered and the failure.
async fn fill(store: &Store, first: usize) -> (Vec<Arc<Stored>>, WriteError) {
    let mut answered = Vec::new();
    loop {
        let key = pod(&format!("filler-{}", first + answered.len()));
        match one(store, create(&key, "x".repeat(10_000))).await {
            Ok(stored) => answered.push(stored),
            Err(error) => return (answered, error),
        }
    }
}

fn assert_holds(store: &Store, answered: &[Arc<Stored>]) {
    let snapshot = store.snapshot();
    assert_eq!(snapshot.count(&pods(), None), answered.len());
    for stored in answered {
        assert_eq!(snapshot.get(&stored.key).as_ref(), Some(stored));
    }
}

#[tokio::test]
async fn a_full_database_fails_clearly_and_recovers_when_there_is_room() {
    let place = Place::new();
    let store = place.open_with(quota(1 << 20));
    let mut watch = store.watch(&pods(), 0).unwrap();
    let (answered, error) = fill(&store, 0).await;
    assert!(answered.len() > 20, "only {} fitted", answered.len());
    let message = format!(
        "no room left for {}: nothing was changed; free some space on its disk and try again",
        place.path().display()
    );
    assert_eq!(error.to_string(), message);
    assert_holds(&store, &answered);
    let revision = store.snapshot().revision();
    assert_eq!(revision, answered.len() as u64, "the failed write took no revision");
    let mut events = 0;
    while events < answered.len() {
        events += watch.next().await.unwrap().len();
    }
    assert_eq!(watch.revision(), revision, "no watch saw the failed write");
    // A write of several ops that does not fit as a whole leaves no part behind.
    let ops = vec![create(&layer("small"), 0), create(&pod("large"), "x".repeat(100_000))];
    assert!(matches!(store.write(ops).await, Err(WriteError::Full { .. })));
    assert!(store.snapshot().get(&layer("small")).is_none());
    store.close();

    let store = place.open_with(quota(2 << 20));
    assert_holds(&store, &answered);
    assert_eq!(write(&store, create(&layer("small"), 0)).await, revision + 1);
    let (more, _) = fill(&store, answered.len()).await;
    assert!(more.len() > 20, "only {} more fitted", more.len());
}

#[tokio::test]
async fn a_refusal_that_rests_on_a_failed_write_is_not_told() {
    let place = Place::new();
    let store = place.open_with(quota(1 << 20));
    let large = "x".repeat(2 << 20);
    // Both are queued before the writer can answer, so the second is checked against the first.
    let (first, second) =
        tokio::join!(one(&store, create(&pod("a"), &*large)), one(&store, create(&pod("a"), &*large)),);
    assert!(matches!(first, Err(WriteError::Full { .. })));
    assert!(matches!(second, Err(WriteError::Full { .. })), "there is no such pod: {second:?}");
}

#[tokio::test]
async fn a_full_file_system_fails_clearly_and_recovers_when_there_is_room() {
    let place = Place::new();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=4m"], "tmpfs", place.directory.path());
    let Some(mount) = found(Need::Mounts, mount).unwrap() else { return };
    let ballast = place.directory.path().join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let store = place.open();
    let (mut answered, error) = fill(&store, 0).await;
    assert!(matches!(error, WriteError::Full { .. }), "{error}");
    assert!(answered.len() > 20, "only {} fitted", answered.len());
    let (none, again) = fill(&store, answered.len()).await;
    assert!(none.is_empty() && matches!(again, WriteError::Full { .. }), "{again}");
    assert_holds(&store, &answered);
    fs::remove_file(&ballast).unwrap();
    let (more, _) = fill(&store, answered.len()).await;
    assert!(!more.is_empty(), "there is room again");
    answered.extend(more);
    assert_holds(&store, &answered);
    store.close();
    let store = place.open();
    assert_holds(&store, &answered);
    assert_eq!(store.snapshot().revision(), answered.len() as u64);
    store.close();
    drop(mount);
}
