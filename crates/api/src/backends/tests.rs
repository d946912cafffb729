#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const LAYER: Facts<'static> = Facts { namespace: "team", name: "db", path: "infra/db", workspace: "default" };

fn generated(spec: Value) -> Result<Generated, String> {
    let spec: BackendSpec = serde_json::from_value(spec).unwrap();
    Backends::default().generate(&spec, LAYER).map_err(|refusal| refusal.to_string())
}

#[test]
fn each_backend_that_comes_with_terrane_can_be_used() {
    for text in KNOWN {
        Definition::parse(text).unwrap();
    }
    let names: Vec<String> =
        Backends::default().all().map(|definition| definition.name.to_string()).collect();
    assert_eq!(names, ["aws", "azurerm", "gcs", "http", "kubernetes", "local", "pg", "s3"]);
}

#[test]
fn fields_become_what_the_tool_is_told() {
    let table = [
        (
            json!({ "provider": "aws", "s3": "s3-store", "dynamoDB": "db-table", "region": "us-east-1" }),
            "s3",
            json!({ "bucket": "s3-store", "key": "team/db/terraform.tfstate", "region": "us-east-1",
                "dynamodb_table": "db-table", "encrypt": true }),
        ),
        (
            json!({ "provider": "aws", "s3": "b", "region": "eu-central-1", "key": "k" }),
            "s3",
            json!({ "bucket": "b", "key": "k", "region": "eu-central-1", "use_lockfile": true, "encrypt": true }),
        ),
        (
            json!({ "provider": "s3", "bucket": "b", "key": "k", "endpoint": "http://127.0.0.1:1", "use_path_style": true,
                "role_arn": "arn:aws:iam::1:role/r", "max_retries": 3 }),
            "s3",
            json!({ "bucket": "b", "key": "k", "use_lockfile": true, "assume_role": { "role_arn": "arn:aws:iam::1:role/r" },
                "endpoints": { "s3": "http://127.0.0.1:1" }, "use_path_style": true, "max_retries": 3 }),
        ),
        (
            json!({ "provider": "s3", "bucket": "b", "key": "k", "dynamodb_table": "t", "use_lockfile": true }),
            "s3",
            json!({ "bucket": "b", "key": "k", "use_lockfile": true, "dynamodb_table": "t" }),
        ),
        (
            json!({ "provider": "gcs", "bucket": "b", "prefix": "p", "impersonate_service_account_delegates": ["a", "b"] }),
            "gcs",
            json!({ "bucket": "b", "impersonate_service_account_delegates": ["a", "b"], "prefix": "p" }),
        ),
        (
            json!({ "provider": "azurerm", "storage_account_name": "s", "container_name": "c", "key": "k", "use_msi": true }),
            "azurerm",
            json!({ "container_name": "c", "key": "k", "storage_account_name": "s", "use_msi": true }),
        ),
        (
            json!({ "provider": "http", "address": "https://states/db", "retry_max": 5 }),
            "http",
            json!({ "address": "https://states/db", "retry_max": 5 }),
        ),
        (
            json!({ "provider": "kubernetes", "secret_suffix": "db", "labels": { "team": "one" } }),
            "kubernetes",
            json!({ "labels": { "team": "one" }, "namespace": "team", "secret_suffix": "db" }),
        ),
        (json!({ "provider": "local", "path": "/states/db" }), "local", json!({ "path": "/states/db" })),
        (
            json!({ "provider": "pg", "schema_name": "db", "skip_index_creation": true }),
            "pg",
            json!({ "schema_name": "db", "skip_index_creation": true }),
        ),
    ];
    for (spec, kind, settings) in table {
        let found = generated(spec.clone()).unwrap();
        assert_eq!((found.kind.as_str(), Value::Object(found.settings)), (kind, settings), "{spec}");
        assert_eq!(found.credentials, None, "{spec}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_do() {
    let table = [
        (
            json!({ "provider": "s4", "bucket": "b" }),
            "spec.backend: there is no backend s4; did you mean s3? `terrane backends` lists them",
        ),
        (
            json!({ "provider": "nowhere" }),
            "spec.backend: there is no backend nowhere; `terrane backends` lists them",
        ),
        (
            json!({ "provider": "s3", "buckt": "b", "key": "k" }),
            "spec.backend: s3 has no field buckt; did you mean bucket?",
        ),
        (
            json!({ "provider": "pg", "conn_str": "postgres://u:p@h/d" }),
            "spec.backend: pg has no field conn_str; what is secret belongs into a Secret, which credentials.secretName names",
        ),
        (
            json!({ "provider": "local", "colour": "red" }),
            "spec.backend: local has no field colour; its fields are path and workspace_dir",
        ),
        (
            json!({ "provider": "s3", "bucket": "b" }),
            "spec.backend: s3 needs the field key: The object that holds the state.",
        ),
        (
            json!({ "provider": "s3", "bucket": 7, "key": "k" }),
            "spec.backend: field bucket of s3 must be text, and is a number; put it in quotes",
        ),
        (
            json!({ "provider": "s3", "bucket": "b", "key": "k", "encrypt": "yes" }),
            "spec.backend: field encrypt of s3 must be true or false, and is text",
        ),
        (
            json!({ "provider": "gcs", "bucket": "b", "prefix": "p", "impersonate_service_account_delegates": [1] }),
            "spec.backend: field impersonate_service_account_delegates of gcs must be a list of texts, and is a list",
        ),
        (
            json!({ "provider": "local", "path": "/s/%${file(\"/etc/passwd\")}" }),
            "spec.backend: path of local must not hold ${, %{ or control characters: the tool would not take them as they stand",
        ),
        (
            json!({ "provider": "kubernetes", "secret_suffix": "s", "labels": { "a": "%{ if true }" } }),
            "spec.backend: labels of kubernetes must not hold ${, %{ or control characters: the tool would not take them as they stand",
        ),
        (
            json!({ "provider": "local", "path": "/s", "credentials": { "secretName": "x" } }),
            "spec.backend: local reads no credentials; leave credentials out",
        ),
    ];
    for (spec, words) in table {
        assert_eq!(generated(spec.clone()).unwrap_err(), words, "{spec}");
    }
}

#[test]
fn credentials_are_named_and_not_held() {
    let spec =
        json!({ "provider": "kubernetes", "secret_suffix": "s", "credentials": { "secretName": "cluster" } });
    let login = generated(spec).unwrap().credentials.unwrap();
    assert_eq!(login.secret.as_str(), "cluster");
    let first = login.keys.first().unwrap();
    assert_eq!((first.variable().unwrap().as_str(), first.file), ("KUBE_CONFIG_PATH", true));
    assert!(login.known().starts_with("kubeconfig, KUBE_HOST, KUBE_TOKEN"), "{}", login.known());
}

const CONSUL: &str = r#"
name: company-consul
about: The company's Consul.
backend: consul
fields:
  team: { about: Whose it is., required: true, values: [one, two] }
settings:
  address: consul.example.org:8500
  scheme: https
  path: "terraform/{team}/{layer.name}"
credentials:
  - { key: token, environment: CONSUL_HTTP_TOKEN }
"#;

#[test]
fn an_administrator_adds_one_by_a_document() {
    let mut backends = Backends::default();
    backends.add(CONSUL).unwrap();
    let spec = |team: &str| {
        let spec =
            json!({ "provider": "company-consul", "team": team, "credentials": { "secretName": "c" } });
        serde_json::from_value::<BackendSpec>(spec).unwrap()
    };
    let found = backends.generate(&spec("one"), LAYER).unwrap();
    assert_eq!(
        Value::Object(found.settings),
        json!({ "address": "consul.example.org:8500", "scheme": "https", "path": "terraform/one/db" })
    );
    assert_eq!(
        backends.generate(&spec("three"), LAYER).unwrap_err().to_string(),
        "spec.backend: field team of company-consul must be one of \"one\" and \"two\""
    );
    assert_eq!(
        backends.add(CONSUL).unwrap_err().to_string(),
        "there is a backend company-consul already; give it another name"
    );
}

#[test]
fn a_document_with_a_mistake_is_refused() {
    let changed = |from: &str, to: &str| {
        assert!(CONSUL.contains(from), "{from}");
        Definition::parse(&CONSUL.replace(from, to)).unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("{team}", "{tea}", "setting path names {tea}, which is not one of its fields"),
        ("{team}", "{team", "setting path: \"terraform/{team/{layer.name}\" has a brace"),
        ("values: [one, two]", "values: [1]", "a value of field team is not text"),
        ("required: true", "required: true, default: one", "field team is required and has a default"),
        ("required: true", "unless: team", "unless of field team needs a default"),
        ("required: true", "default: '{layer.colour}'", "the default of field team names layer.colour"),
        ("key: token, environment: CONSUL_HTTP_TOKEN", "key: tok-en", "key tok-en cannot name a variable"),
        ("name: company", "named: company", "it is not a definition of a backend"),
        ("  team:", "  provider:", "it is not a definition of a backend"),
    ] {
        let found = changed(from, to);
        assert!(found.starts_with(words) || found.contains(words), "{to}: {found}");
    }
}

proptest::proptest! {
    #[test]
    fn whatever_a_layer_says_stays_a_value(text in "\\PC{0,40}") {
        match generated(json!({ "provider": "local", "path": text })) {
            Ok(found) => proptest::prop_assert_eq!(Value::Object(found.settings), json!({ "path": text })),
            Err(words) => proptest::prop_assert!(words.contains("must not hold") && text.contains('{'), "{}", words),
        }
    }

    #[test]
    fn no_document_upsets_the_reader(text in "[a-z:{}\\[\\]\"' \n-]{0,120}") {
        let _ = Definition::parse(&text);
        let _ = Definition::parse(&format!("{CONSUL}{text}"));
    }
}
