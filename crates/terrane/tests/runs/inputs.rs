//! What people get wrong, and what repositories contain that they should not: each is told on the layer it concerns, in words that
//! say what to do, and no other layer waits for it.

use std::fs;
use std::os::unix::fs::symlink;

use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::forge::HttpsForge;
use testkit::process::Scratch;

use crate::harness::{Terrane, commit_files, git, is, layer_until, run_until, until, why};

/// How much a tool prints that does not stop: more than any runner should ever hold.
const FLOODED: usize = 100_000_000;
/// Of a version that nobody else takes for the newest. In long lines, so that it is about the amount. At the end it reads how much memory its parent, the runner, has used at most.
const FLOOD: &str = "#!/bin/sh
case \"$1\" in
  version) echo '{\"terraform_version\": \"0.66.6\"}' ;;
  plan)
    head -c 100000000 /dev/zero | tr '\\0' x | fold -w 50000
    echo
    grep VmHWM /proc/$PPID/status
    echo
    echo 'Error: too much to say'
    exit 1 ;;
esac
";

/// Of another such version.
const HANG: &str = "#!/bin/sh
case \"$1\" in
  version) echo '{\"terraform_version\": \"0.66.7\"}' ;;
  plan) exec sleep 100000 ;;
esac
";

struct Bad {
    layer: &'static str,
    repository: &'static str,
    branch: &'static str,
    path: &'static str,
    says: &'static str,
}

const BAD: [Bad; 12] = [
    Bad { layer: "unparsable", repository: "code", branch: "main", path: "unparsable", says: "main.tf" },
    Bad {
        layer: "misplaced",
        repository: "code",
        branch: "main",
        path: "nowhere",
        says: "nowhere does not exist at commit",
    },
    Bad {
        layer: "branchless",
        repository: "code",
        branch: "absent",
        path: "fine",
        says: "branch absent: no such branch or tag",
    },
    Bad {
        layer: "hollow",
        repository: "hollow",
        branch: "main",
        path: "fine",
        says: "branch main: no such branch or tag",
    },
    Bad {
        layer: "vanished",
        repository: "vanished",
        branch: "main",
        path: "fine",
        says: "was not found; check the URL",
    },
    Bad {
        layer: "linked",
        repository: "linked",
        branch: "main",
        path: "fine",
        says: "fine/passwd in commit",
    },
    Bad {
        layer: "huge",
        repository: "huge",
        branch: "main",
        path: "fine",
        says: "takes more than 4 MiB with its history, which is the limit here; take large files out of its history, or raise --max-repository-size",
    },
    Bad {
        layer: "bulky",
        repository: "bulky",
        branch: "main",
        path: "fine",
        says: "take more than 1 MiB, which is the limit here; take large files out of the repository, or raise --max-bundle-size",
    },
    Bad {
        layer: "locked-out",
        repository: "locked-out",
        branch: "main",
        path: "fine",
        says: "Secret absent, named in spec.repository.credentials, does not exist in namespace default; create it there",
    },
    Bad {
        layer: "wrong-password",
        repository: "wrong-password",
        branch: "main",
        path: "fine",
        says: "refused the credentials; check that the Secret of this repository is present, not expired",
    },
    Bad {
        layer: "wrong-key",
        repository: "wrong-key",
        branch: "main",
        path: "fine",
        says: "key ssh-privatekey of the Secret is no private key",
    },
    Bad {
        layer: "homeless",
        repository: "nobody",
        branch: "main",
        path: "fine",
        says: "repository nobody not found in this namespace",
    },
];

fn repository(name: &str, url: &str) -> Value {
    json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": name },
        "spec": { "repository": { "url": url }, "pollInterval": "1s" },
    })
}

fn layer(name: &str, repository: &str, branch: &str, path: &str) -> Value {
    json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": { "repository": { "name": repository }, "branch": branch, "path": path, "remediationStrategy": { "autoApply": true } },
    })
}

