//! Tools and providers from an administrator's mirrors, by the real binary: what a run gets, what it is refused, and the verbs that
//! look after the store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use api::run::Action;
use api::{TerraformLayer, TerraformRepository};
use kube::api::PostParams;
use kube::{Api, Client};
use node::isolation::Isolation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::process::{Guarded, Scratch};
use testkit::release::{Delivery, Mirror, Vendor, platform, zip};

use crate::harness::{BINARY, Terrane, git, is, layer_until, runs, until, why};

const WITH_PROVIDER: &str = "terraform {\n  required_providers {\n    local = { source = \"hashicorp/local\" }\n  }\n}\nresource \"local_file\" \"note\" {\n  filename = \"${path.module}/note\"\n  content  = \"hello\"\n}\n";
const WITHOUT: &str = "resource \"terraform_data\" \"x\" {}\n";
const SCRIPT: &[u8] = b"#!/bin/sh\nexit 1\n";

/// A directory that pods with users of their own may enter.
fn open_directory() -> Scratch {
    let scratch = Scratch::new("terrane-tools-").unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    scratch
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
}

type Layers<'a> = [(&'a str, &'a str, Option<&'a str>)];

/// Code for each layer.
fn commit(source: &Path, layers: &Layers<'_>) {
    for (name, code, _) in layers {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("main.tf"), code).unwrap();
    }
    git(source, &["init", "--quiet"]);
    git(source, &["add", "--all"]);
    git(source, &["commit", "--quiet", "--message=Start"]);
}

/// One repository with a layer for each name, code and version of terraform.
async fn declare(client: &Client, source: &Path, layers: &Layers<'_>) {
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "tools" },
        "spec": { "repository": { "url": format!("file://{}", source.display()) }, "pollInterval": "1s" },
    });
    let post = PostParams::default();
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.create(&post, &serde_json::from_value(repository).unwrap()).await.unwrap();
    let api = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    for (name, _, version) in layers {
        let terragrunt = match *name {
            "wrapped" => json!({ "enabled": true, "version": "99.0.0" }),
            _ => Value::Null,
        };
        let is_applied = ["fetched", "shared-1"].contains(name);
        let layer = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
            "spec": { "repository": { "name": "tools" }, "branch": "main", "path": name,
                "terraform": { "enabled": true, "version": version }, "terragrunt": terragrunt,
                "remediationStrategy": { "autoApply": is_applied } },
        });
        api.create(&post, &serde_json::from_value(layer).unwrap()).await.unwrap();
    }
}

/// Code whose apply succeeds only if it can change nothing in the store: not the program, not its neighbours.
fn vandal(store: &Path) -> String {
    let store = store.display();
    format!(
        "resource \"terraform_data\" \"vandal\" {{\n  provisioner \"local-exec\" {{\n    command = \"test -x {store}/terraform-99.0.0 && ! touch {store}/terraform-99.0.1 && ! rm -f {store}/terraform-99.0.0 && ! (echo >>{store}/terraform-99.0.0)\"\n  }}\n}}\n"
    )
}

fn is_planned(layer: &TerraformLayer) -> bool {
    why(layer).contains("1 to add")
}

/// A registry of providers with the real `local` in version 2.9.0 and one that was changed on the way in 3.0.0.
async fn registry(vendor: &Vendor) -> Mirror {
    let registry = Mirror::start_https().await.unwrap();
    let mirror = testkit::tools::provider_mirror().unwrap();
    let directory = mirror.join("registry.terraform.io/hashicorp/local/2.9.0").join(platform());
    let program = fs::read(directory.join("terraform-provider-local_v2.9.0")).unwrap();
    let archive = zip(&[("LICENSE.txt", b"text"), ("terraform-provider-local_v2.9.0", &program)]);
    registry.publish_provider("local", "2.9.0", archive, vendor);
    registry.publish_provider("local", "3.0.0", zip(&[("terraform-provider-local_v3.0.0", SCRIPT)]), vendor);
    let place = format!("files/local/3.0.0/terraform-provider-local_3.0.0_{}.zip", platform());
    registry.put(&place, zip(&[("terraform-provider-local_v3.0.0", b"evil")]));
    registry
}

/// Code with a provider of that registry, and a lock file as one made on another kind of machine: it names the archive alone.
fn lock(source: &Path, layer: &str, registry: &Mirror, version: &str, hash: Option<&str>) -> String {
    let address = format!("{}/hashicorp/local", registry.host());
    let sums = String::from_utf8(registry.content(&format!("files/local/{version}/SHA256SUMS"))).unwrap();
    let hash = hash.unwrap_or(sums.split_once(' ').unwrap().0);
    fs::create_dir_all(source.join(layer)).unwrap();
    let text = format!(
        "provider \"{address}\" {{\n  version = \"{version}\"\n  hashes = [\n    \"h1:of-another-platform=\",\n    \"zh:{hash}\",\n  ]\n}}\n"
    );
    fs::write(source.join(layer).join(".terraform.lock.hcl"), text).unwrap();
    WITH_PROVIDER.replace("hashicorp/local", &address)
}

