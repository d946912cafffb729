//! Watches: order, resumption, bookmarks, and what becomes of a slow one.

use super::{super::Expired, *};

fn small() -> Options {
    Options { history_events: 10, ..Options::default() }
}

#[tokio::test]
async fn a_watch_gives_the_past_and_then_waits_for_the_future() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    write(&store, create(&layer("other"), 0)).await;
    write(&store, update(&pod("a"), 1, 1)).await;
    let mut watch = store.watch(&pods(), 1).unwrap();
    let events = watch.next().await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].revision, events[0].change), (3, Change::Modified));
    assert_eq!(events[0].previous.as_ref().unwrap().revision, 1);
    let (events, ()) = tokio::join!(watch.next(), async {
        write(&store, create(&layer("another"), 0)).await;
        write(&store, delete(&pod("a"), 3)).await;
    });
    let events = events.unwrap();
    assert_eq!((events[0].revision, events[0].change), (5, Change::Deleted));
    assert_eq!(events[0].previous.as_ref().unwrap().value()["note"], 1);
}

#[tokio::test]
async fn a_watch_can_start_before_the_collection_has_anything() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(&pods(), 0).unwrap();
    let (events, _) = tokio::join!(watch.next(), write(&store, create(&pod("a"), 0)));
    assert_eq!(events.unwrap()[0].revision, 1);
}

#[tokio::test]
async fn a_bookmark_moves_with_the_store_but_never_past_an_unread_event() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(&pods(), 0).unwrap();
    write(&store, create(&layer("a"), 0)).await;
    assert_eq!(watch.revision(), 1);
    write(&store, create(&pod("a"), 0)).await;
    write(&store, create(&layer("b"), 0)).await;
    assert_eq!(watch.revision(), 0, "the pod has not been read");
    watch.next().await.unwrap();
    assert_eq!(watch.revision(), 3);
}

#[tokio::test]
async fn a_slow_watch_is_cut_off_and_costs_the_others_nothing() {
    let place = Place::new();
    let store = place.open_with(small());
    let mut slow = store.watch(&pods(), 0).unwrap();
    let mut quick = store.watch(&pods(), 0).unwrap();
    let mut other = store.watch(&layers(), 0).unwrap();
    write(&store, create(&layer("quiet"), 0)).await;
    for round in 0..50 {
        write(&store, create(&pod(&round.to_string()), 0)).await;
        assert_eq!(quick.next().await.unwrap().len(), 1);
    }
    let expired = Expired { from: 0, oldest: 41 };
    assert_eq!(slow.next().await.unwrap_err(), expired);
    assert_eq!(expired.to_string(), "too old resource version: 0 (41)");
    assert_eq!(store.watch(&pods(), 40).unwrap_err().oldest, 41);
    assert_eq!(events_after(&store, &pods(), 41).await.len(), 10);
    assert_eq!(other.next().await.unwrap()[0].revision, 1, "a busy collection does not expire a quiet one");
}

#[tokio::test]
async fn the_largest_history_gives_way_when_memory_is_short() {
    let place = Place::new();
    let store = place.open_with(Options { history_bytes: 20_000, ..Options::default() });
    write(&store, create(&layer("quiet"), 0)).await;
    write(&store, create(&pod("busy"), "")).await;
    for revision in 2..100 {
        write(&store, update(&pod("busy"), revision, "x".repeat(1000))).await;
    }
    let oldest = store.watch(&pods(), 2).unwrap_err().oldest;
    assert!(
        (80..=90).contains(&oldest),
        "about sixteen events of a good thousand bytes fit, not {}",
        100 - oldest
    );
    assert_eq!(events_after(&store, &layers(), 0).await.len(), 1);
}

#[tokio::test]
async fn a_watch_far_behind_reads_in_pieces() {
    let place = Place::new();
    let store = place.open();
    store.write((0..1300).map(|n| create(&pod(&n.to_string()), n)).collect()).await.unwrap();
    let mut watch = store.watch(&pods(), 0).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 1300 {
        let events = watch.next().await.unwrap();
        assert!(events.len() <= 512);
        seen.extend(events.iter().map(|event| event.revision));
        assert_eq!(watch.revision(), *seen.last().unwrap());
    }
    assert_eq!(seen, (1..=1300).collect::<Vec<_>>());
}