async fn declare(client: &Client, object: Value) {
    let post = PostParams::default();
    if object["kind"] == "TerraformLayer" {
        let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
        layers.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    } else {
        let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
        repositories.create(&post, &serde_json::from_value(object).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn bad_input_is_told_where_it_belongs_and_delays_nobody_else() {
    let sources = Scratch::new("terrane-inputs-").unwrap();
    let place = |name: &str| sources.path().join(name);
    for name in ["code", "hollow", "linked", "huge", "bulky"] {
        fs::create_dir_all(place(name)).unwrap();
    }
    const FINE: &str = "resource \"terraform_data\" \"fine\" {}\n";
    commit_files(&place("code"), &[("fine/main.tf", FINE), ("unparsable/main.tf", "resource \"x\" {\n")]);
    git(&place("hollow"), &["init", "--quiet"]);
    fs::create_dir_all(place("linked").join("fine")).unwrap();
    symlink("/etc/passwd", place("linked").join("fine/passwd")).unwrap();
    commit_files(&place("linked"), &[("fine/main.tf", FINE)]);

    // What does not compress makes a large repository, what does only large files.
    let mut noise = 1_u64;
    let incompressible = (0..900_000).map(|_| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.to_be_bytes()
    });
    fs::write(place("huge").join("noise"), incompressible.flatten().collect::<Vec<u8>>()).unwrap();
    commit_files(&place("huge"), &[("fine/main.tf", FINE)]);
    fs::write(place("bulky").join("zeros"), vec![0; 2 * 1024 * 1024]).unwrap();
    commit_files(&place("bulky"), &[("fine/main.tf", FINE)]);

    git(sources.path(), &["clone", "--quiet", "--bare", "code", "team.git"]);
    let forge = HttpsForge::start(sources.path(), "git", "right").await.unwrap();

    let mut terrane =
        Terrane::new().with_script("terraform-0.66.6", FLOOD).with_script("terraform-0.66.7", HANG);
    let client = terrane.start(&["--max-repository-size", "4", "--max-bundle-size", "1"]).await;
    let url = |name: &str| format!("file://{}", place(name).display());
    for name in ["code", "hollow", "vanished", "linked", "huge", "bulky"] {
        declare(&client, repository(name, &url(name))).await;
    }
    let mut locked_out = repository("locked-out", &url("code"));
    locked_out["spec"]["repository"]["credentials"] = json!({ "secretName": "absent" });
    declare(&client, locked_out).await;
    let authority = forge.authority();
    let wrong = [
        ("wrong-password", forge.url("team.git"), json!({ "token": "wrong", "ca.crt": authority })),
        (
            "wrong-key",
            "ssh://git@localhost/team.git".to_owned(),
            json!({ "ssh-privatekey": "ssh-ed25519 AAAA it-is-public" }),
        ),
    ];
    for (name, url, data) in wrong {
        let secret = json!({ "metadata": { "name": name }, "stringData": data });
        let secrets = Api::<Secret>::namespaced(client.clone(), "default");
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let mut private = repository(name, &url);
        private["spec"]["repository"]["credentials"] = json!({ "secretName": name });
        declare(&client, private).await;
    }
    let mut flooding = layer("flooding", "code", "main", "fine");
    flooding["spec"]["terraform"] = json!({ "enabled": true, "version": "0.66.6" });
    flooding["spec"]["workspace"] = json!("flooded");
    flooding["spec"]["remediationStrategy"]["onError"] = json!({ "maxRetries": 0 });
    declare(&client, flooding).await;
    let mut hanging = layer("hanging", "code", "main", "fine");
    hanging["spec"]["terraform"] = json!({ "enabled": true, "version": "0.66.7" });
    hanging["spec"]["workspace"] = json!("hung");
    hanging["spec"]["timeouts"] = json!({ "plan": "1s" });
    hanging["spec"]["remediationStrategy"]["onError"] = json!({ "maxRetries": 0 });
    declare(&client, hanging).await;
    for bad in &BAD {
        declare(&client, layer(bad.layer, bad.repository, bad.branch, bad.path)).await;
    }
    declare(&client, layer("fine", "code", "main", "fine")).await;
    layer_until(&client, "fine", "applied beside all the bad ones", is("Ready")).await;
    for bad in &BAD {
        let told = layer_until(&client, bad.layer, bad.says, |layer| why(layer).contains(bad.says)).await;
        let status = told.status.unwrap();
        let ready = condition::find(&status.conditions, "Ready").unwrap();
        assert_ne!(ready.status, "True", "{}", bad.layer);
        assert!(ready.message.contains(bad.says), "{}: {}", bad.layer, ready.message);
    }

    flood_is_told(&terrane, &client).await;
    let says = "took longer than the 1s of spec.timeouts.plan and was stopped";
    let hung = layer_until(&client, "hanging", says, |layer| why(layer).contains(says)).await;
    let status = hung.status.unwrap();
    let ready = condition::find(&status.conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "GaveUp"));
    assert!(ready.message.contains(says), "{}", ready.message);
    let timed_out = run_until(&client, "hanging", "its run", is_over).await;
    assert_eq!(timed_out.status.unwrap().result.unwrap().reason, "TimedOut");

    for wrong in ["-oProxyCommand=touch /tmp/x", "ext::sh -c id"] {
        let refused = create_raw(&client, repository("wrong", wrong)).await;
        assert!(refused.contains("spec.repository.url"), "{wrong}: {refused}");
    }
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

fn is_over(run: &TerraformRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.result.is_some())
}

/// All of it is in the log, and the runner never held it: its own high-water mark is in the last line.
async fn flood_is_told(terrane: &Terrane, client: &Client) {
    let says = "too much to say";
    layer_until(client, "flooding", says, |layer| why(layer).contains(says)).await;
    let log = until("the whole log is there", || {
        let log = terrane.command(&["logs", "flooding"]).stdout;
        std::future::ready((log.len() > FLOODED).then_some(log))
    })
    .await;
    let log = String::from_utf8_lossy(&log);
    let (_, mark) = log.rsplit_once("VmHWM:").expect("the runner's high-water mark");
    let mark = mark.lines().next().unwrap_or_default();
    let kilobytes: u64 = mark.trim().trim_end_matches("kB").trim().parse().unwrap();
    assert!(kilobytes < 256 * 1024, "the runner used {kilobytes} kB");
}

/// What the API answers to an object that our own types would not even hold.
async fn create_raw(client: &Client, object: Value) -> String {
    let request = http::Request::post("/apis/terrane.dev/v1alpha1/namespaces/default/terraformrepositories")
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(made) => panic!("accepted: {made}"),
        Err(error) => error.to_string(),
    }
}
