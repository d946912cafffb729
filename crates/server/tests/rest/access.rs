//! Who may do what: every operation of the document, for everybody, on objects here and elsewhere.

use axum::http::Method;
use serde_json::{Value, json};
use server::credential::Scope;

use crate::ground::{COOKIE, Call, Ground};

/// Method and path of every operation that the document describes, and whether it is open.
pub fn operations() -> Vec<(Method, String, bool)> {
    let document = serde_json::to_value(server::document()).unwrap();
    let mut found = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(ids.insert(id.clone()), "{id} is the name of two operations");
            let is_open = operation["security"] == json!([{}]);
            found.push((method, path.clone(), is_open));
        }
    }
    assert!(found.len() >= 40, "{found:?}");
    found
}

fn at(path: &str, namespace: &str) -> String {
    place(path, namespace, "thing")
}

/// The path of an operation on one object. Stacks have their namespace in the query.
pub fn place(path: &str, namespace: &str, object: &str) -> String {
    let place = path.replace("{namespace}", namespace).replace("{name}", object).replace("{version}", "1");
    let place = place.replace("{id}", object).replace("{request}", "create");
    if path.starts_with("/tfstacks") { format!("{place}?namespace={namespace}") } else { place }
}

#[tokio::test]
async fn nobody_gets_anything_without_credentials() {
    let ground = Ground::new().await;
    let open: Vec<String> =
        operations().into_iter().filter(|(_, _, open)| *open).map(|(_, path, _)| path).collect();
    let hooks = "/webhooks/{host}/{namespace}/{name}";
    assert_eq!(open, ["/login", hooks, "/webhooks/{host}"], "what is open is decided here");
    let old = ground.token("old", &Scope::ALL, &[]).await;
    ground.credentials.end(server::credential::Kind::Token, "old").await.unwrap();
    for (method, path, _) in operations().into_iter().filter(|(_, _, open)| !open) {
        // Names that are there, names that are not, and bodies that cannot be read: nothing is said before who asks is known.
        for path in [at(&path, "a"), at(&path, "no-such-namespace"), at(&path, "..")] {
            let call = || Call::new(method.clone(), &path).body("{");
            ground.call(call()).await.with(401);
            ground.call(call().bearer("made-up")).await.with(401);
            ground.call(call().bearer("terrane_made_up")).await.with(401);
            ground.call(call().bearer(&old)).await.with(401);
            ground.call(call().bearer("")).await.with(401);
            ground.call(call().header("authorization", "Basic YTpi")).await.with(401);
            ground.call(call().header("cookie", &format!("{COOKIE}=made.up"))).await.with(401);
            ground.call(call().header("cookie", "other=made.up")).await.with(401);
        }
    }
    // Whoever sends a webhook is nobody to Kubernetes, and credentials of people prove nothing there.
    ground.repository("a", "thing").await;
    let token = ground.token("all", &Scope::ALL, &[]).await;
    for host in ["github", "gitlab", "gitea", "bitbucket", "azuredevops"] {
        for path in [at(hooks, "a"), at(hooks, "no-such-namespace"), "/webhooks/{host}".to_owned()] {
            let call = || Call::post(&path.replace("{host}", host)).json(&json!({}));
            ground.call(call()).await.with(401);
            ground.call(call().bearer(&token)).await.with(401);
        }
    }
    for open in ["/openapi.json", "/swagger", "/swagger/swagger-ui-bundle.js", "/swagger/terrane.js"] {
        ground.call(Call::get(open)).await.with(200);
    }
    let start = ground.call(Call::get("/")).await;
    assert_eq!((start.status.as_u16(), start.header("location")), (307, "/swagger"));
    // The version of the program is for those who have proved who they are.
    let document = ground.call(Call::get("/openapi.json")).await.json();
    assert_eq!((&document["openapi"], &document["info"]["version"]), (&json!("3.1.0"), &json!("v1")));
}

/// What an operation on one object needs.
fn needed(method: &Method, path: &str) -> Option<Scope> {
    let last = path.rsplit('/').next().unwrap();
    Some(match (method.as_str(), last) {
        ("POST", "tfstacks") => Scope::Write,
        ("PUT" | "PATCH" | "DELETE", "{id}") => Scope::Write,
        _ if !path.contains("{namespace}") && !path.contains("{id}") => return None,
        (_, "approvals") if method == Method::POST => Scope::Approve,
        ("PUT", "state") | ("DELETE", "lock") | ("GET", "state" | "{version}") => Scope::State,
        ("GET", _) => Scope::Read,
        ("POST", "sync" | "suspend" | "resume" | "cancel") => Scope::Write,
        other => panic!("what does {other:?} of {path} need?"),
    })
}