// Commands are waited for on one thread while the mirror answers them on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_and_providers_come_from_the_administrators_mirrors() {
    let (mirror, vendor) = (Mirror::start().await.unwrap(), Vendor::new().unwrap());
    let real = fs::read(testkit::tools::tool("terraform").unwrap()).unwrap();
    mirror.publish_terraform("99.0.0", &real, &vendor);
    mirror.publish_terraform("98.0.0", SCRIPT, &Vendor::new().unwrap());
    let terragrunt = fs::read(testkit::tools::tool("terragrunt").unwrap()).unwrap();
    mirror.publish_terragrunt("99.0.0", terragrunt, &vendor);
    let (places, source) = (open_directory(), Scratch::new("terrane-source-").unwrap());
    let (keys, providers) = (places.path().join("keys"), places.path().join("providers"));
    fs::create_dir(&keys).unwrap();
    for program in ["terraform", "terragrunt"] {
        fs::write(keys.join(format!("{program}.gpg")), vendor.certificate()).unwrap();
    }
    copy(&testkit::tools::provider_mirror().unwrap(), &providers);

    let mut terrane = Terrane::new();
    let (url, keys) = (mirror.url(), keys.to_str().unwrap());
    let downloads = ["--tools-mirror", &url, "--tools-keys", keys];
    let registry = registry(&vendor).await;
    let (authority, host) = (places.path().join("ca.pem"), registry.host());
    fs::write(&authority, registry.authority()).unwrap();
    let shared = ["--provider-registries", &host, "--downloads-ca", authority.to_str().unwrap()];
    let mirrors = [&downloads[..], &["--provider-mirror", providers.to_str().unwrap()], &shared].concat();
    let client = terrane.start(&mirrors).await;
    let is_root = rustix::process::geteuid().is_root();
    let code = vandal(&if is_root { terrane.pods() } else { terrane.data() }.join("tools"));
    fs::create_dir(source.path().join("wrapped")).unwrap();
    fs::write(source.path().join("wrapped/terragrunt.hcl"), "").unwrap();
    lock(source.path(), "changed", &registry, "3.0.0", None);
    lock(source.path(), "locked", &registry, "2.9.0", Some(&"0".repeat(64)));
    for name in ["shared-2", "shared-3"] {
        lock(source.path(), name, &registry, "2.9.0", None);
    }
    let with_registry = lock(source.path(), "shared-1", &registry, "2.9.0", None);
    let layers = [
        ("fetched", code.as_str(), Some("99.0.0")),
        ("forged", WITHOUT, Some("98.0.0")),
        ("wrapped", WITHOUT, None),
        // At the same time, and with nothing but the mirror to get the provider from.
        ("one", WITH_PROVIDER, None),
        ("two", WITH_PROVIDER, None),
        // At the same time too: the registry is one that no tool here would believe.
        ("shared-1", with_registry.as_str(), None),
        ("shared-2", with_registry.as_str(), None),
        ("shared-3", with_registry.as_str(), None),
        ("changed", with_registry.as_str(), None),
        ("locked", with_registry.as_str(), None),
    ];
    commit(source.path(), &layers);
    declare(&client, source.path(), &layers).await;
    layer_until(&client, "fetched", "applied, and the store is as it was", is("Ready")).await;
    for name in ["one", "two", "wrapped"] {
        layer_until(&client, name, "planned", is_planned).await;
    }
    let log = String::from_utf8(terrane.command(&["logs", "fetched"]).stdout).unwrap();
    assert!(log.contains("terraform 99.0.0, commit "), "{log}");
    let log = String::from_utf8(terrane.command(&["logs", "wrapped"]).stdout).unwrap();
    assert!(log.contains("run by terragrunt 99.0.0, commit "), "{log}");
    let words = "none of the trusted keys made it";
    layer_until(&client, "forged", "refused", |layer| why(layer).contains(words)).await;
    shared_providers(&client, &registry).await;
    let plans = runs(&client, Action::Plan).await;
    for name in ["forged", "changed", "locked"] {
        let run = plans.iter().find(|run| run.spec.layer.name.as_str() == name).unwrap();
        let attempt = run.status.as_ref().unwrap().attempts.first().unwrap();
        assert_eq!(attempt.reason.as_deref(), Some("ToolUntrusted"), "{name}");
    }

    verbs(&terrane, &mirror, &vendor, &downloads).await;
}

/// Runs at the same time, one of them up to its apply, fetched a provider once; what was wrong stopped its run with the reason.
async fn shared_providers(client: &Client, registry: &Mirror) {
    for name in ["shared-2", "shared-3"] {
        layer_until(client, name, "planned", is_planned).await;
    }
    layer_until(client, "shared-1", "applied with the providers of its plan", is("Ready")).await;
    let archive = format!("terraform-provider-local_2.9.0_{}.zip", platform());
    assert_eq!(registry.requests(&archive), 1);
    let changed = |layer: &TerraformLayer| why(layer).contains("is not what was published");
    layer_until(client, "changed", "refused", changed).await;
    let locked = |layer: &TerraformLayer| {
        why(layer).contains("hashicorp/local 2.9.0 is not what the lock file allows")
    };
    layer_until(client, "locked", "refused", locked).await;
}

