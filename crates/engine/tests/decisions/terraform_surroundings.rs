//! What a Terraform says of the cluster around it: URLs of Ingresses and logins, how much of them, and whose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::Terraform;
use api::terraform::TerraformStatus;
use engine::door::surroundings::{Found, Surroundings, Told, Urls, Whose, is_shown, login_of, urls_of};
use engine::door::terraform::{Given, Observed, Report, report};
use engine::{Read, Wake, later};
use jiff::Timestamp;
use serde_json::{Value, json};

fn urls(spec: Value, status: Value) -> Vec<String> {
    let ingress = serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap();
    urls_of(&ingress).into_iter().collect()
}

#[test]
fn an_ingress_answers_at_its_hosts_or_where_it_is_reached() {
    let hosts = |hosts: &[&str]| hosts.iter().map(|host| json!({ "host": host })).collect::<Vec<_>>();
    let reached = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }, { "hostname": "lb.example" }] } });
    for (spec, status, expected) in [
        (
            json!({ "rules": hosts(&["b.example", "a.example"]) }),
            json!({}),
            vec!["http://a.example", "http://b.example"],
        ),
        (
            json!({ "rules": hosts(&["a.example", "b.example"]), "tls": [{ "hosts": ["b.example"] }] }),
            reached.clone(),
            vec!["http://a.example", "https://b.example"],
        ),
        (
            json!({ "rules": hosts(&["x.a.example", "a.example", "y.x.a.example", "*.a.example"]), "tls": [{ "hosts": ["*.a.example"] }] }),
            json!({}),
            vec!["http://a.example", "http://y.x.a.example", "https://*.a.example", "https://x.a.example"],
        ),
        (
            json!({ "rules": hosts(&["a.example"]), "tls": [{ "secretName": "all" }] }),
            json!({}),
            vec!["https://a.example"],
        ),
        (
            json!({ "defaultBackend": { "service": { "name": "web" } } }),
            reached.clone(),
            vec!["http://192.0.2.1", "http://[2001:db8::1]", "http://lb.example"],
        ),
        (
            json!({ "rules": [{ "http": { "paths": [] } }, { "host": "a.example" }] }),
            json!({ "loadBalancer": { "ingress": [{ "hostname": "lb.example" }] } }),
            vec!["http://a.example", "http://lb.example"],
        ),
        (json!({ "rules": [{ "http": { "paths": [] } }] }), json!({}), vec![]),
    ] {
        assert_eq!(urls(spec.clone(), status), expected, "{spec}");
    }
    assert!(urls_of(&serde_json::from_value(json!({})).unwrap()).is_empty());
}

fn known(namespaces: &[(&str, usize)]) -> Read<Urls> {
    let all = |count: usize| (0..count).map(|number| format!("https://{number:03}.example")).collect();
    let known = namespaces.iter().map(|(name, count)| ((*name).to_owned(), all(*count))).collect();
    Read::Present(Arc::new(known))
}

fn service(namespace: &str, name: &str, label: &str) -> Found {
    let labels = json!({ "app.kubernetes.io/name": label });
    let metadata = json!({ "namespace": namespace, "name": name, "labels": labels });
    let service = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    Found { login: login_of(&service).unwrap(), values: None }
}

const NOW: i64 = 1_800_000_000;

/// What a Terraform of the namespace `own` says, and when it is looked at again.
fn said(before: TerraformStatus, told: &Told, surroundings: &Surroundings) -> (Value, Wake) {
    let mut terraform: Terraform = serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": { "name": "db", "namespace": "own", "uid": "uid-terraform", "generation": 1 },
        "spec": { "gitRepo": { "url": "https://github.com/team/infra" } },
    }))
    .unwrap();
    terraform.status = Some(before);
    let now = Timestamp::from_second(NOW).unwrap();
    let (outputs, nothing) = (Given::default(), None);
    let settings = engine::Settings { told: told.clone(), ..crate::world::settings() };
    let observed = Observed {
        now,
        terraform: &terraform,
        repository: nothing,
        layer: None,
        outputs: &outputs,
        surroundings,
        settings: &settings,
    };
    let Report { status, wake, .. } = report(&observed, &[]);
    (serde_json::to_value(status).unwrap(), wake)
}

fn all() -> Told {
    Told { whose: Whose::All, ..Told::default() }
}

