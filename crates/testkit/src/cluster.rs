//! A real Kubernetes API on loopback: etcd, kube-apiserver and kube-controller-manager.
//!
//! There is no node: a pod stays Pending unless a test brings one. Nothing here knows what is
//! tested; it starts programs, waits for them and hands out ways to reach them.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{Api, Client, Config};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::process::{Guarded, Scratch};
use crate::tools::tool;

/// Much longer than a start takes on a busy machine: it only ends a wait for something broken.
const START_LIMIT: Duration = Duration::from_secs(180);
/// Between two looks at a condition. Short enough not to be felt, long enough not to burn a core.
const POLL: Duration = Duration::from_millis(50);

static SHARED: OnceCell<Result<RealCluster, String>> = OnceCell::const_new();

/// Whether kube-controller-manager runs beside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controllers {
    /// Namespaces get their default ServiceAccount, owners' dependents are collected, jobs make pods.
    Running,
    /// The bare API. Pods need no ServiceAccount, because nobody makes one.
    Absent,
}

/// What an answered write has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// The disk itself, as in production: for measurements.
    Durable,
    /// The page cache, which is faster and enough for tests.
    Fast,
}

/// What to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether controllers run.
    pub controllers: Controllers,
    /// How durable writes are.
    pub disk: Disk,
}

impl Default for Options {
    fn default() -> Self {
        Self { controllers: Controllers::Running, disk: Disk::Fast }
    }
}

/// A running cluster. It stops, and its files go, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct RealCluster {
    url: String,
    token: String,
    ca_der: Vec<u8>,
    kubeconfig: PathBuf,
    options: Options,
    audit: Audit,
    // Fields are dropped in this order: first what uses the directory, then the directory.
    controller_manager: Option<Guarded>,
    apiserver: Guarded,
    etcd: Guarded,
    scratch: Scratch,
}