fn rules(scopes: &[Scope]) -> Value {
    let rule = |resources: &[&str], verbs: &[&str]| json!({ "apiGroups": ["terrane.dev"], "resources": resources, "verbs": verbs });
    let kinds = ["terraformrepositories", "terraformlayers", "terraformruns", "terraformapprovals"];
    let all = scopes.iter().flat_map(|scope| match scope {
        Scope::Read => vec![
            rule(&kinds, &["get", "list", "watch"]),
            rule(&["terraformruns/log", "terraformruns/plan", "terraformlayers/outputs"], &["get"]),
        ],
        Scope::Write => vec![rule(&["terraformlayers"], &["create", "patch", "delete"])],
        Scope::Approve => vec![rule(&["terraformapprovals"], &["create"])],
        Scope::State => vec![rule(&["terraformlayers/state"], &["get", "update"])],
    });
    Value::Array(all.collect())
}

/// Each role on each operation on an object of its namespace and of another, from the document.
#[tokio::test]
async fn a_role_does_what_it_may_where_it_may_and_nothing_else() {
    let ground = Ground::new().await;
    for namespace in ["a", "b"] {
        ground.layer(namespace, "thing", json!({}), json!({})).await;
        ground.run(namespace, "thing", "thing", json!({})).await;
        ground.repository(namespace, "thing").await;
    }
    let mut people: Vec<(String, Vec<Scope>, String)> = Vec::new();
    let sets = [
        vec![],
        vec![Scope::Read],
        vec![Scope::Write],
        vec![Scope::Approve],
        vec![Scope::State],
        Scope::ALL.into(),
    ];
    for (number, scopes) in sets.into_iter().enumerate() {
        let token = ground.account(&format!("role-{number}"), rules(&scopes)).await;
        people.push((format!("account {scopes:?}"), scopes.clone(), token));
        let token = ground.token(&format!("machine-{number}"), &scopes, &["a"]).await;
        people.push((format!("token {scopes:?}"), scopes, token));
    }
    let mut asked = 0;
    for (method, path, _) in operations().into_iter().filter(|(_, _, open)| !open) {
        let Some(needed) = needed(&method, &path) else { continue };
        for (who, scopes, token) in &people {
            for (namespace, object) in [("a", "thing"), ("a", "missing"), ("b", "thing"), ("b", "missing")] {
                let place = place(&path, namespace, object);
                let answer = ground.call(Call::new(method.clone(), &place).bearer(token)).await;
                let mut may = namespace == "a" && scopes.contains(&needed);
                if path.ends_with("/runs/{name}/cancel") {
                    // A run that is not there is told to whoever may see runs.
                    let sees = namespace == "a" && scopes.contains(&Scope::Read);
                    may = sees && (scopes.contains(&Scope::Write) || object == "missing");
                }
                let status = answer.status.as_u16();
                assert_ne!(status, 401, "{who}: {method} {place}: {answer:#?}");
                assert_eq!(status != 403, may, "{who}: {method} {place}: {answer:#?}");
                assert!(!answer.text.contains("hunter2"), "{who}: {method} {place}");
                asked += 1;
            }
        }
    }
    assert!(asked > 800, "{asked}");
    // Lists show what may be listed, and nothing of the rest.
    for (who, scopes, token) in &people {
        for list in ["layers", "runs", "repositories"] {
            let expected: &[&str] = if scopes.contains(&Scope::Read) { &["thing"] } else { &[] };
            let call = || Call::get(&format!("/api/v1/{list}")).bearer(token);
            let answer = ground.until(who, call, |answer| answer.names() == expected).await;
            let total = answer.json()["total"].as_u64().unwrap();
            assert_eq!(total, u64::try_from(expected.len()).unwrap(), "{who} {list}");
            assert!(!answer.text.contains("\"b\""), "{who} {list}: {answer:#?}");
        }
    }
}

#[tokio::test]
async fn a_token_ends_when_it_expires() {
    let ground = Ground::new().await;
    let now = jiff::Timestamp::now();
    let grant = server::credential::Grant {
        user: "terrane:token:short".to_owned(),
        scopes: Scope::ALL.into(),
        namespaces: std::collections::BTreeSet::new(),
        expires: now,
    };
    let token = ground.credentials.make_token(&"short".parse().unwrap(), &grant).await.unwrap();
    let token = secrecy::ExposeSecret::expose_secret(&token).to_owned();
    ground.call(Call::get("/api/v1/session").bearer(&token)).await.with(401);
    assert!(ground.credentials.make_token(&"short".parse().unwrap(), &grant).await.is_err(), "taken");
    // What is kept is no token.
    let secrets =
        kube::Api::<k8s_openapi::api::core::v1::Secret>::namespaced(ground.client.clone(), "terrane-system");
    let kept = secrets.get("terrane-token-short").await.unwrap();
    let word = token.rsplit('_').next().unwrap().as_bytes();
    assert!(kept.data.unwrap().values().all(|value| value.0 != word), "only a digest is kept");
}
