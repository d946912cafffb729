//! Other ways to log in than a token, each with a secret of its own: a password, an SSH key, and what the home of the person who starts
//! `terrane up` holds for git and for the tool, which nobody may use.

use std::fs;
use std::path::Path;

use api::layer::LayerState;
use api::{TerraformLayer, TerraformRepository};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::json;
use testkit::canary::Canary;
use testkit::forge::{HttpsForge, SshForge};

use crate::create;
use crate::harness::{Terrane, layer_until};

const LAYERS: [&str; 2] = ["basic", "keyed"];

pub(crate) struct Logins {
    https: HttpsForge,
    ssh: SshForge,
    password: Canary,
    key: Canary,
    /// What a credential helper of git, and the tool's own file of credentials, would give out.
    pub(crate) home: Vec<Canary>,
}

impl Logins {
    pub(crate) async fn start(served: &Path) -> Self {
        let password = Canary::random("the password of a repository");
        let https = HttpsForge::start(served, "deploy", &password.value).await.unwrap();
        let ssh = SshForge::start().await.unwrap();
        // Of the lines between the two that mark a key, the first ones tell what it is, and are no secret.
        let line = ssh.private_key().lines().nth(4).unwrap().to_owned();
        assert!(line.len() >= 60 && !line.starts_with('-'), "{line}");
        let key = Canary::known("the SSH key of a repository", &line);
        let home = ["the credential helper of git", "the tool's file of credentials"];
        Self { https, ssh, password, key, home: home.map(Canary::random).into() }
    }

    /// Makes the home of whoever starts `terrane up`.
    pub(crate) fn furnish(&self, terrane: &mut Terrane) {
        let home = terrane.root().join("home");
        fs::create_dir_all(home.join(".terraform.d")).unwrap();
        let [helper, token] = self.home.as_slice() else { panic!("two secrets") };
        let config = format!("[credential]\n\thelper = \"!f() {{ echo password={}; }}; f\"\n", helper.value);
        fs::write(home.join(".gitconfig"), config).unwrap();
        let credentials = json!({ "credentials": { "registry.example": { "token": token.value } } });
        fs::write(home.join(".terraform.d/credentials.tfrc.json"), credentials.to_string()).unwrap();
        terrane.with_variable("HOME", home.to_str().unwrap());
    }

    /// Declares a repository for each login, and a layer that is planned from it.
    pub(crate) async fn declare(&self, client: &Client, served: &Path) {
        let basic = json!({
            "username": "deploy", "password": self.password.value, "ca.crt": self.https.authority(),
        });
        let keyed =
            json!({ "ssh-privatekey": self.ssh.private_key(), "known_hosts": self.ssh.known_hosts() });
        let urls = [self.https.url("team.git"), self.ssh.url(&served.join("team.git"))];
        for ((name, data), url) in LAYERS.into_iter().zip([basic, keyed]).zip(urls) {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
            });
            create::<Secret>(client, secret).await;
            let repository = json!({
                "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": name },
                "spec": { "repository": { "url": url, "credentials": { "secretName": name } }, "pollInterval": "1s" },
            });
            create::<TerraformRepository>(client, repository).await;
            let layer = json!({
                "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
                "spec": { "repository": { "name": name }, "branch": "main", "path": "app" },
            });
            create::<TerraformLayer>(client, layer).await;
        }
    }

    /// Waits until every login has led to a plan.
    pub(crate) async fn are_used(&self, client: &Client) {
        for layer in LAYERS {
            layer_until(client, layer, "planned with its login", |layer| {
                layer.status.as_ref().and_then(|status| status.state) == Some(LayerState::ApplyNeeded)
            })
            .await;
        }
    }

    /// The secrets that a Secret holds.
    pub(crate) fn into_secrets(self) -> (Vec<Canary>, Vec<Canary>) {
        (vec![self.password, self.key], self.home)
    }
}
