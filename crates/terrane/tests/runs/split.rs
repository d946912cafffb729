//! Every role a process of its own, and the datastore with a certificate that only its own authority vouches for, on a small
//! disk that fills up.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use api::text::Sha256;
use api::{
    CONTROLLER_ACCOUNT, DATASTORE_AUDIENCE, SERVER_ACCOUNT, SYSTEM_NAMESPACE, TerraformLayer, condition,
};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use node::isolation::Isolation;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use testkit::process::Guarded;

use crate::harness::{BINARY, free_address, is, layer_until, until, why};
use crate::page;
use crate::takeover::Ground;

/// A small disk that ends with the process.
const SMALL_DISK: &str = "mount -t tmpfs -o size=128m,mode=700 tmpfs \"$1\"; shift; exec \"$@\"";
/// A version that nobody has installed.
const STORED_VERSION: &str = "1.99.0";
const LARGE_STATE: usize = 64_000_000;
/// What such a state may add to the memory of the datastore, a fraction of its size.
const LARGE_STATE_MEMORY: u64 = 32_000_000;

struct Roles<'a> {
    ground: &'a Ground,
    kubeconfig: String,
}

impl Drop for Roles<'_> {
    fn drop(&mut self) {
        // With a user for each pod their files lie outside of the node's data directory.
        let state = Path::new(&self.place("node")).join("node");
        let _ = fs::remove_dir_all(node::config::pods_directory(&state, &Isolation::detect(&state)));
    }
}

