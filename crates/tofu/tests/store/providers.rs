//! The store of providers against a registry on loopback, over https as the tools speak it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api::provider::Address;
use semver::Version;
use testkit::release::{Delivery, Mirror, Vendor, platform, zip};
use tofu::store::providers::{Package, Provider, ProviderStore, Registry, RegistryOptions};
use tofu::store::{Error, Platform};

const PROGRAM: &str = "terraform-provider-x_v1.0.0";

struct World {
    scratch: tempfile::TempDir,
    mirror: Mirror,
    vendor: Vendor,
    store: ProviderStore,
}

fn package(program: &[u8]) -> Vec<u8> {
    zip(&[("LICENSE.txt", b"text"), ("docs/notes", b"more"), (PROGRAM, program)])
}

impl World {
    async fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mirror = Mirror::start_https().await.unwrap();
        std::fs::write(scratch.path().join("ca.pem"), mirror.authority()).unwrap();
        let store = ProviderStore::open(scratch.path().join("providers")).unwrap();
        Self { scratch, mirror, vendor: Vendor::new().unwrap(), store }
    }

    fn registry(&self) -> Registry {
        let authority = Some(self.scratch.path().join("ca.pem"));
        Registry::new(RegistryOptions { hosts: vec![self.mirror.host()], authority }).unwrap()
    }

    fn provider(&self, version: &str) -> Provider {
        Provider {
            address: Address::parse(&format!("{}/hashicorp/x", self.mirror.host())).unwrap(),
            version: Version::parse(version).unwrap(),
            platform: Platform::named(platform()).unwrap(),
        }
    }

    async fn ensure(&self, version: &str, hashes: &[&str]) -> Result<Package, Error> {
        let hashes: Vec<String> = hashes.iter().map(|hash| (*hash).to_owned()).collect();
        self.store.ensure(&self.provider(version), &hashes, &self.registry()).await
    }

    /// Where the registry has the archive of a version.
    fn archive(version: &str) -> String {
        format!("files/x/{version}/terraform-provider-x_{version}_{}.zip", platform())
    }
}

