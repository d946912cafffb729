//! Files that must not be opened, each refused with one sentence.

use std::{fs, io, os::unix::fs::MetadataExt};

use testkit::needs::{Need, found};

use super::{super::Error, *};

fn refusal(place: &Place) -> String {
    Store::open(&place.path(), Options::default()).unwrap_err().to_string()
}

#[test]
fn a_database_in_use_is_refused_and_names_the_process() {
    let place = Place::new();
    let store = place.open();
    let path = place.path();
    let expected = format!(
        "{} is in use by another process (pid {}): stop it or choose another data directory",
        path.display(),
        std::process::id()
    );
    assert_eq!(refusal(&place), expected);
    assert_eq!(Store::ensure_unused(&path).unwrap_err().to_string(), expected);
    store.close();
    Store::ensure_unused(&path).unwrap();
    place.open();
    let nowhere = place.directory.path().join("none/store.db");
    Store::ensure_unused(&nowhere).unwrap();
    assert!(!nowhere.exists());
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new();
    place.open().close();
    let connection = rusqlite::Connection::open(place.path()).unwrap();
    connection.pragma_update(None, "user_version", 2).unwrap();
    connection.close().unwrap();
    let before = fs::read(place.path()).unwrap();
    let expected = format!(
        "{} was written by a newer version of Terrane (format 2, this version knows up to 1): start that version again",
        place.path().display()
    );
    assert_eq!(refusal(&place), expected);
    assert_eq!(fs::read(place.path()).unwrap(), before);
}

#[test]
fn a_file_of_somebody_else_is_refused_and_left_alone() {
    let place = Place::new();
    let expected = format!(
        "{} is not a database of Terrane: move it away or choose another data directory",
        place.path().display()
    );
    fs::write(place.path(), "a letter to my grandmother, which is not a database ".repeat(40)).unwrap();
    assert_eq!(refusal(&place), expected);
    assert!(fs::read_to_string(place.path()).unwrap().starts_with("a letter"));
    fs::remove_file(place.path()).unwrap();
    let connection = rusqlite::Connection::open(place.path()).unwrap();
    connection.execute_batch("CREATE TABLE recipes (name)").unwrap();
    connection.close().unwrap();
    assert_eq!(refusal(&place), expected);
}

#[tokio::test]
async fn a_damaged_row_is_named() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    store.close();
    let connection = rusqlite::Connection::open(place.path()).unwrap();
    connection.execute("UPDATE revisions SET value = x'7b'", []).unwrap();
    connection.close().unwrap();
    let refusal = refusal(&place);
    assert!(refusal.contains("is damaged (pods default/a at revision 1 is not readable: "), "{refusal}");
}

#[test]
fn a_missing_directory_is_an_error_that_has_a_cause() {
    let place = Place::new();
    let path = place.directory.path().join("none/store.db");
    match Store::open(&path, Options::default()) {
        Err(error @ Error::Io { .. }) => {
            assert_eq!(error.to_string(), format!("cannot open {}", path.display()));
            let Error::Io { source, .. } = error else { unreachable!() };
            assert_eq!(source.kind(), io::ErrorKind::NotFound);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_read_only_disk_is_refused() {
    let place = Place::new();
    let store = place.open();
    write(&store, create(&pod("a"), 0)).await;
    store.close();
    let expected = format!(
        "{} cannot be written because the file or its disk is read-only: make it writable or choose another data directory",
        place.path().display()
    );
    // Root writes to read-only files, so it needs a read-only mount to see what others see at once.
    if running_as_root() {
        let mount = Mount::new(&["--bind"], place.directory.path(), place.directory.path())
            .filter(|mount| mount.remount("bind,ro"));
        let Some(_mount) = found(Need::Mounts, mount).unwrap() else { return };
        assert_eq!(refusal(&place), expected);
    } else {
        for name in ["store.db", "store.db.lock"] {
            let file = place.directory.path().join(name);
            let mut permissions = fs::metadata(&file).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(&file, permissions).unwrap();
        }
        assert_eq!(refusal(&place), expected);
    }
}

fn running_as_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}
