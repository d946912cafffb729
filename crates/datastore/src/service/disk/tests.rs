//! What a crash may leave of a directory, made by hand, and what is found after it. A power cut is played by undoing what was not
//! flushed: the files of objects, never the log.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path as FilePath;

use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};

use super::*;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Disk {
        Disk::open(self.0.path()).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

async fn create(disk: &Disk, name: &str, content: &[u8]) -> Result<()> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    disk.put_opts(&Path::from(name), content.to_vec().into(), options).await.map(drop)
}

async fn read(disk: &Disk, name: &str) -> Option<Vec<u8>> {
    match disk.get(&Path::from(name)).await {
        Ok(found) => Some(found.bytes().await.unwrap().to_vec()),
        Err(object_store::Error::NotFound { .. }) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

async fn names(disk: &Disk) -> Vec<String> {
    let mut found: Vec<String> =
        disk.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    found.sort();
    found
}

#[tokio::test]
async fn what_a_power_cut_takes_of_unflushed_files_comes_back_from_the_log() {
    let place = Place::new();
    let disk = place.open();
    for name in ["a/whole", "a/torn", "b/c/unnamed", "a/empty"] {
        create(&disk, name, format!("content of {name}").as_bytes()).await.unwrap();
    }
    drop(disk);
    std::fs::write(place.file("a/torn"), "cont").unwrap();
    std::fs::write(place.file("a/empty"), "").unwrap();
    std::fs::remove_dir_all(place.file("b")).unwrap();
    // Twice, as if the first start had been cut off too.
    for _ in 0..2 {
        let disk = place.open();
        for name in ["a/whole", "a/torn", "b/c/unnamed", "a/empty"] {
            assert_eq!(read(&disk, name).await.unwrap(), format!("content of {name}").as_bytes());
        }
        assert_eq!(names(&disk).await, ["a/empty", "a/torn", "a/whole", "b/c/unnamed"]);
    }
}

#[tokio::test]
async fn a_record_that_was_cut_short_never_was() {
    let place = Place::new();
    let disk = place.open();
    create(&disk, "first", b"1").await.unwrap();
    create(&disk, "second", &[7; 5000]).await.unwrap();
    drop(disk);
    for name in ["first", "second"] {
        std::fs::remove_file(place.file(name)).unwrap();
    }
    let logs = ["log#0", "log#1"].map(|name| place.file(name));
    let used = logs.iter().find(|log| log.metadata().unwrap().len() > 0).unwrap();
    let mut bytes = std::fs::read(used).unwrap();
    let end = bytes.iter().rposition(|byte| *byte == 7).unwrap();
    bytes[end] = 0;
    std::fs::write(used, bytes).unwrap();
    let disk = place.open();
    assert_eq!((read(&disk, "first").await, read(&disk, "second").await), (Some(b"1".to_vec()), None));
    create(&disk, "second", b"2").await.unwrap();
    drop(disk);
    let disk = place.open();
    assert_eq!(read(&disk, "second").await.unwrap(), b"2");
}

#[tokio::test]
async fn what_was_deleted_or_replaced_beside_us_stays_so() {
    let place = Place::new();
    let disk = place.open();
    for name in ["deleted", "replaced", "kept"] {
        create(&disk, name, b"old").await.unwrap();
    }
    disk.delete(&Path::from("deleted")).await.unwrap();
    // As a rotation of keys in another process does it.
    let other = place.open();
    other.put(&Path::from("replaced"), b"new".to_vec().into()).await.unwrap();
    create(&other, "made beside", b"x").await.unwrap();
    assert!(matches!(
        create(&disk, "made beside", b"y").await,
        Err(object_store::Error::AlreadyExists { .. })
    ));
    drop((disk, other));
    let disk = place.open();
    assert_eq!(names(&disk).await, ["kept", "made beside", "replaced"]);
    assert_eq!(read(&disk, "replaced").await.unwrap(), b"new");
    assert_eq!(read(&disk, "made beside").await.unwrap(), b"x");
}

#[tokio::test]
async fn a_log_that_was_used_again_brings_back_nothing_that_was_deleted_meanwhile() {
    let place = Place::new();
    let log = |disk: u64| Ahead::open(place.0.path(), disk).unwrap();
    let ahead = log(0);
    let root: &FilePath = place.0.path();
    let put = |name: &str, size: usize| {
        let content = PutPayload::from(vec![1; size]);
        let staged = Staged::write(root, content.iter()).unwrap();
        let record = ahead::Record { name, inode: staged.inode, content: &content };
        let entry = ahead.append(&record).unwrap()?;
        ahead.flush(&entry).unwrap();
        staged.publish(&root.join(name)).unwrap();
        Some(())
    };
    // Each file of the log takes four of these.
    for number in 0..4 {
        put(&format!("first-{number}"), 60_000).unwrap();
    }
    put("second-0", 60_000).unwrap();
    let settling = ahead.due().expect("the first file is not needed any more");
    assert!(ahead.due().is_none(), "it is given out once");
    for number in 1..4 {
        put(&format!("second-{number}"), 60_000).unwrap();
    }
    assert!(put("third-0", 60_000).is_none(), "the first file still tells of what is not flushed");
    settling.run();
    put("third-1", 60_000).unwrap();
    ahead.forget("second-2");
    std::fs::remove_file(root.join("second-2")).unwrap();
    std::fs::remove_file(root.join("first-0")).unwrap();
    drop(ahead);
    drop(log(0));
    assert!(!root.join("second-2").exists(), "deleted");
    assert!(!root.join("first-0").exists(), "its record is gone");
    assert!(root.join("third-1").exists());
}

#[tokio::test]
async fn what_is_durable_with_the_next_is_flushed_by_it_however_that_is_written() {
    let place = Place::new();
    let disk = place.open();
    let flushed = || disk.shared.ahead.is_flushed();
    let put = async |name: &str, promise: Promise, size: usize| {
        let mut options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        promise.mark(&mut options.extensions);
        disk.put_opts(&Path::from(name), vec![1; size].into(), options).await.unwrap();
    };
    put("content-1", Promise::WithNext, 1000).await;
    assert!(!flushed(), "nothing rests on it yet");
    put("step-1", Promise::AtOnce, 10).await;
    assert!(flushed());
    put("content-2", Promise::WithNext, 1000).await;
    // Too large to be written ahead.
    put("step-2", Promise::AtOnce, 3_000_000).await;
    assert!(flushed());
}

#[tokio::test]
async fn of_many_that_create_a_name_one_succeeds_and_its_content_stays() {
    let place = Place::new();
    let disk = place.open();
    let rivals = (0..12u8).map(|rival| {
        let disk = &disk;
        async move { create(disk, "states/x/steps/1", &[rival; 100]).await.is_ok() }
    });
    let won = futures::future::join_all(rivals).await;
    let winner = won.iter().position(|won| *won).unwrap();
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    drop(disk);
    std::fs::remove_file(place.file("states/x/steps/1")).unwrap();
    let disk = place.open();
    assert_eq!(read(&disk, "states/x/steps/1").await.unwrap(), [u8::try_from(winner).unwrap(); 100]);
}
