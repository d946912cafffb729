//! Builds by kaniko, as far as the runner goes: what its child is told and what is kept from it, and what becomes of one that fails. The child
//! here is a script that says it is none, beside a real registry; the real one needs a container, and is in `tools/cluster/checks/builds.sh`.

use std::path::PathBuf;
use std::time::Duration;

use api::attempt::{BuildOrder, Description, Outcome, Reason, Registries};
use api::image::{BuiltImage, ImageBuilder};
use api::run::Action;
use runner::RunnerOptions;
use serde_json::json;
use testkit::registry::{File, Image, Registry};

use crate::{World, until};

const HOST: &str = "registry.example.org";
const PASSWORD: &str = "open-sesame";
/// What `htpasswd -B` makes of it.
const HASH: &str = "jane:$2b$04$afPQqIP99QwAMDU9XzfO/OXH.MgqrIt66uvMekYCjxsq1s5tISZcK";
const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// Writes down what it was told, and claims to have made an image.
const BUILDS: &str = "echo 'INFO this is no kaniko'\n\
    for argument; do case $argument in --digest-file=*) printf '%s' $DIGEST > ${argument#*=} ;; esac; done";

fn image(tag: &str, dockerfile: Option<&str>) -> BuiltImage {
    BuiltImage {
        host: HOST.to_owned(),
        path: "team/code".to_owned(),
        tag: tag.parse().unwrap(),
        base: None,
        builder: ImageBuilder::Kaniko,
        dockerfile: dockerfile.map(|path| path.parse().unwrap()),
    }
}

/// A build by such a script, each in a directory of its own, with the login that a pod mounts.
struct Build<'a> {
    world: &'a World,
    registry: &'a Registry,
    name: &'a str,
    script: &'a str,
    image: BuiltImage,
}

impl Build<'_> {
    fn told(&self) -> PathBuf {
        self.world.dir.path().join(self.name).join("told")
    }

    /// What the child was started with: arguments, environment, and the login that it finds.
    fn was_told(&self) -> String {
        std::fs::read_to_string(self.told()).unwrap_or_default()
    }

    async fn description(&self) -> Description {
        let order = BuildOrder {
            image: self.image.clone(),
            login: None,
            registries: Registries {
                rewrites: vec![format!("{HOST}=http://{}", self.registry.address())],
                own_too: true,
                private_denied: false,
            },
            cache: None,
        };
        let description = self.world.description(self.name, Action::Build, 0);
        let description = Description { build: Some(order), ..description };
        self.world.describe(&description).await;
        description
    }

    fn options(&self, executor: bool) -> RunnerOptions {
        use std::os::unix::fs::PermissionsExt;
        let directory = self.world.dir.path().join(self.name);
        std::fs::create_dir_all(directory.join("login")).unwrap();
        let config = json!({ "auths": { HOST: { "username": "jane", "password": PASSWORD } } });
        std::fs::write(directory.join("login/.dockerconfigjson"), config.to_string()).unwrap();
        let program = directory.join("executor");
        let told = self.told();
        let told = told.display();
        let script = format!(
            "#!/bin/sh\nDIGEST={DIGEST}\n{{ printf '%s\\n' \"$@\"; env; }} > {told}\ncat \"$DOCKER_CONFIG/config.json\" > {told}.login\n{}\n",
            self.script
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        RunnerOptions {
            kaniko: executor.then_some(program),
            inputs: vec![directory.join("login")],
            work_dir: directory.join("work"),
            environment: vec![("CLOUD_PASSWORD".into(), "from-the-pod".into())],
            grace: Duration::from_millis(200),
            ..self.world.options(self.name)
        }
    }

    async fn run(&self) -> Outcome {
        self.description().await;
        self.world.run_with(self.options(true), std::future::pending()).await
    }
}

async fn places() -> (World, Registry) {
    let world = World::new(&[("Dockerfile", "FROM scratch\n"), ("docker/Other", "FROM scratch\n")]).await;
    (world, Registry::guarded("jane", PASSWORD, HASH).await.unwrap())
}

