//! A full disk below a running `terrane up`: writes fail and say why, everything else goes on, and room is all it takes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::{BINARY, DEADLINE, Place, stop, until, with_mounts};

/// A small disk that ends with the process.
const SMALL_DISK: &str = "mount -t tmpfs -o size=24m,mode=700 tmpfs \"$1\"; shift; exec \"$@\"";
const LABEL: &str = "filler=yes";

fn filler(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("filler".to_owned(), "yes".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([("text".to_owned(), "x".repeat(20_000))].into()),
        ..ConfigMap::default()
    }
}

fn fill(ballast: &Path) {
    let mut file = File::create(ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// Creates numbered objects until one is refused; gives the names of those that were answered, and the refusal.
async fn create_until_full(client: &Client) -> (BTreeSet<String>, kube::core::Status) {
    let api = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let mut answered = BTreeSet::new();
    // What the database has in reserve is much less than the disk's 24 MB.
    for number in 0..2000 {
        let name = format!("filler-{number}");
        match api.create(&PostParams::default(), &filler(&name)).await {
            Ok(_) => answered.insert(name),
            Err(kube::Error::Api(status)) => return (answered, *status),
            Err(error) => panic!("no answer: {error}"),
        };
    }
    panic!("the disk does not fill");
}

fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> kube::core::Status {
    match answer {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("this cannot be written: {other:?}"),
    }
}

#[tokio::test]
async fn writes_fail_clearly_reads_and_watches_go_on_and_room_is_all_it_takes() {
    let place = Place::new();
    let data = place.data();
    fs::create_dir(&data).unwrap();
    let kubeconfig = place.path("kubeconfig");
    let command = [with_mounts(SMALL_DISK, data.to_str().unwrap()), vec![BINARY]].concat();
    let up = place.arguments(&["--kubeconfig", kubeconfig.to_str().unwrap()]);
    let mut up = place.start("unshare", &[command, up.each_ref()].concat());
    let client = place.ready(&mut up, &kubeconfig).await;
    let inside =
        Path::new("/proc").join(up.pid().to_string()).join("root").join(data.strip_prefix("/").unwrap());
    let ballast = inside.join("ballast");

    let api = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let fillers = ListParams::default().labels(LABEL);
    let start = api.list(&fillers).await.unwrap().metadata.resource_version.unwrap();
    let watch = api.watch(&WatchParams::default().labels(LABEL), &start).await.unwrap();
    let mut watch = std::pin::pin!(watch);

    fill(&ballast);
    let (mut answered, status) = create_until_full(&client).await;
    let message = format!(
        "Internal error occurred: no room left for {}/store.db: nothing was changed; free some space on its disk and try again",
        data.display()
    );
    assert_eq!((status.code, status.reason.as_str(), &status.message), (500, "InternalError", &message));
    // Other verbs and kinds are told the same, and the next look finds what was there before.
    let refused = api.create(&PostParams::default(), &filler("never")).await;
    assert_eq!(refusal(refused).message, message);
    if let Some(first) = answered.first() {
        let patch = Patch::Merge(json!({ "data": { "text": "y".repeat(20_000) } }));
        let refused = api.patch(first, &PatchParams::default(), &patch).await;
        assert_eq!(refusal(refused).message, message);
    }
    // A small object may find the last free pages, but not for long.
    let namespaces = Api::<Namespace>::all(client.clone());
    let mut number = 0;
    until("small objects are refused too", async || {
        number += 1;
        let metadata = ObjectMeta { name: Some(format!("small-{number}")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        match namespaces.create(&PostParams::default(), &namespace).await {
            Ok(_) => None,
            refused => {
                assert_eq!(refusal(refused).message, message);
                Some(())
            }
        }
    })
    .await;
    // Whoever writes by itself fails too, says so, and goes on.
    until("the node could not renew its lease", async || {
        up.ensure_running().unwrap();
        place.log().contains("could not say that the node is alive").then_some(())
    })
    .await;
    let listed = api.list(&fillers).await.unwrap();
    let names: BTreeSet<String> = listed.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, answered);

    fs::remove_file(&ballast).unwrap();
    api.create(&PostParams::default(), &filler("after")).await.unwrap();
    answered.insert("after".to_owned());
    // The watch that was open all the time has seen each answered write and no other.
    let mut seen = BTreeSet::new();
    while !seen.contains("after") {
        let event = tokio::time::timeout(DEADLINE, watch.try_next()).await.unwrap().unwrap();
        match event.expect("the watch goes on") {
            WatchEvent::Added(object) => assert!(seen.insert(object.name_any()), "{object:?} came twice"),
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, answered);
    up.ensure_running().unwrap();
    stop(up).await;
}
