//! The program itself: how a case runs it in its namespace, and what it can ask of what was printed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use conformance::Scope;
use conformance::scope::LIMIT;
use serde_json::{Value, json};
use testkit::process::Guarded;
use testkit::tools::tool;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

const POLL: Duration = Duration::from_millis(25);

/// Where the program is, which server it talks to, and where it may write.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Place {
    pub(crate) fn new(kubeconfig: &Path, home: &Path) -> Result<Self> {
        Ok(Self { program: tool("kubectl")?, kubeconfig: kubeconfig.to_owned(), home: home.to_owned() })
    }
}

/// kubectl in the namespace of one case.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    place: Place,
    pub(crate) scope: Scope,
    directory: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(place: &Place, scope: Scope) -> Result<Self> {
        let directory = place.home.join(scope.name());
        std::fs::create_dir_all(&directory).context("making the directory of a case")?;
        Ok(Self { place: place.clone(), scope, directory })
    }

    /// The name of the case's namespace, free for its cluster-scoped objects too.
    pub(crate) fn name(&self) -> &str {
        self.scope.name()
    }

    /// The path of the case's namespace.
    pub(crate) fn path(&self) -> String {
        format!("/api/v1/namespaces/{}", self.name())
    }

    /// Runs a command line that has no quoting: words are apart by blanks.
    pub(crate) async fn run(&self, line: &str) -> Result<Output> {
        self.words(&line.split_whitespace().collect::<Vec<_>>()).await
    }

    pub(crate) async fn words(&self, words: &[&str]) -> Result<Output> {
        self.fed(words, None).await
    }

    /// Runs a command line that reads this manifest, with `-f -` added.
    pub(crate) async fn with(&self, line: &str, manifest: &Value) -> Result<Output> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-f", "-"]);
        self.fed(&words, Some(manifest.to_string())).await
    }

    /// Makes an object with `kubectl create`.
    pub(crate) async fn create(&self, manifest: &Value) -> Result<()> {
        self.with("create", manifest).await?.ok().map(drop)
    }

    /// Starts a command that does not end by itself.
    pub(crate) fn start(&self, line: &str) -> Result<Following> {
        let log = self.directory.join("following.log");
        let mut words = vec![format!("HOME={}", self.place.home.display())];
        words.push(self.place.program.display().to_string());
        words.extend(self.flags());
        words.extend(line.split_whitespace().map(str::to_owned));
        Ok(Following { process: Guarded::start(Path::new("/usr/bin/env"), &words, log.clone())?, log })
    }

    fn flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.place.kubeconfig.display()),
            format!("--cache-dir={}", self.place.home.join("cache").display()),
            format!("--namespace={}", self.name()),
        ]
    }

    async fn fed(&self, words: &[&str], input: Option<String>) -> Result<Output> {
        let line = words.join(" ");
        let mut child = Command::new(&self.place.program)
            .args(self.flags())
            .args(words)
            .env("HOME", &self.place.home)
            .current_dir(&self.directory)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting kubectl")?;
        if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
            pipe.write_all(input.as_bytes()).await.context("feeding kubectl")?;
        }
        let output = tokio::time::timeout(LIMIT, child.wait_with_output())
            .await
            .with_context(|| format!("kubectl {line} did not end"))??;
        // The one part of a case's words that differs from run to run.
        let plain = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(self.name(), "NS");
        Ok(Output {
            line,
            code: output.status.code().unwrap_or(-1),
            stdout: plain(&output.stdout),
            stderr: plain(&output.stderr),
        })
    }
}

/// A command that runs on until this is dropped.
#[derive(Debug)]
pub(crate) struct Following {
    process: Guarded,
    log: PathBuf,
}

impl Following {
    /// Waits until the lines printed so far fit.
    pub(crate) async fn until(&mut self, fits: impl Fn(&[&str]) -> bool) -> Result<()> {
        let limit = Instant::now() + LIMIT;
        loop {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            if fits(&text.lines().collect::<Vec<_>>()) {
                return Ok(());
            }
            self.process.ensure_running()?;
            ensure!(Instant::now() < limit, "what was waited for was never printed:\n{text}");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// What a finished command left, with `NS` for the case's own name.
#[derive(Debug)]
pub(crate) struct Output {
    line: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    fn seen(&self) -> String {
        format!(
            "kubectl {}\n  exit {}\n  out {:?}\n  err {:?}",
            self.line, self.code, self.stdout, self.stderr
        )
    }

    /// What was printed, if the command succeeded.
    pub(crate) fn ok(&self) -> Result<&str> {
        ensure!(self.code == 0, "wanted success: {}", self.seen());
        Ok(&self.stdout)
    }

    /// It succeeded and printed exactly this.
    pub(crate) fn prints(&self, wanted: &str) -> Result<()> {
        ensure!(self.ok()? == wanted, "wanted {wanted:?}: {}", self.seen());
        Ok(())
    }

    /// It succeeded and printed each of these somewhere.
    pub(crate) fn has(&self, wanted: &[&str]) -> Result<()> {
        let text = self.ok()?;
        for part in wanted {
            ensure!(text.contains(part), "wanted {part:?}: {}", self.seen());
        }
        Ok(())
    }

    /// It ended with this code and said exactly this about why.
    pub(crate) fn fails(&self, code: i32, wanted: &str) -> Result<()> {
        ensure!(
            self.code == code && self.stderr == wanted,
            "wanted exit {code} and err {wanted:?}: {}",
            self.seen()
        );
        Ok(())
    }

    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(self.ok()?).with_context(|| format!("no JSON: {}", self.seen()))
    }

    /// The words of each line of a table, without the last column, which is an age.
    pub(crate) fn table(&self) -> Result<Vec<Vec<&str>>> {
        let rows = self.ok()?.lines().map(|line| {
            let mut cells: Vec<&str> = line.split_whitespace().collect();
            cells.pop();
            cells
        });
        Ok(rows.collect())
    }
}

/// Ends the case unless both sides are equal.
pub(crate) fn same<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(got: T, wanted: U) -> Result<()> {
    ensure!(got == wanted, "\n      wanted {wanted:?}\n      got    {got:?}");
    Ok(())
}

/// A ConfigMap with these entries and the label `app=x`.
pub(crate) fn map(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "x"}}, "data": data,
    })
}

/// A layer whose repository nobody looks for.
pub(crate) fn layer(name: &str) -> Value {
    json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": name},
        "spec": {"repository": {"name": "r"}, "branch": "main", "path": "a"},
    })
}

/// A pod that nobody schedules.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]},
    })
}
