//! `terrane server` as a role of its own, with TLS of its own, found by the command line through the API.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::process::Guarded;

use crate::harness::{BINARY, until};
use crate::people::{Doors, finished};

/// Tries, because a port that was free can be taken by the time it is used.
const TRIES: u32 = 5;

struct Certificate {
    pem: String,
    chain: PathBuf,
    key: PathBuf,
}

pub async fn server(doors: &Doors) {
    let clear = Command::new(BINARY)
        .args([
            "server",
            "--listen",
            "0.0.0.0:0",
            "--datastore-url",
            "http://127.0.0.1:1",
            "--token-file",
            "none",
        ])
        .env("KUBECONFIG", doors.kubeconfig())
        .output();
    finished(clear.unwrap()).with_code(1).complains("would take tokens in clear from the network");

    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = Certificate {
        pem: made.cert.pem(),
        chain: doors.scratch().join("server.crt"),
        key: doors.scratch().join("server.key"),
    };
    fs::write(&certificate.chain, &certificate.pem).unwrap();
    fs::write(&certificate.key, made.signing_key.serialize_pem()).unwrap();
    let (_role, address, log) = start(doors, &certificate).await;

    let authority = reqwest::Certificate::from_pem(certificate.pem.as_bytes()).unwrap();
    let trusting = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().build().unwrap();
    let ready = until("the server is ready", || async {
        let answer = trusting.get(format!("https://{address}/readyz")).send().await.ok()?;
        (answer.status() == 200).then_some(answer.text().await.ok()?)
    })
    .await;
    assert!(ready.contains("[+]api ok") && ready.contains("[+]datastore ok"), "{ready}");
    let strange = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(strange.get(format!("https://{address}/readyz")).send().await.is_err(), "an unknown authority");
    assert!(strange.get(format!("http://{address}/readyz")).send().await.is_err(), "tokens in clear");

    // The command line now goes to the new one, as the API says.
    doors.run(&["get", "layers", "network"]).with_code(0);
    assert!(!doors.run(&["logs", "network"]).with_code(0).out.is_empty());
    doors.run(&["history", "network", "-o", "json"]).with_code(0).says("\"audit\"");
    doors.run(&["outputs", "network", "cidr"]).with_code(0).says("10.0.1.0/24");
    let said = fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let serving = lines.iter().find(|line| line["message"] == "serving people").unwrap();
    assert_eq!(
        (&serving["level"], &serving["address"]),
        (&json!("INFO"), &json!(address.to_string())),
        "{said}"
    );
    let elsewhere =
        trusting.get(format!("https://{address}/api/v1/namespaces/default/layers/network/outputs"));
    assert_eq!(elsewhere.send().await.unwrap().status(), 401);
}

/// The role on a port that it announces.
async fn start(doors: &Doors, certificate: &Certificate) -> (Guarded, SocketAddr, PathBuf) {
    for attempt in 0..TRIES {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = doors.scratch().join(format!("server-{attempt}.log"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let arguments = [
            format!("KUBECONFIG={}", text(&doors.kubeconfig())),
            BINARY.to_owned(),
            "server".to_owned(),
            format!("--listen={address}"),
            format!("--tls-cert={}", text(&certificate.chain)),
            format!("--tls-key={}", text(&certificate.key)),
            format!("--public-url=https://{address}"),
            format!("--public-ca={}", text(&certificate.chain)),
            format!("--datastore-url={}", doors.service),
            format!("--token-file={}", text(&doors.data().join("server-token"))),
            "--log-format=json".to_owned(),
        ];
        let mut role = Guarded::start(Path::new("/usr/bin/env"), &arguments, log.clone()).unwrap();
        let serves = until("the server serves or has ended", || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let ended = role.exited().unwrap().is_some();
            std::future::ready(if said.contains("serving people") {
                Some(true)
            } else {
                ended.then_some(false)
            })
        })
        .await;
        if serves {
            return (role, address, log);
        }
        let said = fs::read_to_string(&log).unwrap();
        assert!(said.contains("is taken by"), "{said}");
    }
    panic!("no port of {TRIES} was free");
}
