//! Stacks by the router: what a request makes of a template, what is refused, and that nothing sensitive is shown.

use std::collections::BTreeSet;

use api::{TerraformLayer, annotation, label};
use axum::http::Method;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use server::credential::Scope;

use crate::ground::{Answer, Call, Ground};

const SECRET: &str = "correct-horse-battery";

pub fn layers(ground: &Ground) -> Api<TerraformLayer> {
    Api::namespaced(ground.client.clone(), "a")
}

fn conditions(kind: &str, reason: &str) -> Value {
    let one = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": reason, "message": "so it is",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    let ready = one("Ready", if kind == "Ready" { "True" } else { "False" });
    if kind == "Ready" { json!([ready]) } else { json!([ready, one(kind, "True")]) }
}

/// As the controllers leave a template whose code they have read.
pub async fn template(ground: &Ground, name: &str, more: Value, kind: &str) {
    let mut spec = json!({
        "repository": { "name": "code" }, "branch": "main", "path": "machine",
        "template": { "description": "Machines." },
        "environment": [{ "name": "TF_VAR_region", "value": "here" }],
        "variables": [{ "name": "owner", "value": "ops" }],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let object: TerraformLayer = serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
        "metadata": { "name": name, "namespace": "a" }, "spec": spec,
    }))
    .unwrap();
    let made = layers(ground).create(&PostParams::default(), &object).await.unwrap();
    let declared = json!([
        { "name": "disks", "type": "list(string)" },
        { "name": "name", "type": "string", "description": "What it is called", "required": true },
        { "name": "owner", "type": "string", "required": true },
        { "name": "password", "type": "string", "sensitive": true },
        { "name": "region", "required": true },
        { "name": "size", "type": "number" },
        { "name": "terrane_workspace", "required": true },
    ]);
    let status = json!({
        "declared": declared, "why": "so it is", "observedGeneration": made.metadata.generation,
        "conditions": conditions(kind, "Template"),
    });
    let patch = Patch::Merge(json!({ "status": status }));
    layers(ground).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// As the controllers leave a stack that they have looked at.
pub async fn looked_at(ground: &Ground, id: &str, kind: &str, why: &str) {
    looked_at_because(ground, id, kind, why, "So").await;
}