impl Roles<'_> {
    fn place(&self, name: &str) -> String {
        self.ground.root.path().join(name).display().to_string()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.place(&format!("{name}.log"))).unwrap_or_default()
    }

    fn start(&self, name: &str, arguments: Vec<String>) -> Guarded {
        self.start_below(&[], name, arguments)
    }

    /// The same, with a command before it.
    fn start_below(&self, above: &[String], name: &str, arguments: Vec<String>) -> Guarded {
        let variables = vec![format!("KUBECONFIG={}", self.kubeconfig)];
        let line = [variables, above.to_vec(), vec![BINARY.to_owned()], arguments].concat();
        Guarded::start(Path::new("/usr/bin/env"), &line, self.place(&format!("{name}.log")).into()).unwrap()
    }

    fn controller(&self, name: &str, listen: SocketAddr, datastore: SocketAddr, authority: &str) -> Guarded {
        let arguments = vec![
            "controller".to_owned(),
            format!("--listen={listen}"),
            format!("--datastore-url=https://{datastore}"),
            format!("--datastore-ca={}", self.place(authority)),
            format!("--token-file={}", self.place("controller-token")),
            "--runner-image=terrane.dev/local".to_owned(),
            "--allow-local-sources".to_owned(),
            format!("--git-dir={}", self.place("controller-git")),
            format!("--tools-dir={}", self.place("shared-tools")),
        ];
        self.start(name, arguments)
    }

    /// The datastore, on a disk of its own.
    fn datastore(&self, listen: SocketAddr) -> Guarded {
        let own = if rustix::process::geteuid().is_root() { "--mount" } else { "--map-root-user" };
        let directory = self.place("artefacts");
        fs::create_dir_all(&directory).unwrap();
        let above = ["unshare", own, "--mount", "--", "sh", "-ec", SMALL_DISK, "sh", &directory];
        let arguments = vec![
            "datastore".to_owned(),
            format!("--listen={listen}"),
            format!("--tls-cert={}", self.place("tls.crt")),
            format!("--tls-key={}", self.place("tls.key")),
            format!("--directory={directory}"),
            format!("--keys={}", self.place("artefact-keys")),
            format!("--tools={}", self.place("tools")),
            "--provider-registries=none".to_owned(),
        ];
        self.start_below(&above.map(str::to_owned), "datastore", arguments)
    }

    fn server(&self, name: &str, listen: SocketAddr, datastore: SocketAddr, authority: &str) -> Guarded {
        let arguments = vec![
            "server".to_owned(),
            format!("--listen={listen}"),
            format!("--public-url=http://{listen}"),
            format!("--datastore-url=https://{datastore}"),
            format!("--datastore-ca={}", self.place(authority)),
            format!("--token-file={}", self.place("server-token")),
        ];
        self.start(name, arguments)
    }

    /// A store of tools with a version that is nowhere else: the tool that is installed, under another name.
    fn keep_tool(&self) {
        #[allow(clippy::disallowed_methods)] // The tool is wherever the tests find it.
        let path = std::env::var_os("PATH").unwrap();
        let built = testkit::tools::tool("terragrunt").unwrap().parent().unwrap().to_owned();
        let found = std::env::split_paths(&path)
            .chain([built])
            .flat_map(|directory| ["terraform", "tofu"].map(|name| directory.join(name)))
            .find(|tool| tool.is_file())
            .unwrap();
        let store = Path::new(&self.place("shared-tools")).to_owned();
        fs::create_dir(&store).unwrap();
        let tool = store.join(format!("terraform-{STORED_VERSION}"));
        fs::write(&tool, format!("#!/bin/sh\nexec {} \"$@\"\n", found.display())).unwrap();
        for path in [&store, &tool] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    async fn declare(&self, name: &str, more: serde_json::Value) {
        let mut spec = json!({ "repository": { "name": "code" }, "branch": "main", "path": name });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let layer = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name }, "spec": spec,
        });
        let layers = Api::<TerraformLayer>::namespaced(self.ground.client.clone(), "default");
        layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
    }

    /// A request of the controllers to the datastore.
    async fn put(&self, url: String, content: Vec<u8>) -> (u16, String) {
        let authority = fs::read(self.place("ca.crt")).unwrap();
        let authority = reqwest::Certificate::from_pem(&authority).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().build().unwrap();
        let answer = http
            .put(url)
            .bearer_auth(fs::read_to_string(self.place("controller-token")).unwrap())
            .header("terrane-sha256", Sha256::of(&content).as_str())
            .body(content)
            .send()
            .await
            .unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// A certificate for the datastore, of an authority of its own, and another authority that has nothing to do with it.
    fn certify(&self) {
        let authority = || {
            let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (right, wrong) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        fs::write(self.place("tls.crt"), leaf.signed_by(&key, &right).unwrap().pem()).unwrap();
        fs::write(self.place("tls.key"), key.serialize_pem()).unwrap();
        fs::write(self.place("ca.crt"), right.pem()).unwrap();
        fs::write(self.place("wrong.crt"), wrong.pem()).unwrap();
    }

    /// The tokens of the controllers and of the service for people.
    async fn write_tokens(&self) {
        let post = PostParams::default();
        let namespace = json!({ "metadata": { "name": SYSTEM_NAMESPACE } });
        let namespaces = Api::<Namespace>::all(self.ground.client.clone());
        // The API may have made it already.
        let _ = namespaces.create(&post, &serde_json::from_value(namespace).unwrap()).await;
        let accounts = Api::<ServiceAccount>::namespaced(self.ground.client.clone(), SYSTEM_NAMESPACE);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![DATASTORE_AUDIENCE.to_owned()],
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        for (name, file) in [(CONTROLLER_ACCOUNT, "controller-token"), (SERVER_ACCOUNT, "server-token")] {
            let account = json!({ "metadata": { "name": name } });
            accounts.create(&post, &serde_json::from_value(account).unwrap()).await.unwrap();
            let made = accounts.create_token_request(name, &post, &request).await.unwrap();
            fs::write(self.place(file), made.status.unwrap().token).unwrap();
        }
    }
}

fn peak_memory(process: &Guarded) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn state_text(serial: u64, size: usize) -> Vec<u8> {
    let pad = "x".repeat(size);
    format!("{{\"version\":4,\"serial\":{serial},\"lineage\":\"l\",\"pad\":\"{pad}\"}}").into_bytes()
}

#[tokio::test]
async fn roles_apart_reach_a_datastore_by_its_own_authority_and_by_no_other() {
    let ground = Ground::new().await;
    let kubeconfig = ground.account("roles").await.display().to_string();
    let roles = Roles { ground: &ground, kubeconfig };
    roles.certify();
    roles.write_tokens().await;
    roles.keep_tool();
    let address = free_address();
    let mut datastore = roles.datastore(address);
    until("the datastore serves", || {
        datastore.ensure_running().unwrap();
        std::future::ready(roles.log("datastore").contains("serving artefacts").then_some(()))
    })
    .await;

    let mut mistaken = roles.controller("mistaken", free_address(), address, "wrong.crt");
    let ended = until("it ends by itself", || std::future::ready(mistaken.exited().unwrap())).await;
    assert_eq!(ended.code(), Some(1));
    let said = roles.log("mistaken");
    assert!(said.contains("error: the datastore's certificate is not believed"), "{said}");
    assert!(said.contains("name the authority that signed it with --datastore-ca"), "{said}");

    // Pods have users of their own, who must be able to get to the node's files.
    fs::set_permissions(ground.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let node = vec![
        "node".to_owned(),
        "--bind-unscheduled".to_owned(),
        format!("--data-dir={}", roles.place("node")),
        format!("--readable={}", roles.place("tools")),
        format!("--readable={}", roles.place("shared-tools")),
        format!("--kubeconfig={}", roles.kubeconfig),
    ];
    let _node = roles.start("node", node);
    let listen = free_address();
    let _controller = roles.controller("controller", listen, address, "ca.crt");
    // Only the store that --tools-dir names has this one.
    roles.declare("one", json!({ "terraform": { "version": STORED_VERSION } })).await;
    layer_until(&ground.client, "one", "planned by a runner over TLS", is("Ready")).await;

    people_are_served(&roles, address).await;
    a_large_state_is_not_held_in_memory(&roles, &datastore, address).await;
    a_full_disk_is_told_and_room_is_all_it_takes(&roles, &datastore, address).await;
    drop(datastore);
    a_datastore_that_is_away_is_told(&roles, listen).await;
    let _datastore = roles.datastore(address);
    readiness(listen, 200, "[+]datastore ok").await;
    drop((_controller, _node, roles));
    ground.end().await;
}

/// `terrane server` believes the datastore by `--datastore-ca`, and says what is wrong where it cannot.
async fn people_are_served(roles: &Roles<'_>, datastore: SocketAddr) {
    for (name, authority, says) in [
        ("mistaken-server", "wrong.crt", "the datastore's certificate is not believed"),
        ("server", "ca.crt", "[+]datastore ok"),
    ] {
        let listen = free_address();
        let mut server = roles.server(name, listen, datastore, authority);
        let text = until("the server tells how it is", || {
            server.ensure_running().unwrap();
            async move { page(listen, "/readyz").await.map(|(_, text)| text) }
        })
        .await;
        assert!(text.contains(says), "{text}");
        if authority != "ca.crt" {
            continue;
        }
        // The API is served by this very thread.
        let mut command = std::process::Command::new(BINARY);
        command.args(["logs", "one"]).env("KUBECONFIG", &roles.kubeconfig);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let log = String::from_utf8_lossy(&output.stdout);
        let tool = format!("terraform {STORED_VERSION}, commit");
        assert!(log.contains(&tool), "{log}{}", String::from_utf8_lossy(&output.stderr));
    }
}

async fn a_large_state_is_not_held_in_memory(roles: &Roles<'_>, process: &Guarded, datastore: SocketAddr) {
    let url = format!("https://{datastore}/v1/state/{}?namespace=default", Sha256::of(b"large"));
    let before = peak_memory(process);
    assert_eq!(roles.put(url, state_text(1, LARGE_STATE)).await, (200, String::new()));
    let grown = peak_memory(process) - before;
    assert!(grown < LARGE_STATE_MEMORY, "a state of {LARGE_STATE} bytes took {grown} bytes of memory");
}

async fn a_full_disk_is_told_and_room_is_all_it_takes(
    roles: &Roles<'_>,
    process: &Guarded,
    datastore: SocketAddr,
) {
    let disk = Path::new("/proc").join(process.pid().to_string()).join("root");
    let ballast = disk.join(roles.place("artefacts").trim_start_matches('/')).join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}

    // Larger than what connections hold on the way.
    let bundle = vec![7; 24_000_000];
    let name = Sha256::of(&bundle);
    let url = format!("https://{datastore}/v1/bundles/{name}");
    let message = format!(
        "the datastore is full: there is no room for bundles/{name}; free some space where it keeps its artefacts, or keep fewer runs (runHistoryPolicy)"
    );
    let (code, said) = roles.put(url.clone(), bundle.clone()).await;
    assert_eq!((code, said), (507, json!({ "message": message }).to_string()));
    roles.declare("two", json!({})).await;
    let is_told = |layer: &TerraformLayer| is_ready_because(layer, "DatastoreFull");
    let two = layer_until(&roles.ground.client, "two", "told that the datastore is full", is_told).await;
    assert!(why(&two).contains("the datastore is full"), "{}", why(&two));

    fs::remove_file(&ballast).unwrap();
    drop(file);
    assert_eq!(roles.put(url, bundle).await, (201, String::new()));
    layer_until(&roles.ground.client, "two", "planned when there is room", is("Ready")).await;
}

async fn a_datastore_that_is_away_is_told(roles: &Roles<'_>, controller: SocketAddr) {
    let wish = json!({ "metadata": { "annotations": { "terrane.dev/sync": "away" } } });
    let layers = Api::<TerraformLayer>::namespaced(roles.ground.client.clone(), "default");
    layers.patch("two", &PatchParams::default(), &Patch::Merge(wish)).await.unwrap();
    let is_told = |layer: &TerraformLayer| is_ready_because(layer, "DatastoreUnavailable");
    let two = layer_until(&roles.ground.client, "two", "told that the datastore is away", is_told).await;
    assert!(why(&two).contains("the datastore could not be reached"), "{}", why(&two));
    let text = readiness(controller, 503, "[-]datastore failed: ").await;
    assert!(text.contains("[+]api ok") && text.ends_with("not ready\n"), "{text}");
}

/// What `/readyz` says once it answers so, with these words in it.
async fn readiness(address: SocketAddr, code: u16, words: &str) -> String {
    until("its readiness is told", || async move {
        let (status, text) = page(address, "/readyz").await?;
        (status == code && text.contains(words)).then_some(text)
    })
    .await
}

fn is_ready_because(layer: &TerraformLayer, reason: &str) -> bool {
    let conditions = layer.status.as_ref().map_or(&[][..], |status| &status.conditions);
    condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == reason)
}