#[test]
fn urls_are_told_by_namespace_as_far_as_there_is_room_and_as_they_may() {
    let surroundings =
        Surroundings { urls: known(&[("prod", 2), ("own", 1), ("empty", 0)]), ..Surroundings::default() };
    let of = |told: &Told| said(TerraformStatus::default(), told, &surroundings).0["ingressURLs"].clone();
    let two = ["https://000.example", "https://001.example"];
    assert_eq!(of(&all()), json!({ "own": [two[0]], "prod": two }));
    assert_eq!(of(&Told { whose: Whose::Own, ..Told::default() }), json!({ "own": [two[0]] }));

    // One namespace does not take the room of another, and many do not take that of one's own.
    let many: Vec<(String, usize)> = (0..1000).map(|number| (format!("a{number:04}"), 30)).collect();
    let mut many: Vec<(&str, usize)> = many.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    many.push(("own", 21));
    let crowded = Surroundings { urls: known(&many), ..Surroundings::default() };
    let (status, _) = said(TerraformStatus::default(), &all(), &crowded);
    let urls = status["ingressURLs"].as_object().unwrap();
    assert_eq!(urls["own"].as_array().unwrap().last().unwrap(), "(and 1 more)");
    assert_eq!(urls["a0000"].as_array().unwrap().last().unwrap(), "(and 10 more)");
    assert!((2..100).contains(&urls.len()) && status.to_string().len() < 24 * 1024);

    // What is not known yet stays as it was told; what nobody looks at any more goes.
    let before = TerraformStatus {
        ingress_urls: [("prod".into(), vec!["https://x".into()])].into(),
        ..Default::default()
    };
    let unknown = Surroundings { urls: Read::Unknown, logins: Read::Unknown };
    assert_eq!(said(before.clone(), &all(), &unknown).0["ingressURLs"], json!({ "prod": ["https://x"] }));
    assert_eq!(said(before, &Told::default(), &Surroundings::default()).0.get("ingressURLs"), None);
}

#[test]
fn logins_are_named_and_shown_only_where_their_secret_may_be() {
    let found = vec![
        service("monitoring", "metrics-grafana", "grafana"),
        service("argocd", "argocd-server", "argocd-server"),
    ];
    let mut surroundings = Surroundings { logins: Read::Present(found.clone()), ..Surroundings::default() };
    let (status, wake) = said(TerraformStatus::default(), &all(), &surroundings);
    let named = json!({
        "argocdUsername": "admin",
        "argocdPassword": "*** (key password of Secret argocd-initial-admin-secret of namespace argocd)",
        "grafanaUsername": "*** (key admin-user of Secret metrics-grafana of namespace monitoring)",
        "grafanaPassword": "*** (key admin-password of Secret metrics-grafana of namespace monitoring)",
    });
    assert_eq!((&status["credentials"], wake), (&named, Wake::OnChange));
    let own = Told { whose: Whose::Own, ..Told::default() };
    assert_eq!(said(TerraformStatus::default(), &own, &surroundings).0.get("credentials"), None);

    // A Service that bears the label in another namespace is not the one whose Secret was named.
    let told = Told { values: [("monitoring".into(), "metrics-grafana".into())].into(), ..all() };
    assert_eq!(found.iter().map(|found| is_shown(&told, &found.login)).collect::<Vec<_>>(), [true, false]);
    let mut grafana = found[0].clone();
    let values = [("admin-user", "root"), ("admin-password", "swordfish")];
    grafana.values = Some(values.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let stranger = service("aaa", "grafana", "grafana");
    assert!(!is_shown(&told, &stranger.login));
    assert!(!format!("{grafana:?}").contains("swordfish"));
    surroundings.logins = Read::Present(vec![stranger.clone(), grafana.clone()]);
    let (status, wake) = said(TerraformStatus::default(), &told, &surroundings);
    assert_eq!(status["credentials"], json!({ "grafanaUsername": "root", "grafanaPassword": "swordfish" }));
    // Nobody tells of another password.
    let now = Timestamp::from_second(NOW).unwrap();
    assert_eq!(wake, Wake::At(later(now, Duration::from_secs(600))));

    // What is no line is only named, and what is gone is not told.
    grafana.values = Some(BTreeMap::from([("admin-password".to_owned(), "two\nlines".to_owned())]));
    surroundings.logins = Read::Present(vec![grafana]);
    let (status, _) = said(TerraformStatus::default(), &told, &surroundings);
    assert_eq!(status["credentials"]["grafanaPassword"], named["grafanaPassword"]);
    surroundings.logins = Read::Present(Vec::new());
    let before = serde_json::from_value(json!({ "credentials": named })).unwrap();
    assert_eq!(said(before, &told, &surroundings).0.get("credentials"), None);
}