impl RealCluster {
    /// The one cluster of this test process, started by whoever asks first.
    ///
    /// Tests share it, so each works in namespaces of its own. A cluster that cannot be had fails the
    /// test with the reason: a suite that skips proves nothing.
    #[expect(clippy::panic, reason = "only tests call this, and a test without its cluster has failed")]
    pub async fn shared() -> &'static Self {
        let started = SHARED
            .get_or_init(|| async {
                Self::start(Options::default()).await.map_err(|error| format!("{error:#}"))
            })
            .await;
        match started {
            Ok(cluster) => cluster,
            Err(error) => panic!("no real cluster: {error}"),
        }
    }

    /// Starts a cluster of its own, for a test that disturbs it or measures it.
    pub async fn start(options: Options) -> Result<Self> {
        Self::start_with(options, Audit::Absent).await
    }

    /// The same, with a record of what service accounts of Terrane's own namespace ask for.
    pub async fn start_audited(options: Options) -> Result<Self> {
        Self::start_with(options, Audit::Kept).await
    }

    async fn start_with(options: Options, audit: Audit) -> Result<Self> {
        let programs = Programs::find()?;
        let scratch = Scratch::new("terrane-cluster-")?;
        let credentials = Credentials::write(scratch.path())?;
        write_private(&scratch.path().join(AUDIT_POLICY), &audit_policy())?;
        let mut etcd = start_etcd(&programs.etcd, scratch.path(), options.disk)?;
        let (apiserver, url) = start_apiserver(
            &programs.apiserver,
            scratch.path(),
            &credentials,
            (options.controllers, audit),
            &mut etcd,
        )
        .await?;
        let kubeconfig = write_kubeconfig(scratch.path(), &url, &credentials)?;
        let Credentials { token, ca_der } = credentials;
        let mut cluster = Self {
            url,
            token,
            ca_der,
            kubeconfig,
            options,
            audit,
            controller_manager: None,
            apiserver,
            etcd,
            scratch,
        };
        if options.controllers == Controllers::Running {
            cluster.start_controller_manager(&programs.controller_manager)?;
        }
        cluster.wait_until_usable().await?;
        Ok(cluster)
    }

    /// Stops kube-apiserver and etcd in order and starts them on what they stored; gives the time from the start of etcd until the
    /// server said that it is ready. The address may be another one afterwards, and the kubeconfig file tells the old one.
    ///
    /// Only for a cluster without controllers: theirs would keep asking the old address.
    pub async fn restart(self) -> Result<(Self, Duration)> {
        ensure!(self.controller_manager.is_none(), "a cluster with controllers cannot be restarted");
        let Self { token, ca_der, kubeconfig, options, audit, apiserver, etcd, scratch, .. } = self;
        apiserver.stop(START_LIMIT).await?;
        etcd.stop(START_LIMIT).await?;
        let programs = Programs::find()?;
        let credentials = Credentials { token, ca_der };
        let started = Instant::now();
        let mut etcd = start_etcd(&programs.etcd, scratch.path(), options.disk)?;
        let (apiserver, url) = start_apiserver(
            &programs.apiserver,
            scratch.path(),
            &credentials,
            (options.controllers, audit),
            &mut etcd,
        )
        .await?;
        let took = started.elapsed();
        let Credentials { token, ca_der } = credentials;
        let cluster = Self {
            url,
            token,
            ca_der,
            kubeconfig,
            options,
            audit,
            controller_manager: None,
            apiserver,
            etcd,
            scratch,
        };
        Ok((cluster, took))
    }

    /// How to reach the API as its administrator.
    pub fn config(&self) -> Result<Config> {
        build_config(&self.url, &self.token, &self.ca_der)
    }

    /// A client as the administrator. Each test makes its own: a client belongs to the runtime it was
    /// made in, and each test has a runtime of its own.
    pub fn client(&self) -> Result<Client> {
        Client::try_from(self.config()?).context("making a client for the real cluster")
    }

    /// The administrator's token, for requests that carry their credentials themselves.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// A kubeconfig file of the administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The private key that tokens of service accounts are signed with, in PEM: for a test that signs some itself.
    pub fn account_key(&self) -> PathBuf {
        self.scratch.path().join(ACCOUNT_KEY)
    }

    /// What was asked for, one request a line, of a cluster that keeps a record. A request is in it once it was answered.
    pub fn audit_log(&self) -> PathBuf {
        self.scratch.path().join(AUDIT_LOG)
    }

    /// The pinned kubectl, as the administrator and with nothing of the user's home.
    pub fn kubectl(&self) -> Result<Command> {
        let mut command = Command::new(tool("kubectl")?);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", self.scratch.path());
        Ok(command)
    }

    /// Process ids of kube-apiserver and etcd, for measurements.
    pub fn pids(&self) -> [u32; 2] {
        [self.apiserver.pid(), self.etcd.pid()]
    }

    fn start_controller_manager(&mut self, program: &Path) -> Result<()> {
        let directory = self.scratch.path();
        let arguments = [
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--root-ca-file={}", directory.join(CA).display()),
            format!("--service-account-private-key-file={}", directory.join(ACCOUNT_KEY).display()),
            "--leader-elect=false".into(),
            // It serves only its own metrics, which nobody reads here.
            "--secure-port=0".into(),
            // The default of 20 requests a second is slower than the tests that wait for it.
            "--kube-api-qps=500".into(),
            "--kube-api-burst=1000".into(),
        ];
        let log = directory.join("kube-controller-manager.log");
        self.controller_manager = Some(Guarded::start(program, &arguments, log)?);
        Ok(())
    }

    /// A ready server may still lack what every test takes for granted.
    async fn wait_until_usable(&mut self) -> Result<()> {
        let client = self.client()?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        let limit = Instant::now() + START_LIMIT;
        loop {
            self.etcd.ensure_running()?;
            self.apiserver.ensure_running()?;
            let missing = if !matches!(namespaces.get_opt("default").await, Ok(Some(_))) {
                "the namespace default"
            } else if let Some(controllers) = &mut self.controller_manager {
                controllers.ensure_running()?;
                if matches!(accounts.get_opt("default").await, Ok(Some(_))) {
                    return Ok(());
                }
                "the ServiceAccount default/default"
            } else {
                return Ok(());
            };
            ensure!(
                Instant::now() < limit,
                "the real cluster did not make {missing} within {} s:\n{}",
                START_LIMIT.as_secs(),
                self.controller_manager.as_ref().unwrap_or(&self.apiserver).log_tail(),
            );
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Looked for before anything starts, so that a missing one is named at once.
struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
    controller_manager: PathBuf,
}

impl Programs {
    fn find() -> Result<Self> {
        Ok(Self {
            etcd: tool("etcd")?,
            apiserver: tool("kube-apiserver")?,
            controller_manager: tool("kube-controller-manager")?,
        })
    }
}

const CA: &str = "ca.pem";
const SERVER_CERTIFICATE: &str = "server.pem";
const SERVER_KEY: &str = "server.key";
const ACCOUNT_KEY: &str = "service-accounts.key";
const ACCOUNT_PUBLIC_KEY: &str = "service-accounts.pem";
const TOKENS: &str = "tokens.csv";
const AUDIT_POLICY: &str = "audit.yaml";
const AUDIT_LOG: &str = "audit.jsonl";

/// Whether the server writes down who asks for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audit {
    Kept,
    Absent,
}

fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Metadata", "userGroups": ["system:serviceaccounts:terrane-system"] },
            { "level": "None" },
        ],
    })
    .to_string()
}

struct Credentials {
    token: String,
    ca_der: Vec<u8>,
}

impl Credentials {
    /// Makes a CA, a server certificate, a key for service accounts and the administrator's token.
    fn write(directory: &Path) -> Result<Self> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "terrane tests");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let server_key = KeyPair::generate()?;
        let mut server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server = server.signed_by(&server_key, &ca)?;

        let accounts = KeyPair::generate()?;
        let token = format!("{:032x}", rand::random::<u128>());
        let tokens = format!("{token},administrator,administrator,\"system:masters\"\n");

        write_private(&directory.join(CA), &ca.pem())?;
        write_private(&directory.join(SERVER_CERTIFICATE), &server.pem())?;
        write_private(&directory.join(SERVER_KEY), &server_key.serialize_pem())?;
        write_private(&directory.join(ACCOUNT_KEY), &accounts.serialize_pem())?;
        write_private(&directory.join(ACCOUNT_PUBLIC_KEY), &accounts.public_key_pem())?;
        write_private(&directory.join(TOKENS), &tokens)?;
        Ok(Self { token, ca_der: ca.der().to_vec() })
    }
}

fn start_etcd(program: &Path, directory: &Path, disk: Disk) -> Result<Guarded> {
    let arguments = [
        "--data-dir=etcd",
        // Sockets instead of ports: none can be taken, and only this user can reach them. etcd wants
        // a host and a port; the two make the name of a file in its working directory.
        "--listen-client-urls=unix://client:0",
        "--listen-peer-urls=unix://peer:0",
        // A label that nobody calls: it may not be a socket, and may not be left out.
        "--advertise-client-urls=http://localhost:2379",
    ];
    let speed = match disk {
        Disk::Durable => None,
        Disk::Fast => Some("--unsafe-no-fsync"),
    };
    let arguments: Vec<&str> = arguments.into_iter().chain(speed).collect();
    Guarded::start(program, &arguments, directory.join("etcd.log"))
}