/// Pods that have no users of their own share one with the store; what keeps them from it is Landlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_users_runs_share_the_store_and_cannot_change_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: the other test is about an ordinary user already");
        return;
    }
    let user = 1_999_000_001;
    let mut terrane = Terrane::as_user(user);
    match Isolation::detect_without_root() {
        Isolation::Landlock => {}
        Isolation::Users(_) | Isolation::None { .. } => {
            eprintln!("this kernel has no Landlock: there is nothing to show");
            return;
        }
    }
    let (mirror, vendor) = (Mirror::start().await.unwrap(), Vendor::new().unwrap());
    let real = fs::read(testkit::tools::tool("terraform").unwrap()).unwrap();
    mirror.publish_terraform("99.0.0", &real, &vendor);
    let (keys, source) = (open_directory(), open_directory());
    fs::write(keys.path().join("terraform.gpg"), vendor.certificate()).unwrap();
    let (url, place) = (mirror.url(), keys.path().to_str().unwrap());
    let client = terrane.start(&["--tools-mirror", &url, "--tools-keys", place]).await;
    let code = vandal(&terrane.data().join("tools"));
    let layers = [("fetched", code.as_str(), Some("99.0.0"))];
    commit(source.path(), &layers);
    // git reads no repository of somebody else.
    let owner = Command::new("chown").args(["-R", &user.to_string()]).arg(source.path()).status().unwrap();
    assert!(owner.success());
    declare(&client, source.path(), &layers).await;
    layer_until(&client, "fetched", "applied, and the store is as it was", is("Ready")).await;
}

async fn verbs(terrane: &Terrane, mirror: &Mirror, vendor: &Vendor, downloads: &[&str]) {
    let data = terrane.data();
    let data = ["--data-dir", data.to_str().unwrap()];
    let listed = || -> Vec<String> {
        let output = terrane.command(&[&["tools", "list", "-o", "json"][..], &data].concat());
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let (providers, programs): (Vec<&Value>, Vec<&Value>) =
            rows.iter().partition(|row| row["program"].as_str().unwrap().contains('/'));
        let [provider] = providers[..] else { panic!("{providers:?}") };
        assert_eq!(provider["version"], "2.9.0", "what runs share, and nothing of what they were refused");
        programs.iter().map(|row| format!("{} {}", row["program"], row["version"]).replace('"', "")).collect()
    };
    assert_eq!(
        listed(),
        ["terraform 99.0.0", "terragrunt 99.0.0"],
        "what the run brought in, and nothing of what it was refused"
    );
    let table = terrane.command(&[&["tools", "list"][..], &data].concat());
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("99.0.0") && table.contains("signed by "), "{table}");

    // Killed in the middle of a download: nothing is there, and the next one is not disturbed.
    mirror.publish_terraform("97.0.0", SCRIPT, vendor);
    let archive = format!("terraform_97.0.0_{}.zip", platform());
    let good = zip(&[("LICENSE.txt", b"text"), ("terraform", SCRIPT)]);
    mirror.put_as(&format!("terraform/97.0.0/{archive}"), good, Delivery::Hanging);
    let install = [&["tools", "install", "terraform", "97.0.0"][..], &data, downloads].concat();
    let scratch = Scratch::new("terrane-killed-").unwrap();
    let mut process = Guarded::start(Path::new(BINARY), &install, scratch.path().join("log")).unwrap();
    until("the download has begun", || {
        process.ensure_running().unwrap();
        std::future::ready((mirror.requests(&archive) > 0).then_some(()))
    })
    .await;
    kill_process(Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap(), Signal::KILL).unwrap();
    until("it is dead", || std::future::ready(process.exited().unwrap())).await;
    assert_eq!(listed(), ["terraform 99.0.0", "terragrunt 99.0.0"]);
    mirror.publish_terraform("97.0.0", SCRIPT, vendor);
    let output = terrane.command(&install);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(listed(), ["terraform 97.0.0", "terraform 99.0.0", "terragrunt 99.0.0"]);

    let pruned = terrane.command(&[&["tools", "prune", "--dry-run"][..], &data].concat());
    assert_eq!(String::from_utf8(pruned.stdout).unwrap(), "terraform 97.0.0 would be removed\n");
    assert!(terrane.command(&[&["tools", "prune"][..], &data].concat()).status.success());
    assert_eq!(listed(), ["terraform 99.0.0", "terragrunt 99.0.0"]);
    let missing = [&["tools", "install", "terraform", "96.0.0"][..], &data, downloads].concat();
    let missing = terrane.command(&missing);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.starts_with("error: there is no http://") && said.contains("96.0.0"), "{said}");
}
