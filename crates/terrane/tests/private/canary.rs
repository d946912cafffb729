//! Secrets go in at every place where one can; then everything that came out is searched for them: what was printed and served,
//! what objects say, what is on disk, and the command lines of processes while they ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::Value;
use testkit::canary::{Canary, search};
use testkit::s3::files_below;

use crate::harness::Terrane;

/// The secrets of a repository's code: a default, a file of variables, and one that the tool makes up when it applies.
pub(crate) struct Code {
    default: Canary,
    file: Canary,
}

impl Code {
    pub(crate) fn write(directory: &Path) -> Self {
        let (default, file) =
            (Canary::random("the default of a variable"), Canary::random("a file of variables"));
        fs::create_dir_all(directory).unwrap();
        let code = CODE.replace("DEFAULT", &default.value);
        fs::write(directory.join("main.tf"), code).unwrap();
        fs::write(directory.join("terraform.tfvars"), format!("api_key = \"{}\"\n", file.value)).unwrap();
        Self { default, file }
    }
}

/// The provisioner prints all of the environment that it can reach, its own and that of every process whose own it can read.
const CODE: &str = r#"
variable "password" {
  type      = string
  default   = "DEFAULT"
  sensitive = true
}

variable "given" {
  type    = string
  default = "nothing"
}

variable "api_key" {
  type      = string
  sensitive = true
}

resource "terraform_data" "given" {
  input = { password = var.password, key = var.api_key }
}

# Nobody told the tool that this one is a secret.
resource "terraform_data" "unmarked" {
  input = var.given
}

resource "terraform_data" "made" {
  input = sensitive(uuid())
  lifecycle {
    ignore_changes = [input]
  }
}

resource "terraform_data" "curious" {
  provisioner "local-exec" {
    interpreter = ["bash", "-c"]
    command     = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; echo looked-around"
  }
}

output "secret_free" {
  value = "yes"
}

output "password" {
  value     = var.password
  sensitive = true
}
"#;

/// What can be seen only while things run.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    command_lines: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    tokens: Arc<Mutex<BTreeSet<String>>>,
}