/// All files below a directory, sorted, but no locks, which hold nothing.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_none_or(|ending| ending != "lock") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn many_at_once_fetch_a_provider_once_and_get_the_whole_of_it() {
    let world = World::new().await;
    world.mirror.publish_provider("x", "1.0.0", package(b"program"), &world.vendor);
    let registry = world.registry();
    let provider = world.provider("1.0.0");
    let all = (0..16).map(|_| world.store.ensure(&provider, &[], &registry));
    let packages = futures::future::join_all(all).await;
    let first = packages.first().unwrap().as_ref().unwrap().clone();
    for package in packages {
        assert_eq!(package.unwrap(), first);
    }
    assert_eq!(world.mirror.requests(".zip"), 1);
    assert_eq!(std::fs::read(first.directory.join(PROGRAM)).unwrap(), b"program");
    assert_eq!(std::fs::read(first.directory.join("docs/notes")).unwrap(), b"more");
    assert_eq!(std::fs::read(first.archive()).unwrap(), package(b"program"));
    assert_eq!(files(&first.directory).len(), 3);
    for path in first.directory.ancestors().take_while(|path| *path != world.scratch.path()) {
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o755, "{}", path.display());
    }
    assert_eq!(world.store.list().unwrap(), std::slice::from_ref(&first));
    // Found again without a word to anybody.
    let requests = world.mirror.requests("");
    let zh = first.record.zh();
    assert_eq!(world.ensure("1.0.0", &["h1:of-another-platform", &zh]).await.unwrap(), first);
    assert_eq!(world.mirror.requests(""), requests);
    world.store.remove(&first).await.unwrap();
    assert_eq!(files(world.store.root()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_is_not_vouched_for_or_not_locked_is_refused() {
    let world = World::new().await;
    let good = package(b"program");
    for version in ["1.0.0", "2.0.0", "3.0.0", "4.0.0"] {
        world.mirror.publish_provider("x", version, good.clone(), &world.vendor);
    }
    // Changed on the way.
    world.mirror.put(&World::archive("1.0.0"), package(b"evil!!!"));
    // The checksums as well, but not their signature.
    let sums = format!(
        "{}  terraform-provider-x_2.0.0_{}.zip\n",
        api::text::Sha256::of(&package(b"evil!!!")),
        platform()
    );
    world.mirror.put(&World::archive("2.0.0"), package(b"evil!!!"));
    world.mirror.put("files/x/2.0.0/SHA256SUMS", sums.clone());
    // The signature too, by somebody else.
    world.mirror.put(&World::archive("3.0.0"), package(b"evil!!!"));
    world.mirror.put("files/x/3.0.0/SHA256SUMS", sums.replace("2.0.0", "3.0.0"));
    let forged = Vendor::new().unwrap().sign(sums.replace("2.0.0", "3.0.0").as_bytes());
    world.mirror.put("files/x/3.0.0/SHA256SUMS.sig", forged);
    let table = [
        ("1.0.0", "is not what was published, and nothing was installed"),
        ("2.0.0", "does not belong to the content"),
        ("3.0.0", "none of the trusted keys made it"),
    ];
    for (version, why) in table {
        let error = world.ensure(version, &[]).await.unwrap_err();
        assert!(error.to_string().contains(why) && error.is_distrust(), "{error}");
    }
    assert_eq!(files(world.store.root()), Vec::<PathBuf>::new());

    let error = world.ensure("4.0.0", &["h1:x", "zh:y"]).await.unwrap_err();
    assert!(error.is_distrust());
    let said = error.to_string();
    assert!(said.contains("hashicorp/x 4.0.0 is not what the lock file allows"), "{said}");
    assert!(said.contains("run `terraform providers lock -platform=linux_"), "{said}");
    // It is what the registry vouches for, so that others have it.
    assert!(world.ensure("4.0.0", &[]).await.is_ok());
    // Also what is there already has to be allowed.
    assert!(world.ensure("4.0.0", &["h1:x"]).await.unwrap_err().is_distrust());
}

#[tokio::test]
async fn what_cannot_be_had_is_left_to_the_tool() {
    let world = World::new().await;
    world.mirror.publish_provider("x", "1.0.0", package(b"program"), &world.vendor);
    let declined = |error: Error| {
        assert!(!error.is_distrust(), "{error}");
        error.to_string()
    };
    assert!(declined(world.ensure("9.0.0", &[]).await.unwrap_err()).starts_with("there is no https://"));
    let strangers = Registry::new(RegistryOptions::default()).unwrap();
    let provider = world.provider("1.0.0");
    let said = declined(world.store.ensure(&provider, &[], &strangers).await.unwrap_err());
    assert!(said.contains("is no registry that providers are shared from"), "{said}");
    // Without its authority nobody believes that it is who it says, and it is not asked again at once.
    let distrustful = RegistryOptions { hosts: vec![world.mirror.host()], authority: None };
    let distrustful = Registry::new(distrustful).unwrap();
    let said = declined(world.store.ensure(&provider, &[], &distrustful).await.unwrap_err());
    assert!(said.contains("could not be fetched") && said.to_lowercase().contains("certificate"), "{said}");
    let said = declined(world.store.ensure(&provider, &[], &distrustful).await.unwrap_err());
    assert!(said.contains("did not answer a moment ago"), "{said}");
    // Broken off in the middle: nothing is left, and the next one works.
    world.mirror.put_as(&World::archive("1.0.0"), package(b"program"), Delivery::CutOff);
    declined(world.ensure("1.0.0", &[]).await.unwrap_err());
    assert_eq!(files(world.store.root()), Vec::<PathBuf>::new());
    world.mirror.put(&World::archive("1.0.0"), package(b"program"));
    assert!(world.ensure("1.0.0", &[]).await.is_ok());
    let strange = ".well-known/terraform.json";
    world.mirror.put(strange, "<html>");
    let said = declined(world.ensure("1.0.1", &[]).await.unwrap_err());
    assert!(said.contains("does not speak the protocol of provider registries"), "{said}");
    let missing = world.scratch.path().join("no.pem");
    let options = RegistryOptions { hosts: Vec::new(), authority: Some(missing) };
    assert!(Registry::new(options).is_err());
}
