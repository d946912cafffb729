//! Reading what was written: preconditions, atomicity, order, reopening.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test]
async fn a_write_is_readable_numbered_and_survives_reopening() {
    let place = Place::new();
    let store = place.open();
    assert_eq!(store.snapshot().revision(), 0);
    let before = store.snapshot();
    let created = one(&store, create(&layer("vpc"), "new")).await.unwrap();
    assert_eq!(created.revision, 1);
    assert_eq!(created.value()["metadata"]["resourceVersion"], "1");
    assert_eq!(store.snapshot().get(&layer("vpc")), Some(created.clone()));
    assert_eq!(before.get(&layer("vpc")), None, "a snapshot never changes");
    let changed = one(&store, update(&layer("vpc"), 1, "newer")).await.unwrap();
    assert_eq!(changed.revision, 2);
    store.close();

    let store = place.open();
    assert_eq!(store.snapshot().revision(), 2);
    assert_eq!(store.snapshot().get(&layer("vpc")).as_deref(), Some(&*changed));
    assert_eq!(write(&store, create(&pod("a"), 0)).await, 3);
}

#[tokio::test]
async fn a_precondition_that_fails_says_what_is_there() {
    let place = Place::new();
    let store = place.open();
    let vpc = layer("vpc");
    match one(&store, update(&vpc, 1, 0)).await {
        Err(error @ WriteError::Missing { .. }) => {
            assert_eq!(error.to_string(), "terraformlayers.terrane.dev infra/vpc does not exist");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(one(&store, delete(&vpc, 1)).await, Err(WriteError::Missing { .. })));
    let current = one(&store, create(&vpc, 0)).await.unwrap();
    for (op, message) in [
        (create(&vpc, 1), "terraformlayers.terrane.dev infra/vpc already exists at revision 1"),
        (update(&vpc, 7, 1), "terraformlayers.terrane.dev infra/vpc has changed: it is at revision 1 now"),
        (delete(&vpc, 0), "terraformlayers.terrane.dev infra/vpc has changed: it is at revision 1 now"),
    ] {
        let error = one(&store, op).await.unwrap_err();
        assert_eq!(error.to_string(), message);
        let (WriteError::Exists { current: told } | WriteError::Conflict { current: told }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(told, current);
    }
    assert_eq!(store.snapshot().revision(), 1, "a refused write takes no revision");
}

#[tokio::test]
async fn several_ops_happen_together_or_not_at_all() {
    let place = Place::new();
    let store = place.open();
    let ops = vec![create(&layer("a"), 0), create(&pod("b"), 0), update(&layer("a"), 1, 1)];
    let stored = store.write(ops).await.unwrap();
    assert_eq!(stored.iter().map(|stored| stored.revision).collect::<Vec<_>>(), [1, 2, 3]);
    let ops = vec![delete(&layer("a"), 3), create(&pod("c"), 0), create(&pod("b"), 0)];
    let error = store.write(ops).await.unwrap_err();
    assert!(matches!(error, WriteError::Exists { current } if current.key == pod("b")));
    let snapshot = store.snapshot();
    assert_eq!(snapshot.revision(), 3);
    assert!(snapshot.get(&layer("a")).is_some() && snapshot.get(&pod("c")).is_none());
    assert_eq!(events_after(&store, &pods(), 0).await.len(), 1, "nor does a watch see any of it");
    assert_eq!(store.write(Vec::new()).await.unwrap(), []);
}

#[tokio::test]
async fn a_deleted_object_is_gone_and_can_come_back() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    let tombstone = one(&store, delete(&pod("a"), 1)).await.unwrap();
    assert_eq!(tombstone.value()["metadata"]["resourceVersion"], "2");
    assert_eq!(store.snapshot().count(&pods(), None), 0);
    assert_eq!(store.snapshot().collections().count(), 0);
    assert_eq!(write(&store, create(&pod("a"), 1)).await, 3);
    store.close();
    let events = events_after(&place.open(), &pods(), 0).await;
    let changes = events.iter().map(|event| (event.revision, event.change, event.previous.is_some()));
    let expected = [(1, Change::Added, false), (2, Change::Deleted, true), (3, Change::Added, false)];
    assert_eq!(changes.collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_writers_at_once_each_get_their_own_answer() {
    let place = Place::new();
    let store = place.open();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..64 {
        let store = store.clone();
        writers.spawn(async move {
            let (mut won, mut own) = (0, Vec::new());
            for round in 0..10 {
                // All of them want the first, each has the second for itself: in one batch they must not mix.
                match one(&store, create(&pod(&format!("contested-{round}")), writer)).await {
                    Ok(stored) => {
                        assert_eq!(stored.value()["note"], writer);
                        won += 1;
                    }
                    Err(WriteError::Exists { current }) => assert_ne!(current.value()["note"], writer),
                    Err(error) => panic!("{error}"),
                }
                own.push(one(&store, create(&pod(&format!("own-{writer}-{round}")), writer)).await.unwrap());
            }
            (won, own)
        });
    }
    let results = writers.join_all().await;
    assert_eq!(results.iter().map(|(won, _)| won).sum::<u32>(), 10, "each contested name has one winner");
    let snapshot = store.snapshot();
    assert_eq!(snapshot.revision(), 650);
    for stored in results.iter().flat_map(|(_, own)| own) {
        assert_eq!(snapshot.get(&stored.key).as_ref(), Some(stored));
    }
    let revisions =
        events_after(&store, &pods(), 0).await.iter().map(|event| event.revision).collect::<Vec<_>>();
    assert_eq!(revisions, (1..=650).collect::<Vec<_>>());
}

#[tokio::test]
async fn pages_read_one_state_while_it_is_kept() {
    let place = Place::new();
    let store = place.open();
    for name in ["a", "b", "c"] {
        write(&store, create(&pod(name), 0)).await;
    }
    let first = store.snapshot();
    store.keep_for_paging(&first);
    write(&store, delete(&pod("c"), 3)).await;
    let page = store.snapshot_at(3).unwrap();
    let rest = page.list(&pods(), None, Some(("default", "a"))).map(|pod| pod.key.name.to_string());
    assert_eq!(rest.collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(store.snapshot_at(4).unwrap().count(&pods(), None), 2, "the newest is always there");
    assert!(store.snapshot_at(2).is_none(), "nobody kept it");
}

#[tokio::test]
async fn a_closed_store_is_readable_and_refuses_writes() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    store.clone().close();
    assert_eq!(store.snapshot().revision(), 1);
    let error = one(&store, create(&pod("b"), 0)).await.unwrap_err();
    assert_eq!(error.to_string(), "the store takes no more writes: it is closed");
    let mut reopened = place.open().watch(&pods(), 0).unwrap();
    assert_eq!(reopened.next().await.unwrap().len(), 1);
    assert!(reopened.next().await.is_err(), "its store is closed, so nothing more will come");
}

#[tokio::test]
async fn nobody_else_can_read_the_files() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    for entry in std::fs::read_dir(place.directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}