impl Seen {
    /// Looks again and again, until dropped.
    pub(crate) async fn watch(self, pods: PathBuf) {
        loop {
            for process in fs::read_dir("/proc").unwrap().flatten() {
                if let Ok(line) = fs::read(process.path().join("cmdline")) {
                    self.command_lines.lock().unwrap().insert(line);
                }
            }
            for file in files_below(&pods) {
                if file.file_name().is_some_and(|name| name == "token")
                    && let Ok(token) = fs::read_to_string(&file)
                    && !token.trim().is_empty()
                {
                    self.tokens.lock().unwrap().insert(token.trim().to_owned());
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Everything that went in, and everything that came out.
pub(crate) struct Search<'a> {
    pub(crate) terrane: &'a Terrane,
    pub(crate) client: &'a Client,
    pub(crate) code: Code,
    pub(crate) git_token: Canary,
    /// Those of other repositories and of the layer's inputs, in Secrets as well.
    pub(crate) logins: Vec<Canary>,
    /// Those that nobody has a reason to read.
    pub(crate) home: Vec<Canary>,
    pub(crate) environment: Canary,
    /// What a receiver of notifications got.
    pub(crate) told: Vec<Vec<u8>>,
    pub(crate) seen: Seen,
}

impl Search<'_> {
    /// Fails with every place in which a secret was found. Gives back those that must still be nowhere when everything has ended.
    pub(crate) async fn finds_nothing(self) -> Vec<Canary> {
        let data = self.terrane.data();
        let made = self.made_by_the_tool();
        let kubeconfig = token_in(&data.join("kubeconfig"));
        let kubeconfig = Canary::known("the administrator's token", &kubeconfig);
        let controller = fs::read_to_string(data.join("controller-token")).unwrap();
        let controller = Canary::known("the controllers' token", controller.trim());
        let key = fs::read_to_string(data.join("keys/0001.key")).unwrap();
        let key = Canary::known("the encryption key", key.trim());
        let runners: Vec<Canary> = {
            let tokens = self.seen.tokens.lock().unwrap();
            tokens.iter().map(|token| Canary::known("a runner's token", token)).collect()
        };
        assert!(!runners.is_empty(), "the watch saw no token of a runner");
        let Code { default, file } = &self.code;
        // Those that something other than Terrane's own files must never hold.
        let mut all =
            vec![&self.git_token, &self.environment, default, file, &made, &kubeconfig, &controller, &key];
        all.extend(self.logins.iter().chain(&self.home).chain(&runners));

        let mut found = Vec::new();
        let mut look = |what: &str, bytes: &[u8]| {
            found.extend(all.iter().filter_map(|canary| {
                let form = canary.found_in(bytes)?;
                Some(format!("{what} holds {} ({form})", canary.source))
            }));
        };
        let secrets = kube::Api::<Secret>::namespaced(self.client.clone(), "default");
        let outputs = secrets.get("app-outputs").await.unwrap().data.unwrap();
        assert_eq!(
            outputs["password"].0,
            default.value.as_bytes(),
            "the outputs are where they were asked for"
        );
        let log = self.terrane.printed();
        look("the log of `terrane up`", log.as_bytes());
        for (path, text) in self.served().await {
            look(&path, text.as_bytes());
        }
        assert!(!self.told.is_empty(), "nobody was told anything");
        for body in &self.told {
            look("what a webhook was told or mailed", body);
        }
        let commands = self.commands();
        assert!(
            commands.get("logs app").is_some_and(|log| log.contains("looked-around")),
            "the provisioner's words are in the log, or nothing was tried: {commands:#?}"
        );
        for (command, text) in &commands {
            look(&format!("`terrane {command}`"), text.as_bytes());
        }
        let lines = self.seen.command_lines.lock().unwrap();
        assert!(lines.iter().any(|line| line.windows(6).any(|part| part == b"runner")), "no runner was seen");
        for line in lines.iter() {
            look(&format!("the command line {:?}", String::from_utf8_lossy(line)), line);
        }
        drop(lines);

        // On disk each secret has its one place: tokens and keys their files, a Secret the API's store, code the mirror of its
        // repository. What runners worked with is checked when they are gone.
        for entry in fs::read_dir(&data).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let allowed: Vec<&Canary> = match name.as_str() {
                "administrator.token" | "kubeconfig" => vec![&kubeconfig],
                "controller-token" => vec![&controller],
                "keys" => vec![&key],
                // A poll may be under way, whose files are gone when it ends.
                "git" => [default, file, &self.git_token].into_iter().chain(&self.logins).collect(),
                // The file of the API's objects, Secrets among them, as etcd's would be; one holds the outputs.
                name if name.starts_with("store.db") => {
                    [&self.git_token, default].into_iter().chain(&self.logins).collect()
                }
                _ => vec![],
            };
            let forbidden = all.iter().copied();
            let forbidden: Vec<&Canary> = forbidden
                .filter(|canary| !allowed.iter().any(|allowed| std::ptr::eq(*allowed, *canary)))
                .collect();
            if entry.path().is_dir() {
                found.extend(search(&entry.path(), forbidden.iter().copied()));
            } else if let Ok(bytes) = fs::read(entry.path()) {
                found.extend(forbidden.iter().filter_map(|canary| {
                    let form = canary.found_in(&bytes)?;
                    Some(format!("{name} holds {} ({form})", canary.source))
                }));
            }
        }
        assert!(found.is_empty(), "{} leaks:\n{}", found.len(), found.join("\n"));
        let mut left = vec![self.git_token, self.environment, made, kubeconfig, controller, key];
        left.extend(self.logins.into_iter().chain(self.home));
        left
    }

    /// The value that `uuid()` gave, which is written nowhere but in the state.
    fn made_by_the_tool(&self) -> Canary {
        let pulled = self.terrane.command(&["state", "pull", "app"]);
        assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
        let state: Value = serde_json::from_slice(&pulled.stdout).unwrap();
        let resources = state["resources"].as_array().unwrap();
        let made = resources.iter().find(|resource| resource["name"] == "made").unwrap();
        let input = &made["instances"][0]["attributes"]["input"];
        let value = input.get("value").unwrap_or(input).as_str().unwrap();
        assert_eq!(value.len(), 36, "{state}");
        Canary::known("an attribute that the tool made", value)
    }

    /// What the API says about every object but Secrets, and what the HTTP service tells anybody.
    async fn served(&self) -> BTreeMap<String, String> {
        let mut served = BTreeMap::new();
        let core = ["configmaps", "events", "namespaces", "nodes", "pods", "serviceaccounts"];
        let core = core.map(|kind| format!("/api/v1/{kind}"));
        let ours = [
            "repos",
            "terraformapprovals",
            "terraformlayers",
            "terraformnotifications",
            "terraformrepositories",
            "terraformruns",
        ];
        let ours = ours.map(|kind| format!("/apis/terrane.dev/v1alpha1/{kind}"));
        let others = [
            "alustan.io/v1alpha1/terraforms",
            "coordination.k8s.io/v1/leases",
            "rbac.authorization.k8s.io/v1/rolebindings",
        ];
        let others = others.map(|kind| format!("/apis/{kind}"));
        for path in core.into_iter().chain(ours).chain(others).chain(["/metrics".to_owned()]) {
            let request = http::Request::get(&path).body(Vec::new()).unwrap();
            let text = match self.client.request_text(request).await {
                Ok(text) => text,
                Err(error) => error.to_string(),
            };
            assert!(!text.is_empty(), "{path}");
            served.insert(path, text);
        }
        let service = self.terrane.service().await;
        let http = reqwest::Client::new();
        for path in ["/metrics", "/readyz", "/healthz", "/v1/runs/none/1/plan", "/nowhere"] {
            for token in ["", &self.git_token.value, &token_in(&self.terrane.data().join("kubeconfig"))] {
                let answer = http.get(format!("http://{service}{path}")).bearer_auth(token).send().await;
                let text = answer.unwrap().text().await.unwrap();
                let name = format!("the answer to {path} ({} characters of a token)", token.len());
                served.insert(name, text);
            }
        }
        served
    }

    /// What people see, none of whom asked for a secret.
    fn commands(&self) -> BTreeMap<String, String> {
        let fixed = [
            "get layers -o json",
            "get repositories -o yaml",
            "get runs -o json",
            "describe app",
            "describe repository/private",
            "describe repository/basic",
            "describe repository/keyed",
            "diff basic",
            "diff keyed -o json",
            "events keyed",
            "diff app",
            "diff app -o json",
            "diff app -o wide",
            "drift app",
            "logs app",
            "events app",
            "history app -o json",
            "get notifications -o yaml",
            "describe notification/told",
            "describe notification/mailed",
            "outputs app",
            "outputs app -o json",
            "state list app",
            "state versions app",
            "state locks app",
        ];
        let mut commands: Vec<String> = fixed.map(str::to_owned).to_vec();
        let runs = self.terrane.command(&["get", "runs", "-o", "json"]);
        let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
        for run in runs.as_array().unwrap() {
            let name = run["metadata"]["name"].as_str().unwrap();
            commands.extend([format!("logs run/{name}"), format!("describe run/{name}")]);
        }
        let told = commands.into_iter().map(|command| {
            let arguments: Vec<&str> = command.split(' ').collect();
            let output = self.terrane.command(&arguments);
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            (command, text)
        });
        told.collect()
    }
}

fn token_in(kubeconfig: &Path) -> String {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let token = text.lines().find_map(|line| line.trim_start().strip_prefix("token: "));
    token.expect("the kubeconfig has a token").trim_matches('"').to_owned()
}
