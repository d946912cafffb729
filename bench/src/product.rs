//! The product that is measured as a person has it: `terrane up` from its release build, a Git repository on this machine, and the
//! real tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use kube::config::{KubeConfigOptions, Kubeconfig};
use node::isolation::Isolation;
use serde_json::{Value, json};
use testkit::process::{Guarded, Scratch};

use crate::client::{Body, Connection, Lines, Target};

/// Much longer than anything takes: it only ends a wait for something broken.
pub const LIMIT: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(50);

pub const GROUP: &str = "/apis/terrane.dev/v1alpha1";
pub const REPOSITORIES: &str = "/apis/terrane.dev/v1alpha1/namespaces/default/terraformrepositories";
pub const LAYERS: &str = "/apis/terrane.dev/v1alpha1/namespaces/default/terraformlayers";
pub const RUNS: &str = "/apis/terrane.dev/v1alpha1/namespaces/default/terraformruns";

/// A running `terrane up`.
#[derive(Debug)]
pub struct Product {
    process: Guarded,
    target: Target,
    data: PathBuf,
    tool_config: PathBuf,
    _mirror: tempfile::TempDir,
    // Dropped last: what runs uses it.
    _scratch: Scratch,
}

impl Product {
    pub async fn start(program: &Path) -> Result<Self> {
        let scratch = Scratch::new("terrane-bench-")?;
        let data = scratch.path().join("data");
        // Found from anywhere, as the child of a shell in another directory too.
        let program = program.canonicalize().with_context(|| format!("finding {}", program.display()))?;
        let mirror = readable_copy(&testkit::tools::provider_mirror()?)?;
        let tool_config = scratch.path().join("tool.tfrc");
        let installation = format!(
            "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
            mirror.path().display()
        );
        fs::write(&tool_config, installation).context("writing the tool's configuration")?;
        let arguments = [
            "up".to_owned(),
            format!("--provider-mirror={}", mirror.path().display()),
            format!("--data-dir={}", data.display()),
            "--listen=127.0.0.1:0".to_owned(),
            "--api-listen=127.0.0.1:0".to_owned(),
        ];
        let mut process = Guarded::start(&program, &arguments, scratch.path().join("up.log"))?;
        let kubeconfig = data.join("kubeconfig");
        let limit = Instant::now() + LIMIT;
        while !kubeconfig.exists() {
            process.ensure_running()?;
            ensure!(Instant::now() < limit, "terrane up did not start:\n{}", process.log_tail());
            tokio::time::sleep(POLL).await;
        }
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Self {
            process,
            target: Target::new(&config)?,
            data,
            tool_config,
            _mirror: mirror,
            _scratch: scratch,
        })
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub async fn connect(&self) -> Result<Connection> {
        self.target.connect().await
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The tool's own configuration that names the mirror of providers, for scripts.
    pub fn tool_config(&self) -> &Path {
        &self.tool_config
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        crate::subject::resident_bytes(self.process.pid())
    }

    /// Processor time of the process itself so far; what pods run has its own.
    pub fn cpu_time(&self) -> Result<Duration> {
        crate::subject::cpu_time(self.process.pid())
    }

    /// Waits until the process hardly works any more: everything has been looked at.
    pub async fn wait_until_idle(&self) -> Result<()> {
        const SPELL: Duration = Duration::from_secs(2);
        let limit = Instant::now() + LIMIT;
        loop {
            let before = self.cpu_time()?;
            tokio::time::sleep(SPELL).await;
            if self.cpu_time()?.saturating_sub(before) < SPELL / 20 {
                return Ok(());
            }
            ensure!(Instant::now() < limit, "terrane up did not come to rest within {} s", LIMIT.as_secs());
        }
    }
}

/// Pods may have users of their own, who cannot enter a home directory.
fn readable_copy(mirror: &Path) -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let copy = tempfile::Builder::new()
        .prefix("terrane-mirror-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .context("making a directory for the mirror")?;
    let status = Command::new("cp").arg("-rL").arg(mirror.join(".")).arg(copy.path()).status();
    let status = status.context("copying the mirror of providers")?;
    ensure!(status.success(), "copying the mirror of providers ended with {status}");
    Ok(copy)
}

impl Drop for Product {
    fn drop(&mut self) {
        // Pods that have users of their own have their files outside the data directory.
        let state = self.data.join("node");
        let pods = node::config::pods_directory(&state, &Isolation::detect(&state));
        let _ = fs::remove_dir_all(pods);
    }
}

/// A Git repository with root modules `layer-0` and on, each with one resource.
#[derive(Debug)]
pub struct Code {
    scratch: Scratch,
}

impl Code {
    pub fn new(layers: usize) -> Result<Self> {
        let module =
            |layer| format!("resource \"terraform_data\" \"one\" {{\n  input = \"layer {layer}\"\n}}\n");
        Self::of((0..layers).map(module))
    }

    /// One root module that needs the provider `local`.
    pub fn with_provider() -> Result<Self> {
        let module =
            "resource \"local_file\" \"one\" {\n  filename = \"/nonexistent/one\"\n  content  = \"one\"\n}\n";
        Self::of([module.to_owned()])
    }

