//! Flags, and what cannot work: each refused in one sentence that says what to do, with nothing lost.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::harness::{BINARY, Place, client, stop, until, with_mounts};

async fn create(client: &Client, name: &str) {
    let object = ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let api = Api::<ConfigMap>::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn exists(client: &Client, name: &str) -> bool {
    Api::<ConfigMap>::namespaced(client.clone(), "default").get_opt(name).await.unwrap().is_some()
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_holder_and_the_flag_that_helps() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    for flag in ["--listen", "--api-listen"] {
        let said = place.up_refused(&[flag, &address]).await;
        let holder = format!("process {} ({})", std::process::id(), name.trim());
        assert_eq!(said, format!("error: port {address} is taken by {holder}; choose another with {flag}\n"));
    }
    stop(place.up(&[]).await.0).await;
}

#[tokio::test]
async fn a_data_directory_in_use_is_refused_also_when_the_port_is_taken_too() {
    let place = Place::new();
    let (first, client) = place.up(&[]).await;
    let service = until("it says where the service is", async || {
        let introduction = place.log();
        introduction.lines().find_map(|line| line.trim().strip_prefix("service  http://").map(str::to_owned))
    })
    .await;
    let in_use = format!(
        "error: {}/store.db is in use by another process (pid {}): stop it or choose another data directory\n",
        place.data().display(),
        first.pid()
    );
    assert_eq!(place.up_refused(&[]).await, in_use);
    assert_eq!(place.up_refused(&["--listen", &service]).await, in_use);
    create(&client, "still-served").await;
    stop(first).await;
}

#[tokio::test]
async fn data_of_a_newer_version_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let (up, client) = place.up(&[]).await;
    create(&client, "kept").await;
    stop(up).await;
    let database = place.data().join("store.db");
    let set_format = |format: u32| {
        let connection = rusqlite::Connection::open(&database).unwrap();
        let known: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        connection.pragma_update(None, "user_version", format).unwrap();
        connection.close().unwrap();
        known
    };
    let known = set_format(1000);
    let said = place.up_refused(&[]).await;
    assert_eq!(
        said,
        format!(
            "error: {} was written by a newer version of Terrane (format 1000, this version knows up to {known}): start that version again\n",
            database.display()
        )
    );
    assert_eq!(set_format(known), 1000, "it was left as it is");
    let (up, client) = place.up(&[]).await;
    assert!(exists(&client, "kept").await);
    stop(up).await;
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_is_refused_and_nothing_is_lost() {
    const READ_ONLY: &str = "mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"; shift; exec \"$@\"";
    let place = Place::new();
    let (up, client) = place.up(&[]).await;
    create(&client, "kept").await;
    stop(up).await;
    let data = place.data();
    let data = data.to_str().unwrap();
    let below = format!("{data}/below");
    for (directory, expected) in [
        (
            data,
            format!(
                "error: {data}/store.db cannot be written because the file or its disk is read-only: make it writable or choose another data directory\n"
            ),
        ),
        (
            &below,
            format!(
                "error: {below} cannot be the data directory: its disk is read-only; choose another with --data-dir\n"
            ),
        ),
    ] {
        let command = [with_mounts(READ_ONLY, data), vec![BINARY]].concat();
        let up = place.arguments(&["--data-dir", directory]);
        let said = place.refused("unshare", &[command, up.each_ref()].concat()).await;
        assert_eq!(said, expected);
    }
    let (up, client) = place.up(&[]).await;
    assert!(exists(&client, "kept").await);
    stop(up).await;
}

#[tokio::test]
async fn a_data_directory_that_is_none_is_refused_and_left_alone() {
    let place = Place::new();
    let (file, foreign) = (place.path("letter"), place.path("home"));
    fs::write(&file, "dear").unwrap();
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter"), "dear").unwrap();
    let below = file.join("data");
    for (directory, why) in [
        (&file, "cannot be the data directory: it is a file; choose another with --data-dir"),
        (
            &below,
            "cannot be the data directory: something above it is a file; choose another with --data-dir",
        ),
        (
            &foreign,
            "holds files but no data of Terrane: choose an empty directory, or one that does not exist yet",
        ),
    ] {
        let directory = directory.to_str().unwrap();
        let said = place.up_refused(&["--data-dir", directory]).await;
        assert_eq!(said, format!("error: {directory} {why}\n"));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "dear");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
}

#[tokio::test]
async fn nothing_is_served_to_others_without_a_certificate() {
    let place = Place::new();
    let absent = place.path("absent.pem");
    let absent = absent.to_str().unwrap();
    for (flags, why) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            "--listen 0.0.0.0:0 would serve artefacts to the network without TLS; choose a loopback address",
        ),
        (
            &["--api-listen", "0.0.0.0:0"],
            "0.0.0.0:0 can be reached by others, and the certificate made here is trusted on this machine only: give --api-tls-cert and --api-tls-key too, or listen on 127.0.0.1",
        ),
        (
            &["--api-listen", "0.0.0.0:0", "--api-tls-cert", absent],
            "--api-tls-cert needs --api-tls-key: a certificate without its key cannot be served",
        ),
        (
            &["--api-listen", "0.0.0.0:0", "--api-tls-key", absent],
            "--api-tls-key needs --api-tls-cert: a key without its certificate cannot be served",
        ),
    ] {
        assert_eq!(place.up_refused(flags).await, format!("error: {why}\n"), "{flags:?}");
        assert!(!place.data().exists(), "{flags:?} left something behind");
    }
    let flags = ["--api-listen", "0.0.0.0:0", "--api-tls-cert", absent, "--api-tls-key", absent];
    let said = place.up_refused(&flags).await;
    assert!(said.starts_with(&format!("error: {absent} is no PEM file with a certificate")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[tokio::test]
async fn with_a_certificate_others_see_it_and_this_machine_its_own() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(["terrane.example".to_owned()]).unwrap();
    let (certificate, key) = (place.path("cert.pem"), place.path("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = [
        ["--api-listen", "0.0.0.0:0"],
        ["--api-tls-cert", certificate.to_str().unwrap()],
        ["--api-tls-key", key.to_str().unwrap()],
    ]
    .concat();
    // The kubeconfig works as it is: on this machine the certificate is the one made here.
    let (up, _client) = place.up(&flags).await;
    let kubeconfig = fs::read_to_string(place.data().join("kubeconfig")).unwrap();
    let address: SocketAddr = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: https://"))
        .and_then(|address| address.parse().ok())
        .expect("the address in the kubeconfig");
    assert!(address.ip().is_loopback());
    let theirs = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let other = reqwest::Client::builder()
        .tls_certs_only([theirs])
        .resolve("terrane.example", address)
        .no_proxy()
        .build()
        .unwrap();
    let url = |host: &str| format!("https://{host}:{}/api/v1/namespaces", address.port());
    let answer = other.get(url("terrane.example")).send().await.unwrap();
    assert_eq!(answer.status(), 401, "TLS holds, and a certificate alone gives no rights");
    assert!(other.get(url("127.0.0.1")).send().await.is_err(), "the one made here is not theirs");
    stop(up).await;
}

#[tokio::test]
async fn the_kubeconfig_goes_where_it_is_wanted_and_overwrites_nobodys() {
    let place = Place::new();
    let wanted = place.path("admin.yaml");
    let flags = ["--kubeconfig", wanted.to_str().unwrap()];
    for start in ["first", "second"] {
        let mut up = place.start(BINARY, &place.arguments(&flags).each_ref());
        let client = place.ready(&mut up, &wanted).await;
        create(&client, start).await;
        assert_eq!(fs::metadata(&wanted).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!place.data().join("kubeconfig").exists());
        stop(up).await;
    }
    let theirs = place.path("theirs.yaml");
    fs::write(&theirs, "apiVersion: v1\nkind: Config\n").unwrap();
    let said = place.up_refused(&["--kubeconfig", theirs.to_str().unwrap()]).await;
    let why = "is somebody's kubeconfig and would be overwritten: choose another file with --kubeconfig";
    assert_eq!(said, format!("error: {} {why}\n", theirs.display()));
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "apiVersion: v1\nkind: Config\n");
}

#[tokio::test]
async fn what_is_typed_wrong_is_refused_before_anything_starts() {
    let place = Place::new();
    for (arguments, why) in [
        (&["up", "--api-listen", "nonsense"][..], "invalid socket address syntax"),
        (&["up", "--image", "tool"], "say NAME=DIRECTORY, as in example.org/tool=/opt/tool"),
        (&["up", "--image", "tool=opt"], "opt is no absolute path"),
        (&["node", "--image", "tool=/no/such"], "/no/such is no directory of this machine"),
        (&["node", "--name", "Not_A_Name"], "lower-case letters"),
        (&["node", "--max-pods", "-1"], "unexpected argument"),
    ] {
        let mut process = place.start(BINARY, arguments);
        let status = until("it is refused", async || process.exited().unwrap()).await;
        let said = place.log();
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(why), "{arguments:?}: {said}");
    }
    assert!(client(&place.data().join("kubeconfig")).await.is_none());
}
