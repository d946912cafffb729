//! Terrane without a right over the cluster: on a real kube-apiserver, with nothing but the Roles that the chart renders for two
//! namespaces, a plan runs and is recorded, a Terraform tells what is around it, people see what they may, and tokens that prove nothing
//! are refused.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::run::RunState;
use api::text::Sha256;
use api::{SYSTEM_NAMESPACE, Terraform, TerraformLayer, TerraformRepository, TerraformRun};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::cluster::{Controllers, Disk, Options, RealCluster};
use testkit::process::Guarded;

use crate::harness::{BINARY, Place, until};

pub(crate) const TENANT: &str = "team-a";
/// A node of pods that nobody runs.
const NOWHERE: &str = "nowhere";

pub(crate) struct Ground {
    pub(crate) cluster: RealCluster,
    pub(crate) client: Client,
    pub(crate) place: Place,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        Self::with(Controllers::Absent).await
    }

    pub(crate) async fn with(controllers: Controllers) -> Self {
        // One of its own: a node that takes every pod must find no other test's.
        let options = Options { controllers, disk: Disk::Fast };
        let cluster = RealCluster::start(options).await.unwrap();
        let client = cluster.client().unwrap();
        let place = Place::new();
        // Pods have users of their own, who must be able to get to the node's files.
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let ground = Self { cluster, client, place };
        for name in [SYSTEM_NAMESPACE, TENANT, "team-b"] {
            ground.create::<Namespace>(None, json!({ "metadata": { "name": name } })).await;
        }
        // The cluster's own controllers take pods away whose node they do not know.
        ground.create::<Node>(None, json!({ "metadata": { "name": NOWHERE } })).await;
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        ground.apply(&repository.join("deploy/administrator.yaml"));
        ground.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);
        // Accounts, Roles and bindings as the chart makes them; its Deployments would be nobody's here.
        let rendered = fs::read_to_string(repository.join("charts/tests/rendered/namespaced.yaml")).unwrap();
        let kinds = ["kind: ServiceAccount", "kind: Role", "kind: RoleBinding"];
        let wanted = |document: &&str| document.lines().any(|line| kinds.contains(&line));
        let rights = rendered.split("\n---\n").filter(wanted).collect::<Vec<_>>().join("\n---\n");
        fs::write(ground.place.path("rights.yaml"), rights).unwrap();
        ground.apply(&ground.place.path("rights.yaml"));
        ground
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) {
        let output = self.cluster.kubectl().unwrap().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn apply(&self, file: &Path) {
        self.kubectl(&["apply", "--server-side", "--filename", file.to_str().unwrap()]);
    }

    pub(crate) async fn create<K>(&self, namespace: Option<&str>, object: Value) -> K
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize,
        K: serde::de::DeserializeOwned,
        Api<K>: Within<K>,
    {
        let api = <Api<K> as Within<K>>::within(self.client.clone(), namespace);
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    /// A pod that nobody runs, for a token to be bound to.
    async fn pod(&self, namespace: &str, name: &str, account: &str) -> Pod {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "serviceAccountName": account, "nodeName": NOWHERE, "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// A token of an account, for the datastore or for the API itself.
    async fn token(
        &self,
        namespace: &str,
        account: &str,
        audience: Option<&str>,
        pod: Option<&Pod>,
    ) -> String {
        let bound_object_ref = pod.map(|pod| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        });
        let spec = TokenRequestSpec {
            audiences: audience.map(str::to_owned).into_iter().collect(),
            expiration_seconds: Some(3600),
            bound_object_ref,
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        made.status.unwrap().token
    }

    /// A kubeconfig with the rights of one of Terrane's accounts, and nothing more.
    async fn kubeconfig(&self, account: &str) -> PathBuf {
        let token = self.token(SYSTEM_NAMESPACE, account, None, None).await;
        let text = fs::read_to_string(self.cluster.kubeconfig()).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["users"][0]["user"] = json!({ "token": token });
        let path = self.place.path(&format!("{account}.kubeconfig"));
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    pub(crate) fn log(&self, role: &str) -> String {
        fs::read_to_string(self.place.path(&format!("{role}.log"))).unwrap_or_default()
    }

    /// A role as a process of its own, by the rights of its account.
    async fn role(&self, role: &str, more: &[String]) -> Guarded {
        let kubeconfig = self.kubeconfig(&format!("terrane-{role}")).await;
        let arguments: Vec<String> = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            BINARY.to_owned(),
            role.to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--namespaces={TENANT},team-b"),
        ]
        .into_iter()
        .chain(more.iter().cloned())
        .collect();
        let log = self.place.path(&format!("{role}.log"));
        Guarded::start(Path::new("/usr/bin/env"), &arguments, log).unwrap()
    }

    /// Where a role says that it serves.
    async fn address(&self, role: &str, process: &mut Guarded) -> String {
        self.address_told(role, "serving ", process).await
    }

    /// The address in the line of its log with these words.
    pub(crate) async fn address_told(&self, role: &str, words: &str, process: &mut Guarded) -> String {
        until(&format!("the {role} serves"), async || {
            process.ensure_running().unwrap();
            let log = self.log(role);
            let line = log.lines().find(|line| line.contains(words))?;
            let (_, port) = line.split_once("127.0.0.1:")?;
            let port: String = port.chars().take_while(char::is_ascii_digit).collect();
            Some(format!("127.0.0.1:{port}"))
        })
        .await
    }
}

/// What works on a ground. It ends when this is dropped.
pub(crate) struct Work {
    pub(crate) datastore: Guarded,
    pub(crate) controller: Guarded,
    pub(crate) node: Guarded,
    artefacts: String,
    /// Of the controller.
    pod: Pod,
}

impl Ground {
    fn in_place(&self, name: &str) -> String {
        self.place.path(name).display().to_string()
    }

    /// How a role gets to the datastore.
    fn reach(&self, artefacts: &str, account: &str) -> Vec<String> {
        let token = self.in_place(&format!("{account}.token"));
        vec![format!("--datastore-url={artefacts}"), format!("--token-file={token}")]
    }

    /// A datastore, a controller with these flags too, and a node.
    pub(crate) async fn work(&self, more: &[String]) -> Work {
        let audience = Some(api::DATASTORE_AUDIENCE);
        let pod = self.pod(SYSTEM_NAMESPACE, "terrane-controller-0", api::CONTROLLER_ACCOUNT).await;
        let server_pod = self.pod(SYSTEM_NAMESPACE, "terrane-server-0", api::SERVER_ACCOUNT).await;
        for (account, pod) in [(api::CONTROLLER_ACCOUNT, &pod), (api::SERVER_ACCOUNT, &server_pod)] {
            let token = self.token(SYSTEM_NAMESPACE, account, audience, Some(pod)).await;
            fs::write(self.place.path(&format!("{account}.token")), token).unwrap();
        }
        let kept = ["directory", "keys", "tools"].map(|what| format!("--{what}={}", self.in_place(what)));
        let kept = [&kept[..], &["--provider-registries=none".to_owned()]].concat();
        let mut datastore = self.role("datastore", &kept).await;
        let artefacts = format!("http://{}", self.address("datastore", &mut datastore).await);
        let flags = [
            self.reach(&artefacts, api::CONTROLLER_ACCOUNT),
            vec![
                "--runner-image=terrane.dev/local".to_owned(),
                "--runner-service-account=terrane-runner".to_owned(),
                "--allow-local-sources".to_owned(),
                // So that runners are counted, in each of the namespaces.
                "--max-runner-pods=2".to_owned(),
                format!("--git-dir={}", self.in_place("git")),
            ],
            more.to_vec(),
        ]
        .concat();
        let controller = self.role("controller", &flags).await;
        let node = self.node("machine.example").await;
        Work { datastore, controller, node, artefacts, pod }
    }
}

impl Ground {
    /// A node that takes every pod.
    pub(crate) async fn node(&self, name: &str) -> Guarded {
        let (data, kubeconfig) = (self.in_place(name), self.cluster.kubeconfig().display().to_string());
        let arguments =
            ["node", "--bind-unscheduled", "--name", name, "--data-dir", &data, "--kubeconfig", &kubeconfig];
        let node = self.place.start(BINARY, &arguments);
        let nodes = Api::<Node>::all(self.client.clone());
        until("the node is registered", async || nodes.get_opt(name).await.ok().flatten()).await;
        // Where the cluster's own controllers are absent, nobody else sees that it is ready.
        let taint = ["taint", "nodes", name, "node.kubernetes.io/not-ready-"];
        self.cluster.kubectl().unwrap().args(taint).output().unwrap();
        node
    }
}

/// How objects of a kind are reached, whether or not it has namespaces.
pub(crate) trait Within<K>: Sized {
    fn within(client: Client, namespace: Option<&str>) -> Self;
}

macro_rules! everywhere {
    ($($kind:ty),*) => {$(
        impl Within<$kind> for Api<$kind> {
            fn within(client: Client, _: Option<&str>) -> Self {
                Api::all(client)
            }
        }
    )*};
}
everywhere!(Namespace, Node);

macro_rules! within {
    ($($kind:ty),*) => {$(
        impl Within<$kind> for Api<$kind> {
            fn within(client: Client, namespace: Option<&str>) -> Self {
                Api::namespaced(client, namespace.unwrap())
            }
        }
    )*};
}
within!(
    Ingress,
    RoleBinding,
    Secret,
    Service,
    ServiceAccount,
    Terraform,
    TerraformLayer,
    TerraformRepository
);

async fn ask(url: &str, token: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(url).bearer_auth(token).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

pub(crate) fn git(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
    let output = command.args(["-c", "init.defaultBranch=main"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn by_the_roles_of_two_namespaces_alone_a_plan_runs_and_tokens_that_prove_nothing_are_refused() {
    let ground = Ground::new().await;
    let around = ["--surroundings=all", "--show-credentials=team-b/grafana"].map(str::to_owned);
    let Work { mut datastore, mut controller, node, artefacts, pod } = ground.work(&around).await;
    let mut server = ground.role("server", &ground.reach(&artefacts, api::SERVER_ACCOUNT)).await;

    let run = a_plan_runs(&ground).await;
    what_is_around_is_told(&ground).await;
    let people = format!("http://{}", ground.address("server", &mut server).await);
    people_see_what_they_may(&ground, &people, &run).await;
    tokens_that_prove_nothing_are_refused(&ground, &artefacts, &pod).await;
    for process in [&mut controller, &mut server, &mut datastore] {
        process.ensure_running().unwrap();
    }
    for role in ["controller", "server", "datastore"] {
        let log = ground.log(role);
        assert!(
            !log.to_lowercase().contains("forbidden"),
            "{role} asked for more than its Roles give: {log}"
        );
    }
    drop((node, server, controller, datastore));
}

async fn a_plan_runs(ground: &Ground) -> TerraformRun {
    let code = ground.place.path("code");
    fs::create_dir_all(code.join("one")).unwrap();
    fs::write(code.join("one/main.tf"), "resource \"terraform_data\" \"one\" {}\n").unwrap();
    git(&code, &["init", "--quiet"]);
    git(&code, &["add", "--all"]);
    git(&code, &["commit", "--quiet", "--message=Start"]);
    let url = format!("file://{}", code.display());
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
        "spec": { "repository": { "url": url }, "pollInterval": "1s" },
    });
    ground.create::<TerraformRepository>(Some(TENANT), repository).await;
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "one" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "one" },
    });
    ground.create::<TerraformLayer>(Some(TENANT), layer).await;
    let runs = Api::<TerraformRun>::namespaced(ground.client.clone(), TENANT);
    let run = until("a plan has ended and is recorded", async || {
        let run = runs.list(&ListParams::default()).await.ok()?.items.into_iter().next()?;
        let state = run.status.as_ref()?.state?;
        assert_ne!(state, RunState::Failed, "{:?}", run.status);
        (state == RunState::Succeeded).then_some(run)
    })
    .await;
    let result = run.status.as_ref().and_then(|status| status.result.as_ref()).unwrap();
    assert!(result.plan_sha256.is_some(), "what it planned is recorded: {result:?}");
    run
}

/// A Terraform tells where Ingresses answer and where logins are, and of Secrets shows the one that was named.
async fn what_is_around_is_told(ground: &Ground) {
    let terraform = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": { "name": "workload" },
        "spec": { "gitRepo": { "url": "file:///nowhere" } },
    });
    ground.create::<Terraform>(Some(TENANT), terraform).await;
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let paths = json!({ "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] });
    let rules = ["shop.example", "plain.example"].map(|host| json!({ "host": host, "http": paths }));
    let ingress = json!({
        "metadata": { "name": "web" },
        "spec": { "tls": [{ "hosts": ["shop.example"] }], "rules": rules },
    });
    ground.create::<Ingress>(Some("team-b"), ingress).await;
    for (namespace, name) in [(TENANT, "argocd-server"), ("team-b", "grafana")] {
        let metadata = json!({ "name": name, "labels": { "app.kubernetes.io/name": name } });
        let service = json!({ "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
        ground.create::<Service>(Some(namespace), service).await;
        // Both can be read here, and one of them is to be shown.
        let secret = if namespace == TENANT { "argocd-initial-admin-secret" } else { name };
        let data = json!({ "password": "hidden", "admin-user": "root", "admin-password": "swordfish" });
        let secret = json!({ "metadata": { "name": secret }, "stringData": data });
        ground.create::<Secret>(Some(namespace), secret).await;
    }
    let terraforms = Api::<Terraform>::namespaced(ground.client.clone(), TENANT);
    let expected = json!({
        "argocdUsername": "admin",
        "argocdPassword": "*** (key password of Secret argocd-initial-admin-secret of namespace team-a)",
        "grafanaUsername": "root", "grafanaPassword": "swordfish",
    });
    let urls = json!({ "team-b": ["http://plain.example", "https://shop.example"] });
    // The Secret comes after its Service here, and is looked at again with the next change.
    terraforms
        .patch(
            "workload",
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": { "variables": { "a": "b" } } })),
        )
        .await
        .unwrap();
    until("the Terraform tells what is around it", async || {
        let status = serde_json::to_value(terraforms.get("workload").await.ok()?.status?).unwrap();
        (status["ingressURLs"] == urls && status["credentials"] == expected).then_some(())
    })
    .await;
    Api::<Ingress>::namespaced(ground.client.clone(), "team-b")
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    until("and what is gone is told no more", async || {
        terraforms.get("workload").await.ok()?.status?.ingress_urls.is_empty().then_some(())
    })
    .await;
}

async fn people_see_what_they_may(ground: &Ground, server: &str, run: &TerraformRun) {
    for name in ["jane", "joe"] {
        let account = json!({ "metadata": { "name": name } });
        ground.create::<ServiceAccount>(Some(TENANT), account).await;
    }
    let binding = json!({
        "metadata": { "name": "jane" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "terrane-viewer" },
        "subjects": [{ "kind": "ServiceAccount", "name": "jane", "namespace": TENANT }],
    });
    ground.create::<RoleBinding>(Some(TENANT), binding).await;
    let jane = ground.token(TENANT, "jane", None, None).await;
    let joe = ground.token(TENANT, "joe", None, None).await;
    let for_another = ground.token(TENANT, "jane", Some(api::DATASTORE_AUDIENCE), None).await;
    let log = |namespace: &str| format!("{server}/api/v1/namespaces/{namespace}/runs/{}/log", run.name_any());
    // The API server learns of a new binding a moment after it was made.
    let text = until("jane reads the log", async || {
        let (code, text) = ask(&log(TENANT), &jane).await;
        (code == 200).then_some(text)
    })
    .await;
    assert!(text.contains("terraform_data.one"), "{text}");
    for (token, namespace, code, words) in [
        (joe.as_str(), TENANT, 403, "joe may not get terraformruns/log"),
        (&jane, "default", 403, "does not look after namespace default, only after team-a, team-b"),
        ("nonsense", TENANT, 401, "unknown to the Kubernetes API"),
        (&for_another, TENANT, 401, "unknown to the Kubernetes API"),
    ] {
        let (found, text) = ask(&log(namespace), token).await;
        assert_eq!(found, code, "{words}: {text}");
        assert!(text.contains(words), "{text}");
    }
    // Lists come from a watch of each namespace, and show what may be listed.
    let layers = format!("{server}/api/v1/layers");
    let (code, text) = ask(&layers, &jane).await;
    assert!(code == 200 && text.contains(&format!("\"namespace\":\"{TENANT}\"")), "{text}");
    let (code, text) = ask(&layers, &joe).await;
    assert!(code == 200 && text.contains("\"total\":0"), "{text}");
}

/// The token with other claims, signed by `key` as the cluster signs.
fn resigned(token: &str, key: &EncodingKey, change: impl FnOnce(&mut Value)) -> String {
    let kid = jsonwebtoken::decode_header(token).unwrap().kid;
    let mut claims = jsonwebtoken::dangerous::insecure_decode::<Value>(token).unwrap().claims;
    change(&mut claims);
    jsonwebtoken::encode(&Header { kid, ..Header::new(Algorithm::ES256) }, &claims, key).unwrap()
}

async fn tokens_that_prove_nothing_are_refused(ground: &Ground, datastore: &str, pod: &Pod) {
    let (system, account) = (SYSTEM_NAMESPACE, api::CONTROLLER_ACCOUNT);
    let audience = Some(api::DATASTORE_AUDIENCE);
    let good = ground.token(system, account, audience, Some(pod)).await;
    let url = format!("{datastore}/v1/bundles/{}", Sha256::of(b"nothing is there"));
    assert_eq!(ask(&url, &good).await.0, 404, "the controller is known, and finds nothing");

    let own_key = EncodingKey::from_ec_pem(&fs::read(ground.cluster.account_key()).unwrap()).unwrap();
    let pair = rcgen::KeyPair::generate().unwrap();
    let other_key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let now = jiff::Timestamp::now().as_second();
    let stranger = ground.pod(TENANT, "stranger", "terrane-runner").await;
    let neighbour = ground.pod("default", "neighbour", "default").await;
    let doomed = ground.pod(system, "doomed", account).await;
    let accounts = Api::<ServiceAccount>::namespaced(ground.client.clone(), "default");
    let default = serde_json::from_value(json!({ "metadata": { "name": "default" } })).unwrap();
    accounts.create(&PostParams::default(), &default).await.unwrap();
    let cases = BTreeMap::from([
        ("signed by the cluster", (resigned(&good, &own_key, |_| ()), 404, "")),
        ("forged", (resigned(&good, &other_key, |_| ()), 401, "its signature or its content is wrong")),
        ("expired", (resigned(&good, &own_key, |c| c["exp"] = json!(now - 120)), 401, "it has expired")),
        ("for the API", (ground.token(system, account, None, Some(pod)).await, 401, "another audience")),
        ("unbound", (ground.token(system, account, audience, None).await, 403, "not bound to a pod")),
        (
            "no run's",
            (
                ground.token(TENANT, "terrane-runner", audience, Some(&stranger)).await,
                403,
                "no labels of a run",
            ),
        ),
        (
            "elsewhere",
            (ground.token("default", "default", audience, Some(&neighbour)).await, 403, "does not serve"),
        ),
        (
            "another account's",
            (
                resigned(&good, &own_key, |c| {
                    c["sub"] = json!("system:serviceaccount:terrane-system:terrane-server")
                }),
                403,
                "runs as another account",
            ),
        ),
        ("nonsense", ("nonsense".to_owned(), 401, "no signed token")),
    ]);
    for (what, (token, code, words)) in cases {
        let (found, text) = ask(&url, &token).await;
        assert_eq!(found, code, "{what}: {text}");
        assert!(text.contains(words), "{what}: {text}");
    }

    let orphan = ground.token(system, account, audience, Some(&doomed)).await;
    let pods = Api::<Pod>::namespaced(ground.client.clone(), system);
    pods.delete("doomed", &DeleteParams::default().grace_period(0)).await.unwrap();
    until("the pod is gone", async || pods.get_opt("doomed").await.unwrap().is_none().then_some(())).await;
    let (code, text) = ask(&url, &orphan).await;
    assert_eq!(code, 401, "{text}");
    assert!(text.contains("its pod terrane-system/doomed is gone"), "{text}");
    ground.pod(system, "doomed", account).await;
    let (code, text) = ask(&url, &orphan).await;
    assert_eq!(code, 401, "{text}");
    assert!(text.contains("another has its name"), "{text}");
}
