//! The stores of programs and of providers against a mirror on loopback: what is installed, what is refused, and that nothing half is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod providers;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use api::tool::{Program, Trust};
use semver::Version;
use testkit::release::{Delivery, Mirror, Vendor, platform, zip};
use tofu::store::{Error, Installed, Source, SourceOptions, Store};

const SCRIPT: &[u8] = b"#!/bin/sh\necho \"ran $1\"\n";

struct World {
    scratch: tempfile::TempDir,
    mirror: Mirror,
    vendor: Vendor,
    store: Store,
}

impl World {
    async fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let vendor = Vendor::new().unwrap();
        let keys = scratch.path().join("keys");
        std::fs::create_dir(&keys).unwrap();
        std::fs::write(keys.join("terraform.gpg"), vendor.certificate()).unwrap();
        let store = Store::open(scratch.path().join("store")).unwrap();
        Self { scratch, mirror: Mirror::start().await.unwrap(), vendor, store }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }

    fn source(&self) -> Source {
        Source::new(SourceOptions {
            mirror: Some(self.mirror.url()),
            keys: Some(self.path("keys")),
            checksums: self.path("sums").is_file().then(|| self.path("sums")),
            authority: None,
        })
        .unwrap()
    }

    async fn install(&self, version: &str) -> Result<Installed, Error> {
        let version = Version::parse(version).unwrap();
        self.store.install(Program::Terraform, &version, &self.source(), &mut |_, _| {}).await
    }

    async fn ensure(&self, constraint: &str) -> Result<Installed, Error> {
        let constraint = constraint.parse().unwrap();
        self.store.ensure(Program::Terraform, &constraint, &self.source(), &mut |_, _| {}).await
    }

    /// Everything in the store but locks, which hold nothing.
    fn left(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.store.root()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort();
        names
    }
}

