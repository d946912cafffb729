//! Terrane's parts as processes on a real kube-apiserver with etcd and kube-controller-manager, with the process node in the kubelet's
//! place: what is measured is the controllers and the API, not how fast containers start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{CONTROLLER_ACCOUNT, DATASTORE_AUDIENCE, SYSTEM_NAMESPACE};
use http::Method;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use node::isolation::Isolation;
use serde_json::{Value, json};
use testkit::cluster::{Controllers, Disk, Options, RealCluster};
use testkit::process::{Guarded, Scratch};

use crate::client::{Connection, Target};
use crate::product::{LIMIT, json_body, text};
use crate::subject;

/// Runners that may work at the same time: as many as keep two cores busy.
pub const RUNNERS: usize = 8;
const POLL: Duration = Duration::from_millis(100);

pub struct Fleet {
    controller: Guarded,
    _node: Guarded,
    _datastore: Guarded,
    target: Target,
    cluster: RealCluster,
    // Dropped last: what runs uses it.
    scratch: Scratch,
}

impl Fleet {
    /// `tool` is the real one, which layers use unless they ask for OpenTofu: that is a script that takes 50 ms for a plan without changes.
    pub async fn start(program: &Path, tool: &Path) -> Result<Self> {
        let program = program.canonicalize().with_context(|| format!("finding {}", program.display()))?;
        let scratch = Scratch::new("terrane-fleet-")?;
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))
            .context("opening a directory")?;
        let options = Options { controllers: Controllers::Running, disk: Disk::Durable };
        let cluster = RealCluster::start_audited(options).await?;
        let target = Target::new(&cluster.config()?)?;
        install(&target).await?;
        let kubeconfig = write_credentials(&cluster, scratch.path()).await?;
        let tools = make_tools(scratch.path(), tool)?;
        let place = |name: &str| scratch.path().join(name).display().to_string();
        let administrator = cluster.kubeconfig().display().to_string();
        let path = format!("PATH={}:/usr/bin:/bin", tools.display());
        let start = |name: &str, kubeconfig: &str, arguments: Vec<String>| {
            let environment =
                [path.clone(), format!("KUBECONFIG={kubeconfig}"), program.display().to_string()];
            let arguments: Vec<String> =
                environment.into_iter().chain([name.to_owned()]).chain(arguments).collect();
            Guarded::start(Path::new("/usr/bin/env"), &arguments, scratch.path().join(format!("{name}.log")))
        };
        let mut datastore = start(
            "datastore",
            &administrator,
            vec![
                "--listen=127.0.0.1:0".to_owned(),
                format!("--directory={}", place("artefacts")),
                format!("--keys={}", place("keys")),
                format!("--tools={}", place("store")),
                "--provider-registries=none".to_owned(),
            ],
        )?;
        let artefacts = serving(&mut datastore, &scratch.path().join("datastore.log")).await?;
        let node = start(
            "node",
            &administrator,
            vec![
                "--name=processes".to_owned(),
                format!("--data-dir={}", place("node")),
                "--bind-unscheduled".to_owned(),
                format!("--readable={}", program.parent().unwrap_or(Path::new("/")).display()),
                format!("--readable={}", tools.display()),
            ],
        )?;
        let controller = start(
            "controller",
            &kubeconfig.display().to_string(),
            vec![
                "--listen=127.0.0.1:0".to_owned(),
                format!("--datastore-url=http://{artefacts}"),
                format!("--token-file={}", place("token")),
                "--runner-image=terrane.dev/local".to_owned(),
                format!("--git-dir={}", place("mirrors")),
                "--allow-local-sources".to_owned(),
                format!("--max-runner-pods={RUNNERS}"),
            ],
        )?;
        Ok(Self { controller, _node: node, _datastore: datastore, target, cluster, scratch })
    }

    pub async fn connect(&self) -> Result<Connection> {
        self.target.connect().await
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Resident memory of the controller, now and at most so far.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let pid = self.controller.pid();
        Ok((subject::resident_bytes(pid)?, subject::status_bytes(pid, "VmHWM:")?))
    }

    pub fn cpu_time(&self) -> Result<Duration> {
        subject::cpu_time(self.controller.pid())
    }

    pub fn ensure_running(&mut self) -> Result<()> {
        self.controller.ensure_running()
    }

    /// Where the record of requests is now: what is asked for later comes after it.
    pub fn mark(&self) -> Result<u64> {
        let log = self.cluster.audit_log();
        Ok(fs::metadata(&log).with_context(|| format!("reading {}", log.display()))?.len())
    }

    /// What the controllers asked for between two marks, in order. O(requests).
    pub fn requests(&self, from: u64, to: u64) -> Result<Vec<Asked>> {
        use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
        let mut log = fs::File::open(self.cluster.audit_log()).context("opening the record of requests")?;
        log.seek(SeekFrom::Start(from)).context("reading the record of requests")?;
        let mut asked = Vec::new();
        for line in BufReader::new(log.take(to.saturating_sub(from))).lines() {
            let entry: Value = serde_json::from_str(&line.context("reading the record of requests")?)
                .context("reading a request of the record")?;
            asked.extend(Asked::read(&entry));
        }
        Ok(asked)
    }

    /// A metric of kube-apiserver for Terrane's kinds, added up.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let mut connection = self.connect().await?;
        let text = connection.must(Method::GET, "/metrics", crate::client::Body::None).await?;
        let text = String::from_utf8_lossy(&text);
        let ours = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') && rest.contains("terrane.dev"))
        });
        Ok(ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Pods that have users of their own have their files outside the data directory.
        let state = self.scratch.path().join("node").join("node");
        let _ = fs::remove_dir_all(node::config::pods_directory(&state, &Isolation::detect(&state)));
    }
}