    fn of(modules: impl IntoIterator<Item = String>) -> Result<Self> {
        let code = Self { scratch: Scratch::new("terrane-code-")? };
        code.git(&["init", "--quiet", "--initial-branch=main"])?;
        for (layer, text) in modules.into_iter().enumerate() {
            let directory = code.path().join(layer_path(layer));
            fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
            fs::write(directory.join("main.tf"), text).context("writing a root module")?;
        }
        code.git(&["add", "--all"])?;
        code.git(&["commit", "--quiet", "--message=Start"])?;
        Ok(code)
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Adds commits that each change one of a hundred files of a kilobyte, which do not compress well.
    pub fn add_history(&self, commits: usize) -> Result<()> {
        use std::io::Write;
        let mut import = self.command(&["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn();
        let import = import.as_mut().map_err(|error| anyhow::anyhow!("starting git: {error}"))?;
        let mut input = std::io::BufWriter::new(import.stdin.take().context("git has no input")?);
        for commit in 0..commits {
            let from = if commit == 0 { "from refs/heads/main^0\n" } else { "" };
            let words: Vec<String> =
                (0..64).map(|word| format!("{:016x}", mixed(commit * 64 + word))).collect();
            let content = words.join("\n");
            let file = commit % 100;
            write!(
                input,
                "commit refs/heads/main\ncommitter bench <bench@localhost> {} +0000\ndata 6\nChange\n{from}M 644 inline files/{file}\ndata {}\n{content}\n",
                1_700_000_000 + commit,
                content.len(),
            )
            .context("writing history")?;
        }
        drop(input);
        let status = import.wait().context("waiting for git")?;
        ensure!(status.success(), "git fast-import ended with {status}");
        Ok(())
    }

    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output().context("starting git")?;
        ensure!(
            output.status.success(),
            "git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.current_dir(self.path());
        command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]).args(arguments);
        command
    }

    /// Tells the product of the repository.
    pub async fn declare(&self, connection: &mut Connection, name: &str, poll: &str) -> Result<()> {
        let repository = json!({
            "apiVersion": "terrane.dev/v1alpha1",
            "kind": "TerraformRepository",
            "metadata": {"name": name},
            "spec": {"repository": {"url": format!("file://{}", self.path().display())}, "pollInterval": poll},
        });
        connection.must(Method::POST, REPOSITORIES, json_body(&repository)).await.map(drop)
    }
}

/// A number whose digits look random, so that a file of them does not compress.
fn mixed(number: usize) -> u64 {
    let mut mixed = (number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub fn layer_path(layer: usize) -> String {
    format!("layer-{layer}")
}

pub fn json_body(value: &Value) -> Body {
    Body::Json(value.to_string().into())
}

/// The text at a place of an object; empty where there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// What a layer of the bench does with its plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remediation {
    Dry,
    Apply,
}

/// The manifest of a layer.
pub fn layer(name: &str, repository: &str, path: &str, remediation: Remediation) -> Value {
    json!({
        "apiVersion": "terrane.dev/v1alpha1",
        "kind": "TerraformLayer",
        "metadata": {"name": name},
        "spec": {
            "repository": {"name": repository},
            "branch": "main",
            "path": path,
            "remediationStrategy": {"autoApply": remediation == Remediation::Apply},
        },
    })
}

/// Follows a collection from now on.
pub async fn follow(connection: &mut Connection, path: &str) -> Result<Lines> {
    let list = connection.must(Method::GET, &format!("{path}?limit=1"), Body::None).await?;
    let list: Value = serde_json::from_slice(&list).context("reading a list")?;
    let revision = text(&list, "/metadata/resourceVersion");
    connection.stream(&format!("{path}?watch=true&resourceVersion={revision}")).await
}

/// Counts runs that end well.
#[derive(Debug)]
pub struct Finishing {
    lines: Lines,
    finished: std::collections::BTreeSet<String>,
    _connection: Connection,
}

impl Finishing {
    pub async fn follow(mut connection: Connection) -> Result<Self> {
        let lines = follow(&mut connection, RUNS).await?;
        Ok(Self { lines, finished: std::collections::BTreeSet::new(), _connection: connection })
    }

    /// Waits until that many runs have ended since the start.
    pub async fn wait(&mut self, wanted: usize) -> Result<()> {
        let Self { lines, finished, .. } = self;
        let waiting = async {
            while finished.len() < wanted {
                let mut failed = None;
                let goes_on = lines.next(|line| {
                    let event: Value = serde_json::from_slice(line).unwrap_or_default();
                    let name = text(&event, "/object/metadata/name");
                    // Runs of earlier rows end long before they are forgotten.
                    if text(&event, "/type") == "DELETED" {
                        return;
                    }
                    match text(&event, "/object/status/state") {
                        "Succeeded" => {
                            finished.insert(name.to_owned());
                        }
                        "Failed" => {
                            failed =
                                Some(format!("{name}: {}", text(&event, "/object/status/result/message")));
                        }
                        _ => {}
                    }
                });
                ensure!(goes_on.await?, "the watch of runs ended");
                if let Some(failed) = failed {
                    bail!("a run failed: {failed}");
                }
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT, waiting).await.context("runs did not end")?
    }

    pub fn count(&self) -> usize {
        self.finished.len()
    }
}
