//! One `terrane up --demo` for the whole test, and commands as several people type them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::json;
use testkit::process::{Guarded, Scratch};

pub const BINARY: &str = env!("CARGO_BIN_EXE_terrane");
/// Far beyond what anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

pub struct Doors {
    pub client: Client,
    pub service: String,
    root: Scratch,
    process: Guarded,
}

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    #[track_caller]
    pub fn with_code(self, expected: i32) -> Self {
        assert_eq!(self.code, expected, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "no {text:?} in {self:#?}");
        self
    }

    #[track_caller]
    pub fn keeps_quiet_about(self, text: &str) -> Self {
        assert!(!self.out.contains(text) && !self.err.contains(text), "{text:?} in {self:#?}");
        self
    }

    #[track_caller]
    pub fn complains(self, text: &str) -> Self {
        assert!(self.err.contains(text), "no {text:?} in {self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl Doors {
    pub async fn open() -> Self {
        let root = Scratch::new("terrane-doors-").unwrap();
        let data = root.path().join("data");
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let arguments = [
            "up",
            "--demo",
            "--listen",
            &listen,
            "--api-listen",
            "127.0.0.1:0",
            "--data-dir",
            data.to_str().unwrap(),
        ];
        let mut process = Guarded::start(Path::new(BINARY), &arguments, root.path().join("up.log")).unwrap();
        let kubeconfig = data.join("kubeconfig");
        until("the kubeconfig is written", || {
            process.ensure_running().unwrap();
            std::future::ready(kubeconfig.exists().then_some(()))
        })
        .await;
        let config = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let layers = Api::<api::TerraformLayer>::namespaced(client.clone(), "default");
        for name in ["network", "app", "database", "broken"] {
            until("the demo is declared", || async { layers.get_opt(name).await.unwrap() }).await;
        }
        Self { client, service: format!("http://{listen}"), root, process }
    }

    pub fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    /// A command of the administrator.
    pub fn run(&self, arguments: &[&str]) -> Done {
        run_as(&self.kubeconfig(), arguments)
    }

    /// Makes an account with these cluster roles in `default`; returns its kubeconfig and token.
    pub async fn account(&self, name: &str, roles: &[&str]) -> (PathBuf, String) {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), "default");
        let account = json!({ "metadata": { "name": name } });
        let post = PostParams::default();
        accounts.create(&post, &serde_json::from_value(account).unwrap()).await.unwrap();
        for role in roles {
            let binding = json!({
                "metadata": { "name": format!("{name}-{role}") },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }],
            });
            Api::<RoleBinding>::namespaced(self.client.clone(), "default")
                .create(&post, &serde_json::from_value(binding).unwrap())
                .await
                .unwrap();
        }
        let token = self.token(name, Vec::new()).await;
        let ours = fs::read_to_string(self.kubeconfig()).unwrap();
        let lines = ours.lines().map(|line| match line.trim_start().strip_prefix("token: ") {
            Some(_) => format!("    token: {token}\n"),
            None => format!("{line}\n"),
        });
        let file = self.root.path().join(format!("{name}.kubeconfig"));
        fs::write(&file, lines.collect::<String>()).unwrap();
        (file, token)
    }

    pub async fn token(&self, account: &str, audiences: Vec<String>) -> String {
        let request = TokenRequest {
            spec: TokenRequestSpec { audiences, expiration_seconds: Some(3600), bound_object_ref: None },
            ..TokenRequest::default()
        };
        let answer = Api::<ServiceAccount>::namespaced(self.client.clone(), "default")
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .unwrap();
        answer.status.unwrap().token
    }

    /// Ends `terrane up` as Ctrl-C does.
    pub async fn close(mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.process.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status =
            until("terrane up has ended", || std::future::ready(self.process.exited().unwrap())).await;
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        // Pods' files lie outside the data directory when pods have users of their own.
        let state = self.data().join("node");
        let pods = node::config::pods_directory(&state, &node::isolation::Isolation::detect(&state));
        let _ = fs::remove_dir_all(pods);
    }
}

pub fn run_as(kubeconfig: &Path, arguments: &[&str]) -> Done {
    finished(Command::new(BINARY).args(arguments).env("KUBECONFIG", kubeconfig).output().unwrap())
}

pub fn finished(output: Output) -> Done {
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let wait = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("not so within {DEADLINE:?}: {what}"))
}

pub fn git(root: &Path, arguments: &[&str]) {
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", "user.name=test", "-c", "user.email=test@localhost"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
