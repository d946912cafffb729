//! One `terrane up --demo` for the whole test, and commands as several people type them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;
use testkit::process::Scratch;

use crate::harness::{BINARY, Terrane, until};

pub struct Doors {
    pub client: Client,
    pub service: String,
    scratch: Scratch,
    terrane: Terrane,
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
        let mut terrane = Terrane::new();
        let client = terrane.start(&["--demo"]).await;
        let layers = Api::<api::TerraformLayer>::namespaced(client.clone(), "default");
        for name in ["network", "app", "database", "broken"] {
            until("the demo is declared", || async { layers.get_opt(name).await.unwrap() }).await;
        }
        let service = format!("http://{}", terrane.service().await);
        Self { client, service, scratch: Scratch::new("terrane-doors-").unwrap(), terrane }
    }

    pub fn data(&self) -> PathBuf {
        self.terrane.data()
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
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
        let file = self.scratch.path().join(format!("{name}.kubeconfig"));
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

    /// What `terrane up` printed so far, its log lines included.
    pub fn printed(&self) -> String {
        self.terrane.printed()
    }

    /// Ends `terrane up` as Ctrl-C does.
    pub async fn close(mut self) {
        self.terrane.signal(Signal::TERM);
        assert_eq!(self.terrane.ended().await.code(), Some(0));
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