fn run(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_real_tool_is_installed_with_its_signature_checked() {
    let world = World::new().await;
    let real = std::fs::read(testkit::tools::tool("terraform").unwrap()).unwrap();
    world.mirror.publish_terraform("1.2.3", &real, &world.vendor);
    let mut told = Vec::new();
    let version = Version::new(1, 2, 3);
    let installed = world
        .store
        .install(Program::Terraform, &version, &world.source(), &mut |done, total| told.push((done, total)))
        .await
        .unwrap();
    assert!(run(&installed.path, "version").starts_with("Terraform v"), "the program itself");
    let record = world.store.record(&installed).unwrap();
    assert_eq!(record.bytes, u64::try_from(real.len()).unwrap());
    assert!(matches!(&record.trust, Trust::Signature { key } if key.len() == 40), "{record:?}");
    let (done, total) = told.last().copied().unwrap();
    assert_eq!(Some(done), total, "progress ends with everything");
    assert_eq!(world.left(), ["terraform-1.2.3", "terraform-1.2.3.json"]);
    assert_eq!(world.store.list().unwrap(), [installed]);
}

#[tokio::test]
async fn eight_at_once_download_once_and_agree() {
    let world = World::new().await;
    world.mirror.publish_terraform("1.2.3", SCRIPT, &world.vendor);
    let all = futures::future::join_all((0..8).map(|_| world.install("1.2.3"))).await;
    let paths: Vec<_> = all.into_iter().map(|installed| installed.unwrap().path).collect();
    assert!(paths.iter().all(|path| run(path, "x") == "ran x\n"));
    assert_eq!(world.mirror.requests(".zip"), 1);
    assert_eq!(world.left(), ["terraform-1.2.3", "terraform-1.2.3.json"]);
}

#[tokio::test]
async fn what_is_not_what_the_vendor_published_is_refused_and_nothing_is_left() {
    let world = World::new().await;
    let archive = format!("terraform/1.2.3/terraform_1.2.3_{}.zip", platform());
    let sums = "terraform/1.2.3/terraform_1.2.3_SHA256SUMS";
    let publish = || world.mirror.publish_terraform("1.2.3", SCRIPT, &world.vendor);
    let good = zip(&[("LICENSE.txt", b"text"), ("terraform", SCRIPT)]);

    let refused = async |what: &str, words: &str| {
        let error = world.install("1.2.3").await.expect_err(what);
        assert!(error.to_string().contains(words), "{what}: {error}");
        assert_eq!(world.left(), [""; 0], "{what}");
        error
    };
    refused("nothing there", "there is no http://").await;
    publish();
    world.mirror.put_as(&archive, good.clone(), Delivery::CutOff);
    assert!(!refused("a download that breaks off", "could not be fetched").await.is_distrust());
    world.mirror.put(&archive, zip(&[("terraform", b"#!/bin/sh\necho evil\n")]));
    assert!(refused("another archive", "is not what was published").await.is_distrust());
    world.mirror.put(&archive, good[..good.len() / 2].to_vec());
    refused("half an archive that says it is whole", "is not what was published").await;
    publish();
    world.mirror.put(sums, format!("{}  terraform_1.2.3_{}.zip\n", "0".repeat(64), platform()));
    assert!(refused("other checksums", "does not belong to the content").await.is_distrust());
    let stranger = Vendor::new().unwrap();
    world.mirror.publish_terraform("1.2.3", SCRIPT, &stranger);
    refused("another vendor", "none of the trusted keys").await;
    world.mirror.put(&format!("{sums}.sig"), "no signature");
    refused("no signature", "the signature").await;
    world.mirror.publish_archive("1.2.3", zip(&[("terraform", SCRIPT), ("../evil", b"x")]), &world.vendor);
    refused("a name that leads out", "leads out of the archive").await;
    assert!(!world.path("evil").exists() && !world.store.root().join("evil").exists());
    world.mirror.publish_archive("1.2.3", zip(&[("tofu", SCRIPT)]), &world.vendor);
    refused("another program", "does not hold \"terraform\"").await;

    publish();
    let old = Vendor::with_lifetime(500).unwrap();
    std::fs::write(world.path("keys/terraform.gpg"), old.certificate()).unwrap();
    world.mirror.publish_terraform("1.2.3", SCRIPT, &old);
    refused("a key that had ended", "had expired").await;
    std::fs::write(world.path("keys/terraform.gpg"), "no key").unwrap();
    refused("a key file without a key", "cannot be used").await;
    std::fs::remove_file(world.path("keys/terraform.gpg")).unwrap();
    let error = refused("no key", "nothing says which bytes are right").await.to_string();
    assert!(error.contains(world.path("keys/terraform.asc").to_str().unwrap()), "{error}");

    // A checksum that the administrator wrote down needs no signature; a wrong one is as good as none.
    publish();
    let name = format!("terraform_1.2.3_{}.zip", platform());
    std::fs::write(world.path("sums"), format!("{}  {name}\n", "0".repeat(64))).unwrap();
    refused("a wrong checksum of the administrator", "is not what was published").await;
    let digest = api::text::Sha256::of(&good);
    std::fs::write(world.path("sums"), format!("{digest}  {name}\n")).unwrap();
    let installed = world.install("1.2.3").await.unwrap();
    assert_eq!(world.store.record(&installed).unwrap().trust, Trust::Checksum);
}

#[tokio::test]
async fn an_installation_that_is_given_up_leaves_nothing_and_the_next_one_works() {
    let world = World::new().await;
    world.mirror.publish_terraform("1.2.3", SCRIPT, &world.vendor);
    let archive = format!("terraform/1.2.3/terraform_1.2.3_{}.zip", platform());
    let good = zip(&[("LICENSE.txt", b"text"), ("terraform", SCRIPT)]);
    world.mirror.put_as(&archive, good.clone(), Delivery::Hanging);
    {
        let installing = world.install("1.2.3");
        let arrived = async {
            while world.mirror.requests(".zip") == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            ended = installing => panic!("it cannot end: {ended:?}"),
            () = arrived => {}
        }
    }
    assert_eq!(world.left(), [""; 0]);
    // What a killed process leaves, which nobody tidied up.
    let draft = world.store.root().join(".terraform-1.2.3.new");
    std::fs::create_dir(&draft).unwrap();
    std::fs::write(draft.join("download"), "half").unwrap();
    assert_eq!(world.store.list().unwrap(), []);
    world.mirror.put(&archive, good);
    let installed = world.install("1.2.3").await.unwrap();
    assert_eq!(run(&installed.path, "x"), "ran x\n");
    assert_eq!(world.left(), ["terraform-1.2.3", "terraform-1.2.3.json"]);
    world.store.remove(&installed).await.unwrap();
    assert_eq!(world.left(), [""; 0]);
}

#[tokio::test]
async fn everybody_executes_and_only_the_owner_writes() {
    let world = World::new().await;
    world.mirror.publish_terraform("1.2.3", SCRIPT, &world.vendor);
    let installed = world.install("1.2.3").await.unwrap();
    for path in [world.store.root(), &installed.path] {
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o755, "{}", path.display());
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: that another user cannot write was checked by the modes alone");
        return;
    }
    let script = "\"$0\" other && ! echo x >>\"$0\" && ! rm -f \"$0\" && ! touch \"$1/terraform-9.9.9\"";
    let mut other = Command::new("/bin/sh");
    other
        .args(["-c", script])
        .arg(&installed.path)
        .arg(world.store.root())
        .uid(2_000_000_001)
        .gid(2_000_000_001);
    let output = other.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"ran other\n");
}

#[tokio::test]
async fn a_constraint_takes_what_is_there_and_else_the_newest_that_is_listed() {
    let world = World::new().await;
    for version in ["1.2.3", "1.4.0", "2.0.0"] {
        world.mirror.publish_terraform(version, SCRIPT, &world.vendor);
    }
    let without_list = world.ensure("~> 1.2").await.unwrap_err().to_string();
    assert!(without_list.contains("/terraform/index.json"), "{without_list}");
    let index = r#"{"versions": {"1.2.3": {}, "1.4.0": {}, "1.5.0-beta1": {}, "2.0.0": {}}}"#;
    world.mirror.put("terraform/index.json", index);
    assert_eq!(world.ensure("1.2.3").await.unwrap().version, Version::new(1, 2, 3));
    assert_eq!(world.ensure("~> 1.2").await.unwrap().version, Version::new(1, 2, 3), "what is there");
    assert_eq!(world.ensure("~> 1.3").await.unwrap().version, Version::new(1, 4, 0), "the newest below 2");
    let none = world.ensure(">= 3").await.unwrap_err().to_string();
    assert_eq!(none, "no released terraform satisfies >= 3");
}