async fn looked_at_because(ground: &Ground, id: &str, kind: &str, why: &str, reason: &str) {
    let layer = layers(ground).get(id).await.unwrap();
    let run = json!({ "name": format!("{id}-apply-1"), "action": "apply", "commit": "a".repeat(40),
                      "date": "2026-01-01T00:00:00Z", "result": "running" });
    let status = json!({
        "why": why, "observedGeneration": layer.metadata.generation, "conditions": conditions(kind, reason),
        "lastSync": layer.annotations().get(annotation::SYNC), "lastRun": run, "latestRuns": [run],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    layers(ground).patch_status(id, &PatchParams::default(), &patch).await.unwrap();
}

pub fn post(token: &str, body: &Value) -> Call {
    Call::post("/tfstacks?namespace=a").bearer(token).json(body)
}

pub fn call(token: &str, method: Method, id: &str, rest: &str) -> Call {
    Call::new(method, &format!("/tfstacks/{id}{rest}?namespace=a")).bearer(token)
}

async fn made(ground: &Ground, token: &str, body: &Value) -> String {
    ground.call(post(token, body)).await.with(202).json()["stack"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_stack_is_a_copy_of_its_template_with_variables_and_a_workspace_of_its_own() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({ "drift": { "interval": "1h" } }), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let body = json!({ "template": "machine", "variables": { "name": "web", "size": 3, "disks": ["a", "b"] },
                       "labels": { "team": "net" } });
    let answer = ground.call(post(&token, &body)).await.with(202);
    let told = answer.json();
    let id = told["stack"]["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("stack-") && id.len() == 16, "{id}");
    assert_eq!(answer.header("location"), format!("/tfstacks/{id}/requests/create?namespace=a"));
    assert_eq!((&told["request"]["state"], &told["stack"]["state"]), (&json!("pending"), &json!("pending")));

    let layer = layers(&ground).get(&id).await.unwrap();
    let spec = serde_json::to_value(&layer.spec).unwrap();
    assert_eq!(
        spec,
        json!({
            "repository": { "name": "code" }, "branch": "main", "path": "machine", "workspace": id,
            "variables": [
                { "name": "owner", "value": "ops" },
                { "name": "disks", "value": ["a", "b"] },
                { "name": "name", "value": "web" },
                { "name": "size", "value": 3 },
            ],
            "environment": [{ "name": "TF_VAR_region", "value": "here" }],
            "remediationStrategy": { "autoApply": true, "onError": { "maxRetries": 1 } },
            "drift": { "interval": "1h" }, "deletionPolicy": "Destroy", "deleteWorkspace": true,
        })
    );
    assert_eq!(layer.labels()[label::STACK_TEMPLATE], "machine");

    let seen = ground.call(call(&token, Method::GET, &id, "")).await.with(200);
    let stack = seen.json();
    assert_eq!(stack["variables"]["size"], json!({ "value": 3, "sensitive": false }));
    assert!(stack["variables"].get("owner").is_none(), "what the template gives is its own: {stack}");
    assert_eq!((&stack["workspace"], &stack["labels"]), (&json!(id), &json!({ "team": "net" })));
    let tag = seen.header("etag").to_owned();
    let same = ground.call(call(&token, Method::GET, &id, "").header("if-none-match", &tag)).await;
    assert_eq!(same.status, 304);
    // A layer that is no stack is none, and neither is the template.
    ground.layer("a", "net", json!({}), json!({})).await;
    for other in ["net", "machine", "stack-aaaaaaaaaa"] {
        ground.call(call(&token, Method::GET, other, "")).await.with(404);
        ground.call(call(&token, Method::DELETE, other, "")).await.with(404);
        ground.call(call(&token, Method::POST, other, "/cancel")).await.with(404);
    }
    assert!(layers(&ground).get_opt("net").await.unwrap().is_some());
}

#[tokio::test]
async fn a_request_tells_what_became_of_it() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let id = made(&ground, &token, &json!({ "template": "machine", "variables": { "name": "web" } })).await;
    let request =
        async |which: &str| ground.call(call(&token, Method::GET, &id, &format!("/requests/{which}"))).await;
    assert_eq!(request("create").await.with(200).json()["state"], "pending");
    looked_at(&ground, &id, "Reconciling", "applying").await;
    let running = request("create").await.with(200).json();
    assert_eq!((&running["state"], &running["run"]), (&json!("running"), &json!(format!("{id}-apply-1"))));
    // The controllers may look before the Secret of its sensitive variables is there.
    let early =
        format!("Secret {id}-variables does not exist in this namespace; create it, and the layer goes on");
    looked_at_because(&ground, &id, "Stalled", &early, "InputsMissing").await;
    assert_eq!(request("create").await.json()["state"], "pending");
    looked_at_because(&ground, &id, "Stalled", "Secret cloud does not exist", "InputsMissing").await;
    assert_eq!(request("create").await.json()["state"], "failed");
    looked_at(&ground, &id, "Stalled", "the quota is used up").await;
    let failed = request("create").await.json();
    assert_eq!((&failed["state"], &failed["why"]), (&json!("failed"), &json!("the quota is used up")));
    looked_at(&ground, &id, "Ready", "in sync").await;
    assert_eq!(request("create").await.json()["state"], "succeeded");
    for unknown in ["delete", "update-7", "update-x", "..%2F.."] {
        request(unknown).await.with(404);
    }

    // An update is another request, and what was said before it is not about it.
    let tag = ground.call(call(&token, Method::GET, &id, "")).await.header("etag").to_owned();
    let patch = |body: &Value| call(&token, Method::PATCH, &id, "").json(body);
    let larger = json!({ "variables": { "size": 5 } });
    ground.call(patch(&larger).header("if-match", "\"1\"")).await.with(412);
    let answer = ground.call(patch(&larger).header("if-match", &tag)).await.with(202);
    let place = answer.header("location").to_owned();
    let updated = answer.json();
    assert_eq!(updated["request"]["state"], "pending", "{updated}");
    assert_eq!(request("create").await.json()["state"], "superseded");
    let variables = &updated["stack"]["variables"];
    assert_eq!((&variables["name"]["value"], &variables["size"]["value"]), (&json!("web"), &json!(5)));
    looked_at(&ground, &id, "Ready", "in sync").await;
    let told = ground.call(Call::get(&place).bearer(&token)).await.with(200).json();
    assert_eq!(told["state"], "succeeded");
    ground.call(patch(&json!({ "labels": { "no label": "x" } }))).await.with(422);
    // Sent again it is planned again, though nothing is different.
    let again = ground.call(patch(&larger)).await.with(202).json();
    assert_eq!(again["request"]["state"], "pending", "{again}");

    // The whole of it, without what is not named.
    let put = |body: &Value| call(&token, Method::PUT, &id, "").json(body);
    ground.call(put(&json!({ "variables": { "size": 5 } }))).await.with(422);
    let replaced = ground.call(put(&json!({ "variables": { "name": "db" }, "labels": { "team": "data" } })));
    let replaced = replaced.await.with(202).json();
    assert_eq!(replaced["stack"]["variables"], json!({ "name": { "value": "db", "sensitive": false } }));
    assert_eq!(replaced["stack"]["labels"], json!({ "team": "data" }));
    let spec = layers(&ground).get(&id).await.unwrap().spec;
    assert_eq!(spec.variables.len(), 2, "the template's own stay: {spec:?}");

    // What holds it is the controllers' finalizer.
    let hold = json!({ "metadata": { "finalizers": [api::LAYER_FINALIZER] } });
    layers(&ground).patch(&id, &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    let tag = ground.call(call(&token, Method::GET, &id, "")).await.header("etag").to_owned();
    let delete = || call(&token, Method::DELETE, &id, "");
    ground.call(delete().header("if-match", "\"1\"")).await.with(412);
    let answer = ground.call(delete().header("if-match", &tag)).await.with(202);
    assert_eq!(answer.header("location"), format!("/tfstacks/{id}/requests/delete?namespace=a"));
    assert_eq!(answer.json()["stack"]["state"], "deleting");
    ground.call(patch(&larger)).await.with(409);
    ground.call(delete()).await.with(202);
    looked_at(&ground, &id, "Stalled", "the destroy failed").await;
    assert_eq!(request("delete").await.with(200).json()["state"], "failed");
    assert_eq!(request("create").await.json()["state"], "superseded");
    let before = layers(&ground).get(&id).await.unwrap().annotations().get(annotation::SYNC).cloned();
    let again = ground.call(delete()).await.with(202).json();
    assert_eq!(again["request"]["state"], "pending", "it is tried again: {again}");
    assert_ne!(layers(&ground).get(&id).await.unwrap().annotations().get(annotation::SYNC).cloned(), before);
    let free = json!({ "metadata": { "finalizers": null } });
    layers(&ground).patch(&id, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    request("delete").await.with(404);
    ground.call(call(&token, Method::GET, &id, "")).await.with(404);
    // One for which nothing was started is gone at once.
    let id = made(&ground, &token, &json!({ "template": "machine", "variables": { "name": "web" } })).await;
    assert_eq!(ground.call(call(&token, Method::DELETE, &id, "")).await.status, 204);
}

#[tokio::test]
async fn variables_are_checked_against_the_code() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let asked = |variables: Value| post(&token, &json!({ "template": "machine", "variables": variables }));
    let faults = |answer: Answer| -> Vec<String> {
        let problem = answer.with(422).json();
        let errors = problem["errors"].as_array().unwrap().clone();
        let detail = problem["detail"].as_str().unwrap();
        errors
            .iter()
            .map(|error| {
                assert!(error["pointer"].as_str().unwrap().starts_with("#/variables/"), "{error}");
                let words = error["detail"].as_str().unwrap();
                assert!(detail.contains(words), "{detail}");
                words.to_owned()
            })
            .collect()
    };
    for (variables, expected) in [
        (json!({}), &["name is missing, and the code has no default for it"][..]),
        (json!({ "name": null }), &["name is missing, and the code has no default for it"]),
        (
            json!({ "name": "a", "sise": 1 }),
            &["sise is no variable of the template's code; did you mean size?"],
        ),
        (json!({ "name": "a", "size": "many" }), &["size must be a number, and is text"]),
        (json!({ "name": ["a"] }), &["name must be text, and is a list"]),
        (json!({ "name": "a", "disks": { "b": 1 } }), &["disks must be a list, and is an object"]),
        (json!({ "name": "a", "owner": "me" }), &["owner is given by the template and cannot be set"]),
        (json!({ "name": "a", "region": "there" }), &["region is given by the template and cannot be set"]),
        (
            json!({ "size": true, "terrane_workspace": "other" }),
            &[
                "size must be a number, and is true or false",
                "terrane_workspace is given by the template and cannot be set",
                "name is missing, and the code has no default for it",
            ],
        ),
    ] {
        assert_eq!(faults(ground.call(asked(variables.clone())).await), expected, "{variables}");
    }
    let hidden = json!({ "template": "machine", "variables": { "name": "a" }, "sensitive": ["size"] });
    assert_eq!(
        faults(ground.call(post(&token, &hidden)).await),
        ["size is said to be sensitive, but has no value"]
    );
    let many: serde_json::Map<String, Value> = (0..300).map(|n| (format!("v{n}"), json!(n))).collect();
    ground.call(asked(Value::Object(many))).await.with(422);
    let all = layers(&ground).list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 1, "nothing was made");
    // As the tools convert values.
    ground.call(asked(json!({ "name": 7, "size": "7" }))).await.with(202);
}

/// The Secrets that a layer says are to go, or were to come.
fn secrets_named(layer: &TerraformLayer) -> BTreeSet<String> {
    let names = layer.annotations().get(annotation::STACK_SECRETS).cloned().unwrap_or_default();
    names.split(',').map(str::to_owned).collect()
}

#[tokio::test]
async fn what_is_sensitive_is_in_a_secret_and_nowhere_else() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &Scope::ALL, &["a"]).await;
    let secrets = Api::<Secret>::namespaced(ground.client.clone(), "a");
    // Marked by the code, and by the request.
    let body = json!({ "template": "machine", "sensitive": ["name"],
                       "variables": { "password": SECRET, "name": format!("{SECRET}-too"), "size": 1 } });
    let answer = ground.call(post(&token, &body).header("idempotency-key", "one")).await.with(202);
    assert!(!answer.text.contains(SECRET), "{answer:?}");
    let id = answer.json()["stack"]["id"].as_str().unwrap().to_owned();
    let layer = layers(&ground).get(&id).await.unwrap();
    assert!(!serde_json::to_string(&layer).unwrap().contains(SECRET));
    let secret = secrets.get(&format!("{id}-variables")).await.unwrap();
    let owner = &secret.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("TerraformLayer", layer.metadata.uid.as_ref()));
    let held = secret.data.unwrap();
    assert_eq!(held["password"].0, format!("{SECRET:?}").into_bytes());
    assert_eq!(held.keys().collect::<Vec<_>>(), ["name", "password"]);
    let stack = ground.call(call(&token, Method::GET, &id, "")).await.with(200);
    assert!(!stack.text.contains(SECRET));
    assert_eq!(
        stack.json()["variables"]["password"],
        json!({ "value": "(sensitive value)", "sensitive": true })
    );

    // The same key: other values are another body, though no digest of them is shown.
    ground.call(post(&token, &body).header("idempotency-key", "one")).await.with(202);
    let mut other = body.clone();
    other["variables"]["password"] = json!("guessed");
    ground.call(post(&token, &other).header("idempotency-key", "one")).await.with(422);
    let told = layer.annotations()[annotation::STACK_REQUEST].clone();
    let another = made(&ground, &token, &other).await;
    assert_eq!(layers(&ground).get(&another).await.unwrap().annotations()[annotation::STACK_REQUEST], told);

    // What an update does not name stays where it is; what it names is in a new Secret, and what is no longer needed goes.
    let patch =
        |variables: Value| call(&token, Method::PATCH, &id, "").json(&json!({ "variables": variables }));
    let names = async || -> BTreeSet<String> {
        let ours = ListParams::default().labels(&format!("{}={id}", label::LAYER));
        secrets.list(&ours).await.unwrap().items.iter().map(ResourceExt::name_any).collect()
    };
    let updated = ground.call(patch(json!({ "size": 2 }))).await.with(202);
    assert_eq!(names().await.len(), 1);
    assert_eq!(updated.json()["stack"]["variables"]["name"]["sensitive"], true);
    let updated =
        ground.call(patch(json!({ "password": "next", "name": format!("{SECRET}-new") }))).await.with(202);
    assert!(!updated.text.contains(SECRET), "what was sensitive stays so: {updated:?}");
    assert_eq!(names().await.len(), 2, "the one before stays for a pod that may still mount it");
    ground.call(patch(json!({ "password": "last", "name": "last" }))).await.with(202);
    let left = names().await;
    assert!(left.len() == 2 && !left.contains(&format!("{id}-variables")), "{left:?}");
    let open = json!({ "variables": {}, "sensitive": ["size"] });
    ground.call(call(&token, Method::PATCH, &id, "").json(&open)).await.with(422);

    // An update that ends after its Secret was made, here by what the API refuses, leaves one that the next one knows.
    let refused = json!({ "variables": { "password": "never" }, "labels": { "team": "no label" } });
    ground.call(call(&token, Method::PATCH, &id, "").json(&refused)).await.with(422);
    let named = || async { secrets_named(&layers(&ground).get(&id).await.unwrap()) };
    let orphan = &names().await - &left;
    assert_eq!((orphan.len(), orphan.is_subset(&named().await)), (1, true));
    assert_eq!(
        ground.call(call(&token, Method::GET, &id, "")).await.with(200).json()["variables"]["size"]["value"],
        2
    );
    ground.call(patch(json!({ "size": 3 }))).await.with(202);
    let after = names().await;
    assert!(after.is_disjoint(&orphan), "{after:?} and {orphan:?}");
    assert_eq!(after.len(), 1, "what the layer comes from: {after:?}");
    let read = ground.call(call(&token, Method::GET, &id, "")).await.with(200);
    let matching = |etag: &str| {
        let body = json!({ "variables": { "password": "with If-Match" } });
        call(&token, Method::PATCH, &id, "").header("if-match", etag).json(&body)
    };
    let etag = read.header("etag").to_owned();
    ground.call(matching(&etag)).await.with(202);
    ground.call(matching(&etag)).await.with(412);

    // Whoever may make layers but no Secrets makes no half of a stack.
    let rules = json!([{ "apiGroups": ["terrane.dev"], "resources": ["terraformlayers"],
                         "verbs": ["get", "create", "delete"] }]);
    let anna = ground.account("anna", rules).await;
    let before = layers(&ground).list(&ListParams::default()).await.unwrap().items.len();
    let refused = ground.call(post(&anna, &body)).await.with(403);
    assert!(
        refused.text.contains("keep the sensitive variables") && !refused.text.contains(SECRET),
        "{refused:?}"
    );
    assert_eq!(layers(&ground).list(&ListParams::default()).await.unwrap().items.len(), before);
    let plain = json!({ "template": "machine", "variables": { "name": "web" } });
    ground.call(post(&anna, &plain)).await.with(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_makes_one_stack_however_often_it_is_sent() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let body = json!({ "template": "machine", "variables": { "name": "web", "password": SECRET } });
    let calls = (0..50).map(|_| ground.call(post(&token, &body).header("idempotency-key", "k-1")));
    let places: BTreeSet<String> = futures::future::join_all(calls)
        .await
        .into_iter()
        .map(|answer| answer.with(202).header("location").to_owned())
        .collect();
    assert_eq!(places.len(), 1, "{places:?}");
    let of_template = ListParams::default().labels(label::STACK_TEMPLATE);
    assert_eq!(layers(&ground).list(&of_template).await.unwrap().items.len(), 1);

    let mut other = body.clone();
    other["variables"]["name"] = json!("db");
    let answer = ground.call(post(&token, &other).header("idempotency-key", "k-1")).await.with(422);
    assert!(answer.text.contains("another body"), "{answer:?}");
    // Of another key, of another caller and of none there is another stack.
    let second = ground.token("other", &[Scope::Read, Scope::Write], &["a"]).await;
    for call in [
        post(&token, &body).header("idempotency-key", "k-2"),
        post(&second, &body).header("idempotency-key", "k-1"),
        post(&token, &body),
        post(&token, &body),
    ] {
        ground.call(call).await.with(202);
    }
    assert_eq!(layers(&ground).list(&of_template).await.unwrap().items.len(), 5);
    for key in ["", "two words", &"x".repeat(256)] {
        ground.call(post(&token, &body).header("idempotency-key", key)).await.with(400);
    }
    let twice = post(&token, &body).header("idempotency-key", "a").header("idempotency-key", "b");
    ground.call(twice).await.with(400);
}

#[tokio::test]
async fn a_template_is_named_or_the_default_and_must_be_known() {
    let ground = Ground::new().await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let body = |template: Option<&str>| match template {
        Some(name) => json!({ "template": name, "variables": { "name": "web" } }),
        None => json!({ "variables": { "name": "web" } }),
    };
    let asked = async |template: Option<&str>| ground.call(post(&token, &body(template))).await;
    let none = asked(None).await.with(422);
    assert!(none.text.contains("none of namespace a is the default"), "{none:?}");
    ground.layer("a", "net", json!({}), json!({})).await;
    for wrong in ["net", "missing", "..", "", "machine/../net", "A"] {
        asked(Some(wrong)).await.with(422);
    }
    template(&ground, "machine", json!({ "template": { "default": true } }), "Ready").await;
    template(&ground, "resting", json!({ "suspend": true }), "Ready").await;
    template(&ground, "broken", json!({}), "Stalled").await;
    template(&ground, "young", json!({}), "Reconciling").await;
    let resting = asked(Some("resting")).await.with(409);
    assert!(resting.text.contains("is suspended"), "{resting:?}");
    let broken = asked(Some("broken")).await.with(409);
    assert!(broken.text.contains("cannot be used: so it is"), "{broken:?}");
    assert_eq!(asked(Some("young")).await.with(503).header("retry-after"), "2");

    let list = || Call::get("/tfstacks/templates").bearer(&token);
    let all = ground.until("templates", list, |answer| {
        answer.json()["total"] == 4
            && answer.json()["items"].as_array().unwrap().iter().all(|item| item["why"] != "")
    });
    let all = all.await;
    assert_eq!(all.names(), ["broken", "machine", "resting", "young"]);
    let machine = &all.json()["items"][1];
    assert_eq!((&machine["default"], &machine["ready"]), (&json!(true), &json!(true)));
    let names: Vec<&str> =
        machine["variables"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disks", "name", "password", "size"], "those that a request may set");
    assert_eq!(
        machine["variables"][1],
        json!({ "name": "name", "type": "string", "description": "What it is called", "required": true, "sensitive": false })
    );
    let stack = asked(None).await.with(202).json();
    assert_eq!(stack["stack"]["template"], "machine");
    // Nobody sees the templates of others.
    let stranger = ground.token("stranger", &Scope::ALL, &["b"]).await;
    assert_eq!(ground.call(Call::get("/tfstacks/templates").bearer(&stranger)).await.json()["total"], 0);
    template(&ground, "second", json!({ "template": { "default": true } }), "Ready").await;
    ground.until("both are seen", list, |answer| answer.json()["total"] == 5).await;
    let both = asked(None).await.with(409);
    assert!(both.text.contains("both machine and second"), "{both:?}");
    // A layer is a template from the beginning, or never.
    let become_one = json!({ "spec": { "template": {} } });
    let refused = layers(&ground).patch("net", &PatchParams::default(), &Patch::Merge(become_one)).await;
    assert!(refused.unwrap_err().to_string().contains("cannot become a template"));
}

#[tokio::test]
async fn stacks_are_listed_by_what_they_are_asked_for() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    template(&ground, "other", json!({}), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let mut ids = Vec::new();
    for (template, team) in [("machine", "net"), ("machine", "data"), ("other", "net")] {
        let body =
            json!({ "template": template, "variables": { "name": "web" }, "labels": { "team": team } });
        ids.push(made(&ground, &token, &body).await);
    }
    looked_at(&ground, &ids[0], "Ready", "in sync").await;
    looked_at(&ground, &ids[1], "Stalled", "the quota is used up").await;
    let get = |query: &str| Call::get(&format!("/tfstacks{query}")).bearer(&token);
    let found = |answer: &Answer| -> Vec<String> {
        let items = answer.json()["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let failed = |answer: &Answer| found(answer) == [ids[1].clone()];
    ground.until("all are seen", || get("?state=failed"), failed).await;
    ground.until("all are seen", || get(""), |answer| answer.json()["total"] == 3).await;
    for (query, expected) in [
        ("?state=ready", &[0][..]),
        ("?state=pending", &[2]),
        ("?template=machine", &[0, 1]),
        ("?label=team%3Dnet", &[0, 2]),
        ("?label=team%3Dnet&template=other", &[2]),
        ("?text=QUOTA", &[1]),
        ("?namespace=b", &[]),
        ("?state=none", &[]),
    ] {
        let answer = ground.call(get(query)).await.with(200);
        let ids: BTreeSet<String> = expected.iter().map(|at| ids[*at].clone()).collect();
        assert_eq!(found(&answer).into_iter().collect::<BTreeSet<_>>(), ids, "{query}");
    }
    let (mut query, mut seen) = ("?limit=1&sort=-state".to_owned(), Vec::new());
    loop {
        let page = ground.call(get(&query)).await.with(200);
        seen.extend(found(&page));
        match page.json()["next"].as_str() {
            Some(next) => query = format!("?limit=1&sort=-state&continue={next}"),
            None => break,
        }
    }
    assert_eq!(seen, [&ids[0], &ids[2], &ids[1]].map(Clone::clone), "ready, pending, failed");
    // Cancel, logs and outputs are found by the stack.
    let run = format!("{}-apply-1", ids[1]);
    ground.call(call(&token, Method::POST, &ids[1], "/cancel")).await.with(409);
    ground.run("a", &run, &ids[1], json!({ "state": "Running" })).await;
    ground.call(call(&token, Method::POST, &ids[1], "/cancel")).await.with(202);
    assert_eq!(layers(&ground).get(&ids[1]).await.unwrap().annotations()[annotation::CANCEL], run);
    ground.call(call(&token, Method::GET, &ids[2], "/logs")).await.with(404);
    ground.call(call(&token, Method::GET, &ids[1], "/logs")).await.with(404);
    let foreign = format!("/tfstacks/{}/logs?namespace=a&run={}-apply-1", ids[1], ids[0]);
    ground.call(Call::get(&foreign).bearer(&token)).await.with(404);
    ground.call(call(&token, Method::GET, &ids[1], "/outputs")).await.with(503);
    let sensitive = format!("/tfstacks/{}/outputs?namespace=a&sensitive=true", ids[1]);
    ground.call(Call::get(&sensitive).bearer(&token)).await.with(403);
}

#[tokio::test]
async fn what_cannot_be_asked_of_stacks_is_a_problem() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &Scope::ALL, &["a"]).await;
    let id = made(&ground, &token, &json!({ "template": "machine", "variables": { "name": "web" } })).await;
    let raw = || Call::post("/tfstacks?namespace=a").bearer(&token);
    let as_json = || raw().header("content-type", "application/json");
    let get = |path: &str| Call::get(path).bearer(&token);
    let mut wrong = Vec::new();
    for (call, expected) in [
        (raw().body("{}"), 415),
        (raw().header("content-type", "text/plain").body("{}"), 415),
        (as_json(), 400),
        (as_json().body("{"), 400),
        (as_json().body("[".repeat(100_000)), 422),
        (as_json().body("[]"), 422),
        (as_json().body(r#"{"variables": "name"}"#), 422),
        (as_json().body(r#"{"workspace": "default"}"#), 422),
        (as_json().body(r#"{"template": "machine", "variables": {"name": "a"}, "labels": {"terrane.dev/layer": "x"}}"#), 422),
        (as_json().body(r#"{"template": "machine", "variables": {"name": "a"}, "labels": {"no label": "x"}}"#), 422),
        (as_json().body(format!("{{\"variables\": {{\"{}\": 1}}}}", "x".repeat(1024 * 1024))), 413),
        (Call::post("/tfstacks?namespace=..").bearer(&token).json(&json!({})), 404),
        (Call::post("/tfstacks?namespace=b").bearer(&token).json(&json!({})), 403),
        (Call::post("/tfstacks").bearer(&token).json(&json!({})), 403),
        (Call::post("/tfstacks?namespace=a&namespace=b").bearer(&token).json(&json!({})), 400),
        (get("/tfstacks?limit=0"), 400),
        (get("/tfstacks?sort=secrets"), 400),
        (get("/tfstacks?continue=x"), 400),
        (get("/tfstacks?label=in%20(a)"), 400),
        (get("/tfstacks/..%2F..?namespace=a"), 404),
        (get("/tfstacks/%00?namespace=a"), 404),
        (get("/tfstacks/%FF?namespace=a"), 404),
        (get("/tfstacks/STACK?namespace=a"), 404),
        (get(&format!("/tfstacks/{id}%2Foutputs?namespace=a")), 404),
        (get(&format!("/tfstacks/{id}/state?namespace=a")), 404),
        (get(&format!("/tfstacks/{id}?namespace=b")), 403),
        (get(&format!("/tfstacks/{id}/logs?namespace=a&offset=far")), 400),
        (Call::post(&format!("/tfstacks/{id}?namespace=a")).bearer(&token), 405),
        (Call::new(Method::DELETE, "/tfstacks").bearer(&token), 405),
        (call(&token, Method::PATCH, &id, "").json(&json!({ "template": "other" })), 422),
        (call(&token, Method::PATCH, &id, "").json(&json!({})).header("if-match", "no quotes"), 400),
    ] {
        let answer = ground.call(call).await;
        if answer.status.as_u16() == expected {
            answer.with(expected);
        } else {
            wrong.push((expected, answer));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let of_template = ListParams::default().labels(label::STACK_TEMPLATE);
    assert_eq!(layers(&ground).list(&of_template).await.unwrap().items.len(), 1, "nothing more was made");
}