/// Starts the server and waits until it says it is ready; gives its address too.
///
/// The server cannot choose a free port itself, so another process may take the one chosen for it
/// before it binds. Then it ends at once, and the next port is tried.
async fn start_apiserver(
    program: &Path,
    directory: &Path,
    credentials: &Credentials,
    (controllers, audit): (Controllers, Audit),
    etcd: &mut Guarded,
) -> Result<(Guarded, String)> {
    let limit = Instant::now() + START_LIMIT;
    loop {
        let port = free_port()?;
        let url = format!("https://127.0.0.1:{port}");
        let arguments = apiserver_arguments(directory, port, controllers, audit);
        let mut server = Guarded::start(program, &arguments, directory.join("kube-apiserver.log"))?;
        match wait_until_ready(&mut server, etcd, &url, credentials, limit).await {
            Ok(()) => return Ok((server, url)),
            Err(_) if server.log_tail().contains("address already in use") => {}
            Err(error) => return Err(error),
        }
    }
}

fn apiserver_arguments(directory: &Path, port: u16, controllers: Controllers, audit: Audit) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=unix://{}", file("client:0")),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        // The Service `kubernetes` must not list a loopback address, so nobody maintains it.
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        format!("--tls-cert-file={}", file(SERVER_CERTIFICATE)),
        format!("--tls-private-key-file={}", file(SERVER_KEY)),
        format!("--token-auth-file={}", file(TOKENS)),
        "--authorization-mode=Node,RBAC".into(),
        "--allow-privileged=true".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", file(ACCOUNT_PUBLIC_KEY)),
        format!("--service-account-signing-key-file={}", file(ACCOUNT_KEY)),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        // A test's node has no name that resolves; `logs` and `exec` go to its address.
        "--kubelet-preferred-address-types=InternalIP".into(),
    ];
    if controllers == Controllers::Absent {
        arguments.push("--disable-admission-plugins=ServiceAccount".into());
    }
    if audit == Audit::Kept {
        arguments.push(format!("--audit-policy-file={}", file(AUDIT_POLICY)));
        arguments.push(format!("--audit-log-path={}", file(AUDIT_LOG)));
        // In megabytes; past it, the record would go on in another file.
        arguments.push("--audit-log-maxsize=10000".into());
    }
    arguments
}

async fn wait_until_ready(
    server: &mut Guarded,
    etcd: &mut Guarded,
    url: &str,
    credentials: &Credentials,
    limit: Instant,
) -> Result<()> {
    let mut config = build_config(url, &credentials.token, &credentials.ca_der)?;
    // A wait of ours is enough; the client's own would hide how far the server is.
    config.default_retry = false;
    let client = Client::try_from(config).context("making a client for the real cluster")?;
    loop {
        etcd.ensure_running()?;
        server.ensure_running()?;
        let request = http::Request::get("/readyz").body(Vec::new()).context("building a request")?;
        if client.request_text(request).await.is_ok_and(|answer| answer == "ok") {
            return Ok(());
        }
        ensure!(
            Instant::now() < limit,
            "kube-apiserver was not ready within {} s:\n{}",
            START_LIMIT.as_secs(),
            server.log_tail(),
        );
        tokio::time::sleep(POLL).await;
    }
}

fn build_config(url: &str, token: &str, ca_der: &[u8]) -> Result<Config> {
    let mut config = Config::new(url.parse().with_context(|| format!("reading the address {url}"))?);
    config.root_cert = Some(vec![ca_der.to_vec()]);
    config.auth_info.token = Some(token.to_owned().into());
    Ok(config)
}

fn write_kubeconfig(directory: &Path, url: &str, credentials: &Credentials) -> Result<PathBuf> {
    let path = directory.join("kubeconfig");
    // JSON is YAML, and needs no second library here.
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "administrator"}}],
        "clusters": [{"name": "tests", "cluster": {
            "server": url,
            "certificate-authority": directory.join(CA),
        }}],
        "users": [{"name": "administrator", "user": {"token": credentials.token}}],
    });
    write_private(&path, &kubeconfig.to_string())?;
    Ok(path)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr().context("reading the free port")?.port())
}
