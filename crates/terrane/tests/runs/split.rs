//! Every role a process of its own, and the datastore with a certificate that only its own authority vouches for.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use api::{CONTROLLER_ACCOUNT, DATASTORE_AUDIENCE, SYSTEM_NAMESPACE, TerraformLayer};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use testkit::process::Guarded;

use crate::harness::{BINARY, free_address, is, layer_until, until};
use crate::takeover::Ground;

struct Roles<'a> {
    ground: &'a Ground,
    kubeconfig: String,
}

impl Roles<'_> {
    fn place(&self, name: &str) -> String {
        self.ground.root.path().join(name).display().to_string()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.place(&format!("{name}.log"))).unwrap_or_default()
    }

    fn start(&self, name: &str, arguments: Vec<String>) -> Guarded {
        let line = [vec![format!("KUBECONFIG={}", self.kubeconfig), BINARY.to_owned()], arguments].concat();
        Guarded::start(Path::new("/usr/bin/env"), &line, self.place(&format!("{name}.log")).into()).unwrap()
    }

    fn controller(&self, name: &str, datastore: SocketAddr, authority: &str) -> Guarded {
        let arguments = vec![
            "controller".to_owned(),
            format!("--listen={}", free_address()),
            format!("--datastore-url=https://{datastore}"),
            format!("--datastore-ca={}", self.place(authority)),
            format!("--token-file={}", self.place("controller-token")),
            "--runner-image=terrane.dev/local".to_owned(),
            "--allow-local-sources".to_owned(),
            format!("--git-dir={}", self.place("controller-git")),
        ];
        self.start(name, arguments)
    }

    /// A certificate for the datastore, of an authority of its own, and another authority that has nothing to do with it.
    fn certify(&self) {
        let authority = || {
            let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (right, wrong) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        fs::write(self.place("tls.crt"), leaf.signed_by(&key, &right).unwrap().pem()).unwrap();
        fs::write(self.place("tls.key"), key.serialize_pem()).unwrap();
        fs::write(self.place("ca.crt"), right.pem()).unwrap();
        fs::write(self.place("wrong.crt"), wrong.pem()).unwrap();
    }

    /// The controllers' token for the datastore.
    async fn write_token(&self) {
        let post = PostParams::default();
        let namespace = json!({ "metadata": { "name": SYSTEM_NAMESPACE } });
        let namespaces = Api::<Namespace>::all(self.ground.client.clone());
        // The API may have made it already.
        let _ = namespaces.create(&post, &serde_json::from_value(namespace).unwrap()).await;
        let accounts = Api::<ServiceAccount>::namespaced(self.ground.client.clone(), SYSTEM_NAMESPACE);
        let account = json!({ "metadata": { "name": CONTROLLER_ACCOUNT } });
        accounts.create(&post, &serde_json::from_value(account).unwrap()).await.unwrap();
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![DATASTORE_AUDIENCE.to_owned()],
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let made = accounts.create_token_request(CONTROLLER_ACCOUNT, &post, &request).await.unwrap();
        fs::write(self.place("controller-token"), made.status.unwrap().token).unwrap();
    }
}

#[tokio::test]
async fn roles_apart_reach_a_datastore_by_its_own_authority_and_by_no_other() {
    let ground = Ground::new().await;
    let kubeconfig = ground.account("roles").await.display().to_string();
    let roles = Roles { ground: &ground, kubeconfig };
    roles.certify();
    roles.write_token().await;
    let address = free_address();
    let datastore = vec![
        "datastore".to_owned(),
        format!("--listen={address}"),
        format!("--tls-cert={}", roles.place("tls.crt")),
        format!("--tls-key={}", roles.place("tls.key")),
        format!("--directory={}", roles.place("artefacts")),
        format!("--keys={}", roles.place("artefact-keys")),
        format!("--tools={}", roles.place("tools")),
        "--provider-registries=none".to_owned(),
    ];
    let mut datastore = roles.start("datastore", datastore);
    until("the datastore serves", || {
        datastore.ensure_running().unwrap();
        std::future::ready(roles.log("datastore").contains("serving artefacts").then_some(()))
    })
    .await;

    let mut mistaken = roles.controller("mistaken", address, "wrong.crt");
    let ended = until("it ends by itself", || std::future::ready(mistaken.exited().unwrap())).await;
    assert_eq!(ended.code(), Some(1));
    let said = roles.log("mistaken");
    assert!(said.contains("error: the datastore's certificate is not believed"), "{said}");
    assert!(said.contains("name the authority that signed it with --datastore-ca"), "{said}");

    // Pods have users of their own, who must be able to get to the node's files.
    fs::set_permissions(ground.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let node = vec![
        "node".to_owned(),
        "--bind-unscheduled".to_owned(),
        format!("--data-dir={}", roles.place("node")),
        format!("--readable={}", roles.place("tools")),
        format!("--kubeconfig={}", roles.kubeconfig),
    ];
    let _node = roles.start("node", node);
    let _controller = roles.controller("controller", address, "ca.crt");
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "one" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "one" },
    });
    let layers = Api::<TerraformLayer>::namespaced(ground.client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
    layer_until(&ground.client, "one", "planned by a runner over TLS", is("Ready")).await;
    drop((_controller, _node, datastore));
    ground.end().await;
}
