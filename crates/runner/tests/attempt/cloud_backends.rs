//! Backends of clouds and clusters, by the real tool: each field of a definition is one that the tool knows. Where there is such a store
//! the state lives there; where there is none, the tool gets as far as asking for it, which is refused on this machine.

use api::backends::Backends;
use api::backends::FieldType;
use serde_json::{Map, Value, json};
use testkit::cluster::RealCluster;

use super::backends::{CODE, Layer, leaves_no_trace, words};
use super::*;

/// Stands for all of the clouds: refuses whatever is asked, so that nobody tries again, and no request leaves this machine.
async fn refusing() -> (String, tokio::task::JoinHandle<()>) {
    let app = axum::Router::new().fallback(async || (axum::http::StatusCode::FORBIDDEN, "403 Forbidden"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    #[allow(clippy::disallowed_methods)] // A test's server ends with the test.
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, server)
}

/// A value for each field that the definition has, where none is given.
fn with_every_field(provider: &str, given: &Value) -> Value {
    let backends = Backends::default();
    let definition = backends.all().find(|known| known.name.as_str() == provider).unwrap();
    let mut spec = Map::from_iter([("provider".to_owned(), json!(provider))]);
    for (name, field) in &definition.fields {
        let name = name.to_string();
        let value = match (given.get(&name), field.kind) {
            (Some(given), _) => given.clone(),
            (None, FieldType::Text) => json!("text"),
            (None, FieldType::Number) => json!(1),
            (None, FieldType::Bool) => json!(false),
            (None, FieldType::List) => json!(["text"]),
            (None, FieldType::Map) => json!({ "team": "text" }),
        };
        spec.insert(name, value);
    }
    for name in given.as_object().unwrap().keys() {
        assert!(spec.contains_key(name), "{provider} has no field {name}");
    }
    spec.insert("credentials".to_owned(), json!({ "secretName": "cloud" }));
    Value::Object(spec)
}

/// Those that nobody has here: what the tool complains of is that it reaches nobody, and no argument.
#[tokio::test]
async fn the_tool_knows_every_field_and_gets_as_far_as_asking_for_the_store() {
    let (refuses, server) = refusing().await;
    let everywhere = format!("http://{refuses}");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [{ "name": "c", "cluster": { "server": everywhere } }],
        "contexts": [{ "name": "text", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": { "token": "not-a-token" } }],
    })
    .to_string();
    let proxies = ["HTTPS_PROXY", "HTTP_PROXY"];
    let environment = json!({ "environment":
        proxies.map(|name| json!({ "name": name, "value": everywhere })) });
    for (provider, given, secret) in [
        (
            "azurerm",
            json!({
                "environment": "public", "storage_account_name": "account", "container_name": "states",
                "subscription_id": "00000000-0000-0000-0000-000000000000",
                "tenant_id": "00000000-0000-0000-0000-000000000000",
                "client_id": "00000000-0000-0000-0000-000000000000", "metadata_host": refuses,
            }),
            &[("ARM_ACCESS_KEY", "bm90LWEta2V5")][..],
        ),
        (
            "kubernetes",
            json!({ "host": everywhere, "secret_suffix": "layer", 
                "cluster_ca_certificate": "", "labels": { "team": "net" } }),
            &[("kubeconfig", kubeconfig.as_str())],
        ),
        (
            "gcs",
            json!({ "storage_custom_endpoint": format!("{everywhere}/storage/v1/") }),
            &[("GOOGLE_OAUTH_ACCESS_TOKEN", "not-a-token")],
        ),
    ] {
        let mut asked = with_every_field(provider, &given);
        // To OpenTofu, one excludes the other.
        if provider == "azurerm" && testkit::tools::tool("terraform").is_err() {
            asked.as_object_mut().unwrap().remove("environment");
        }
        let layer = Layer::among(Backends::default(), asked, secret, environment.clone());
        let world = World::new(&[("envs/prod/main.tf", CODE)]).await;
        let outcome = layer.plan(&world, "plan-1").await;
        let log = world.log_of("plan-1").await;
        assert_eq!(outcome.reason, Reason::ToolFailed, "{provider}: {}\n{log}", outcome.message);
        for complaint in [
            "Unsupported argument",
            "Invalid backend configuration",
            "Missing required argument",
            "Incorrect attribute",
        ] {
            assert!(!log.contains(complaint), "{provider}: {complaint}\n{log}");
        }
        let is_refused =
            ["orbidden", "403", "HTTP response to HTTPS client"].iter().any(|word| log.contains(word));
        assert!(is_refused, "{provider}: {log}");
    }
    server.abort();
}

#[tokio::test]
async fn a_state_lives_in_a_secret_of_a_cluster_and_is_locked_by_a_lease() {
    let cluster = RealCluster::shared().await;
    let kubeconfig = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let layer = Layer::new(
        json!({
            "provider": "kubernetes", "secret_suffix": "attempt", "namespace": "default",
            "labels": { "team": "net" }, "credentials": { "secretName": "cluster" },
        }),
        &[("kubeconfig", &kubeconfig)],
    );
    let world = World::new(&[("envs/prod/main.tf", CODE)]).await;
    let again = layer.live(&world).await;
    assert!(words(&again).starts_with("kubernetes "), "{}", words(&again));
    let kubectl = |arguments: &[&str]| {
        let output = cluster.kubectl().unwrap().args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let secret = kubectl(&["get", "secret", "tfstate-default-attempt", "--output", "json"]);
    let secret: Value = serde_json::from_str(&secret).unwrap();
    assert_eq!(secret["metadata"]["labels"]["team"], "net", "{secret}");
    assert!(secret["data"]["tfstate"].is_string(), "{secret}");
    let lease = kubectl(&["get", "lease", "lock-tfstate-default-attempt", "--output", "json"]);
    let lease: Value = serde_json::from_str(&lease).unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    assert_eq!(holder, "", "what was locked is unlocked: {lease}");
    leaves_no_trace(&world, &["plan-1", "apply-1", "plan-2"], cluster.token()).await;
    kubectl(&["delete", "secret/tfstate-default-attempt", "lease/lock-tfstate-default-attempt"]);
}
