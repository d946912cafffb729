//! The HTTP service of a real `terrane up` as pages and programs use it: the printed link, tokens, and the page of the documentation.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::PATIENTLY;
use crate::harness::BINARY;
use crate::people::{Doors, finished, run_as};

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_programs_use_the_http_service() {
    let doors = Doors::open().await;
    doors.run(&["wait", "network", "--for=condition=Ready", PATIENTLY]).with_code(0);
    doors.run(&["wait", "database", "--for=condition=IsLastRelevantCommitPlanned", PATIENTLY]).with_code(0);
    logging_in(&doors).await;
    tokens(&doors).await;
    with_curl(&doors);
    doors.close().await;
}

/// The printed link opens one session; `terrane login` prints another.
async fn logging_in(doors: &Doors) {
    let printed = doors.printed();
    let link = printed.split_whitespace().find(|word| word.contains("/login?once=")).unwrap().to_owned();
    assert!(link.starts_with(&doors.service), "{link}");
    let opened = http().get(&link).send().await.unwrap();
    assert_eq!((opened.status().as_u16(), &opened.headers()["location"]), (303, &"/".parse().unwrap()));
    let cookie = opened.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let port = doors.service.rsplit(':').next().unwrap();
    assert!(cookie.starts_with(&format!("terrane_{port}=")), "{cookie}");
    assert_eq!(http().get(&link).send().await.unwrap().status(), 401, "a link works once");
    let me = format!("{}/api/v1/session", doors.service);
    let session: Value =
        http().get(&me).header("cookie", &cookie).send().await.unwrap().json().await.unwrap();
    assert_eq!(session["user"], "terrane-admin");
    let post = |layer: &str| {
        let url = format!("{}/api/v1/namespaces/default/layers/{layer}/sync", doors.service);
        http().post(url).header("cookie", &cookie)
    };
    assert_eq!(post("network").send().await.unwrap().status(), 403, "no page of ours asks like that");
    let ours = post("network").header("origin", &doors.service);
    let ours = ours.header("x-terrane-csrf", session["csrf"].as_str().unwrap());
    assert_eq!(ours.send().await.unwrap().status(), 202);

    let another = doors.run(&["login"]).with_code(0).out.trim().to_owned();
    assert_eq!(http().get(&another).send().await.unwrap().status(), 303);
    let (nobody, _) = doors.account("stranger", &["terrane-state-keeper"]).await;
    run_as(&nobody, &["login"]).with_code(1).complains("forbidden");
    run_as(&nobody, &["token", "list"]).with_code(1).complains("forbidden");
    run_as(&nobody, &["token", "create", "mine"]).with_code(1).complains("forbidden");
}

async fn tokens(doors: &Doors) {
    let made =
        doors.run(&["token", "create", "ci", "--namespaces", "default", "--expires", "1h"]).with_code(0);
    let token = made.out.trim().to_owned();
    assert!(token.starts_with("terrane_ci_") && made.err.contains("is not shown again"), "{made:?}");
    doors.run(&["token", "create", "ci"]).with_code(1).complains("there is a token ci already");
    doors.run(&["token", "create", "x", "--scope", "all"]).with_code(2).complains("all is no scope");
    let list = doors.run(&["token", "list"]).with_code(0).says("ci").says("read").says("default");
    list.keeps_quiet_about(&token);
    let layers = format!("{}/api/v1/layers?namespace=default&sort=name", doors.service);
    let get = || http().get(&layers).bearer_auth(&token);
    let answer: Value = get().send().await.unwrap().json().await.unwrap();
    let names: Vec<&str> =
        answer["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"network") && names.is_sorted(), "{names:?}");
    let sync = format!("{}/api/v1/namespaces/default/layers/network/sync", doors.service);
    assert_eq!(http().post(&sync).bearer_auth(&token).send().await.unwrap().status(), 403, "read alone");
    doors.run(&["token", "revoke", "ci"]).with_code(0).says("no longer works");
    assert_eq!(get().send().await.unwrap().status(), 401);
    doors.run(&["token", "revoke", "ci"]).with_code(1).complains("there is no token ci");
    // What the page of the service needs.
    let document: Value =
        http().get(format!("{}/openapi.json", doors.service)).send().await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"], json!("3.1.0"));
}

/// Every line of the documentation's page, by a shell and curl.
fn with_curl(doors: &Doors) {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rest.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let script: String = blocks.collect();
    assert!(script.matches("ask ").count() > 10, "{script}");
    let program = Path::new(BINARY).parent().unwrap().to_owned();
    let kubectl = testkit::tools::tool("kubectl").unwrap().parent().unwrap().to_owned();
    let programs = format!("{}:{}", program.display(), kubectl.display());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &format!("PATH=\"$PROGRAMS:$PATH\"\n{script}")]);
    let done =
        finished(shell.env("PROGRAMS", programs).env("KUBECONFIG", doors.kubeconfig()).output().unwrap());
    let done =
        done.with_code(0).says("\"decision\":\"approve\"").says("event: end").says("\"suspended\":true");
    done.says("id: ").says("\"user\":\"terrane:token:tour\"");
}
