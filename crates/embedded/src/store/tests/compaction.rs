//! What compaction removes, and what it must leave.

use std::{fs, time::Duration};

use super::*;

fn rows(place: &Place) -> Vec<i64> {
    let connection = rusqlite::Connection::open(place.path()).unwrap();
    let mut select = connection.prepare("SELECT revision FROM revisions ORDER BY revision").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn only_what_somebody_can_still_ask_for_stays_on_disk() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("kept"), 0)).await;
    write(&store, create(&pod("gone"), 0)).await;
    write(&store, update(&pod("kept"), 1, 1)).await;
    write(&store, delete(&pod("gone"), 2)).await;
    write(&store, update(&pod("kept"), 3, 2)).await;
    store.compact(4).await.unwrap();
    let expired = store.watch(&pods(), 3).unwrap_err();
    assert_eq!((expired.from, expired.oldest), (3, 4));
    store.close();
    assert_eq!(rows(&place), [3, 5], "3 is what the event 5 replaced");
    let store = place.open();
    assert_eq!(store.watch(&pods(), 3).unwrap_err().oldest, 4);
    let events = events_after(&store, &pods(), 4).await;
    assert_eq!((events.len(), events[0].revision, events[0].change), (1, 5, Change::Modified));
    assert_eq!(events[0].previous.as_ref().unwrap().revision, 3);
}

#[tokio::test]
async fn a_revision_is_never_given_twice_even_if_its_row_is_gone() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    write(&store, delete(&pod("a"), 1)).await;
    store.compact(2).await.unwrap();
    store.close();
    assert_eq!(rows(&place), [] as [i64; 0]);
    let store = place.open();
    assert_eq!(store.snapshot().revision(), 2);
    assert_eq!(write(&store, create(&pod("a"), 0)).await, 3);
}

#[tokio::test]
async fn churn_does_not_grow_the_file_without_bound() {
    let place = Place::new();
    let options = Options { history_events: 100, compaction_rows: 64, ..Options::default() };
    let store = place.open_with(options.clone());
    let note = "x".repeat(3000);
    let mut revision = write(&store, create(&pod("lease"), &*note)).await;
    let mut sizes = Vec::new();
    for round in 1..=3000 {
        revision = write(&store, update(&pod("lease"), revision, &*note)).await;
        if round % 1000 == 0 {
            sizes.push(fs::metadata(place.path()).unwrap().len());
        }
    }
    store.close();
    // 100 retained revisions of 3 kB, as many again waiting to be removed, and room for the log to be written back.
    let size = fs::metadata(place.path()).unwrap().len();
    assert!(size < 2 << 20, "{size} bytes after {sizes:?}");
    assert!(rows(&place).len() < 100 + 2 * 64 + 2);
    assert_eq!(events_after(&place.open_with(options), &pods(), revision - 100).await.len(), 100);
}

#[tokio::test]
async fn space_is_given_back_when_much_is_deleted() {
    let place = Place::new();
    let store = place.open();
    let note = "x".repeat(3000);
    store.write((0..4000).map(|n| create(&pod(&n.to_string()), &*note)).collect()).await.unwrap();
    for (name, revision) in (0..4000).zip(1..) {
        if name % 400 == 0 {
            let ops = (name..name + 400).zip(revision..).map(|(n, at)| delete(&pod(&n.to_string()), at));
            store.write(ops.collect()).await.unwrap();
        }
    }
    store.compact(store.snapshot().revision()).await.unwrap();
    store.close();
    let size = fs::metadata(place.path()).unwrap().len();
    assert!(size < 4 << 20, "{size} bytes are left of 12 million");
    assert_eq!(place.open().snapshot().revision(), 8000);
}

#[tokio::test]
async fn age_forgets_events_and_their_rows_without_being_asked() {
    let place = Place::new();
    let store = place.open_with(Options { history_age: Duration::from_millis(100), ..Options::default() });
    write(&store, create(&pod("a"), 0)).await;
    write(&store, delete(&pod("a"), 1)).await;
    let mut watch = store.watch(&pods(), 2).unwrap();
    while store.watch(&pods(), 1).is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(write(&store, create(&pod("a"), 1)).await, 3);
    assert_eq!(watch.next().await.unwrap()[0].revision, 3, "one that had read them is not disturbed");
}