/// One request of the controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub verb: String,
    /// With its subresource.
    pub resource: String,
    pub name: String,
}

impl Asked {
    fn read(entry: &Value) -> Option<Self> {
        let user = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{CONTROLLER_ACCOUNT}");
        if text(entry, "/user/username") != user {
            return None;
        }
        let resource = match (text(entry, "/objectRef/resource"), text(entry, "/objectRef/subresource")) {
            (resource, "") => resource.to_owned(),
            (resource, below) => format!("{resource}/{below}"),
        };
        let (verb, name) = (text(entry, "/verb"), text(entry, "/objectRef/name"));
        Some(Self { verb: verb.to_owned(), resource, name: name.to_owned() })
    }

    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// That the controllers are there is said on a clock of its own, whatever there is to do.
    pub fn is_of_election(&self) -> bool {
        self.resource == "leases" && self.name == engine::leader::LEASE
    }
}

/// Terrane's kinds, and its account with every right: what it may is measured elsewhere.
async fn install(target: &Target) -> Result<()> {
    let mut connection = target.connect().await?;
    for definition in api::custom_resources() {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let body = serde_json::to_value(definition).context("writing a definition")?;
        connection.must(Method::POST, path, json_body(&body)).await?;
    }
    let limit = Instant::now() + LIMIT;
    for kind in ["terraformrepositories", "terraformlayers", "terraformruns", "terraformapprovals", "repos"] {
        let path = format!("{}/{kind}", crate::product::GROUP);
        while !connection.ask(Method::GET, &path, crate::client::Body::None).await?.0.is_success() {
            ensure!(Instant::now() < limit, "{kind} are not served");
            tokio::time::sleep(POLL).await;
        }
    }
    make_namespace(&mut connection, SYSTEM_NAMESPACE).await?;
    let account = json!({ "metadata": { "name": CONTROLLER_ACCOUNT } });
    let accounts = format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts");
    connection.must(Method::POST, &accounts, json_body(&account)).await?;
    let binding = json!({
        "metadata": { "name": "bench" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": CONTROLLER_ACCOUNT, "namespace": SYSTEM_NAMESPACE }],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    connection.must(Method::POST, bindings, json_body(&binding)).await.map(drop)
}

/// A namespace that pods can be made in.
pub async fn make_namespace(connection: &mut Connection, name: &str) -> Result<()> {
    let namespace = json!({ "metadata": { "name": name } });
    connection.must(Method::POST, "/api/v1/namespaces", json_body(&namespace)).await?;
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    let limit = Instant::now() + LIMIT;
    while !connection.ask(Method::GET, &account, crate::client::Body::None).await?.0.is_success() {
        ensure!(Instant::now() < limit, "namespace {name} has no account for pods");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// A token for the datastore, and a kubeconfig with one for the API.
async fn write_credentials(cluster: &RealCluster, place: &Path) -> Result<PathBuf> {
    let accounts = Api::<ServiceAccount>::namespaced(cluster.client()?, SYSTEM_NAMESPACE);
    let token = async |audiences: Vec<String>| {
        let spec =
            TokenRequestSpec { audiences, expiration_seconds: Some(86_400), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let made =
            accounts.create_token_request(CONTROLLER_ACCOUNT, &PostParams::default(), &request).await?;
        anyhow::Ok(made.status.context("a token was asked for and none given")?.token)
    };
    fs::write(place.join("token"), token(vec![DATASTORE_AUDIENCE.to_owned()]).await?)
        .context("writing a token")?;
    let config = fs::read_to_string(cluster.kubeconfig()).context("reading the kubeconfig")?;
    let mut config: Value = serde_json::from_str(&config).context("reading the kubeconfig")?;
    if let Some(user) = config.pointer_mut("/users/0/user") {
        *user = json!({ "token": token(Vec::new()).await? });
    }
    let path = place.join("controller.kubeconfig");
    fs::write(&path, config.to_string()).context("writing a kubeconfig")?;
    Ok(path)
}

/// Where a role says that it serves.
async fn serving(process: &mut Guarded, log: &Path) -> Result<String> {
    let limit = Instant::now() + LIMIT;
    loop {
        process.ensure_running()?;
        let said = fs::read_to_string(log).unwrap_or_default();
        let port = said.lines().find(|line| line.contains("serving ")).and_then(|line| {
            Some(
                line.split_once("127.0.0.1:")?.1.chars().take_while(char::is_ascii_digit).collect::<String>(),
            )
        });
        if let Some(port) = port {
            return Ok(format!("127.0.0.1:{port}"));
        }
        ensure!(Instant::now() < limit, "a role did not start:\n{}", process.log_tail());
        tokio::time::sleep(POLL).await;
    }
}

/// The real tool, and as `tofu` one that answers what the real one answered once for code without resources.
fn make_tools(place: &Path, real: &Path) -> Result<PathBuf> {
    let tools = place.join("programs");
    let empty = place.join("empty");
    for directory in [&tools, &empty] {
        fs::create_dir(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    fs::write(empty.join("main.tf"), "").context("writing code")?;
    let plan = tools.join("answered-plan");
    let ask = |arguments: &[&str]| -> Result<Vec<u8>> {
        let output =
            Command::new(real).current_dir(&empty).args(arguments).output().context("starting the tool")?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    };
    ask(&["init", "-input=false"])?;
    ask(&["plan", "-input=false", &format!("-out={}", plan.display())])?;
    let shown = ask(&["show", "-json", &plan.display().to_string()])?;
    fs::write(tools.join("answered-show"), shown).context("writing an answer")?;
    let script = format!(
        "#!/bin/sh\ncase $1 in\nversion) echo '{{\"terraform_version\": \"1.12.6\"}}' ;;\nplan)\n  sleep 0.05\n  for word; do case $word in \
         -out=*) cp {0}/answered-plan \"${{word#-out=}}\" ;; esac; done\n  echo 'No changes.' ;;\nshow) cat {0}/answered-show ;;\nesac\n",
        tools.display()
    );
    fs::write(tools.join("tofu"), script).context("writing a tool")?;
    fs::copy(real, tools.join("terraform")).context("copying the tool")?;
    for name in ["tofu", "terraform", "answered-plan", "answered-show"] {
        fs::set_permissions(tools.join(name), fs::Permissions::from_mode(0o755)).context("opening a file")?;
    }
    fs::set_permissions(&tools, fs::Permissions::from_mode(0o755)).context("opening a directory")?;
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_controllers_ask_for_is_theirs() {
        let entry = |user: &str, reference: Value| json!({ "user": { "username": user }, "verb": "update", "objectRef": reference });
        let ours = "system:serviceaccount:terrane-system:terrane-controller";
        let status = json!({ "resource": "terraformruns", "subresource": "status", "name": "a" });
        assert_eq!(Asked::read(&entry("somebody", status.clone())), None);
        let asked = Asked::read(&entry(ours, status));
        assert_eq!(asked.as_ref().map(|asked| asked.resource.as_str()), Some("terraformruns/status"));
        assert!(asked.is_some_and(|asked| asked.is_write() && !asked.is_of_election()));
        let lease = json!({ "resource": "leases", "name": engine::leader::LEASE });
        assert!(Asked::read(&entry(ours, lease)).is_some_and(|asked| asked.is_of_election()));
    }
}