#[tokio::test]
async fn kaniko_is_told_what_it_needs_and_no_secret() {
    let (world, registry) = places().await;
    let build = |name, script, tag, dockerfile| Build {
        world: &world,
        registry: &registry,
        name,
        script,
        image: image(tag, dockerfile),
    };
    let plain = build("plain", BUILDS, "one", None);
    let outcome = plain.run().await;
    assert_eq!(outcome.reason, Reason::Succeeded, "{}", outcome.message);
    assert_eq!(outcome.message, format!("Built and pushed {HOST}/team/code:one@{DIGEST}."));
    assert_eq!(outcome.image.unwrap().digest.as_str(), DIGEST);
    let told = plain.was_told();
    let place = format!("{}/team/code", registry.address());
    for argument in [
        format!("--destination={place}:one"),
        format!("--cache-repo={place}/cache"),
        "--cache=true".to_owned(),
        "--force".to_owned(),
        format!("--insecure-registry={}", registry.address()),
        format!("--registry-map={HOST}={}", registry.address()),
        "--skip-default-registry-fallback".to_owned(),
    ] {
        assert!(told.lines().any(|line| line == argument), "no {argument} in {told}");
    }
    assert!(told.contains("/source/Dockerfile\n"), "{told}");
    assert!(!told.contains("from-the-pod") && !told.contains("TERRANE_TOKEN"), "{told}");
    let login = std::fs::read_to_string(format!("{}.login", plain.told().display())).unwrap();
    let encoded = "amFuZTpvcGVuLXNlc2FtZQ==";
    assert!(login.contains(encoded), "{login}");
    for secret in [PASSWORD, encoded] {
        assert!(!told.contains(secret), "{told}");
        assert!(!world.log_of("plain").await.contains(secret));
    }

    let named = build("named", BUILDS, "two", Some("docker/Other"));
    assert_eq!(named.run().await.reason, Reason::Succeeded);
    assert!(named.was_told().contains("/source/docker/Other\n"));
    let missing = build("missing", BUILDS, "three", Some("docker/None")).run().await;
    assert_eq!(missing.reason, Reason::BadInput);
    assert!(missing.message.starts_with("docker/None is not a file at commit "), "{}", missing.message);

    // What is there under a tag that is made of all inputs is not built again.
    let layers: &[&[File<'_>]] = &[&[File { path: "a", content: "b", mode: 0o644 }]];
    let known = Image { layers, working_directory: "/", environment: &[] };
    let digest = registry.push("team/code", "four", known).await.unwrap();
    let again = build("again", BUILDS, "four", None);
    let outcome = again.run().await;
    assert_eq!(outcome.image.unwrap().digest.as_str(), digest);
    assert!(outcome.message.ends_with("is there already; nothing was pushed."), "{}", outcome.message);
    assert_eq!(again.was_told(), "", "kaniko was not started");

    let without = build("without", BUILDS, "five", None);
    without.description().await;
    let outcome = world.run_with(without.options(false), std::future::pending()).await;
    assert_eq!(outcome.message, "this runner's image has no kaniko; name one that has by --builder-image");
}

#[tokio::test]
async fn a_code_without_a_dockerfile_is_laid_over_its_base() {
    let world = World::new(&[("envs/prod/main.tf", "")]).await;
    let registry = Registry::guarded("jane", PASSWORD, HASH).await.unwrap();
    let script = format!(
        "for argument; do case $argument in --dockerfile=*) cat ${{argument#*=}} ;; esac; done\n{BUILDS}"
    );
    let base = format!("{HOST}/team/base@{DIGEST}");
    let image = BuiltImage { base: Some(base.parse().unwrap()), ..image("one", None) };
    let build = Build { world: &world, registry: &registry, name: "bare", script: &script, image };
    let outcome = build.run().await;
    assert_eq!(outcome.reason, Reason::Succeeded, "{}", outcome.message);
    let log = world.log_of("bare").await;
    let expected = format!("FROM {base}\nWORKDIR /workspace\nCOPY . /workspace\n");
    assert!(log.contains(&expected), "{log}");
    assert!(log.contains("because it has no Dockerfile"), "{log}");
}

#[tokio::test]
async fn a_kaniko_that_misbehaves_ends_its_build_with_clear_words_and_without_secrets() {
    let (world, registry) = places().await;
    let build =
        |name, script| Build { world: &world, registry: &registry, name, script, image: image(name, None) };
    let tells = "echo 'INFO Running: [/bin/sh -c make]' >&2; cat \"$DOCKER_CONFIG/config.json\"; echo\n\
                 echo 'error building image: waiting for process to exit: exit status 3, jane:open-sesame'; exit 3";
    let fails = build("fails", tells).run().await;
    assert_eq!((fails.reason, fails.exit_code), (Reason::BuildFailed, 3));
    assert_eq!(
        fails.message,
        "kaniko failed (exit code 3): error building image: waiting for process to exit: exit status 3, jane:***"
    );
    let log = world.log_of("fails").await;
    assert!(log.contains("Running: [/bin/sh -c make]") && log.contains("auths"), "{log}");
    for secret in [PASSWORD, "amFuZTpvcGVuLXNlc2FtZQ"] {
        assert!(!log.contains(secret), "{log}");
    }

    let silent = build("silent", "exit 0").run().await;
    assert_eq!(silent.reason, Reason::BuildFailed);
    assert_eq!(silent.message, "kaniko ended well and did not say which image it made");

    let hangs = build("hangs", "trap '' INT; sleep 100000");
    hangs.description().await;
    let stop = async {
        until(|| hangs.told().exists()).await;
    };
    let hangs = world.run_with(hangs.options(true), stop).await;
    assert_eq!((hangs.reason, hangs.message.as_str()), (Reason::Interrupted, "the build was stopped"));
}
