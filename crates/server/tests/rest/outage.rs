//! The Kubernetes API is away: every operation of the document is answered at once, with a problem that says so, or from memory.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::text::Sha256;
use axum::http::{Method, Request, Response};
use kube::Client;
use serde_json::{Value, json};
use server::credential::Scope;

use crate::access::{operations, place};
use crate::ground::{Answer, Call, Ground};

/// Far beyond what an answer without the API takes, and far below what a person waits.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How the API is away.
#[derive(Debug, Clone, Copy)]
pub enum Away {
    /// Nobody listens there.
    Refused,
    /// The connection ends before there is an answer.
    Broken,
    /// It answers so to everything.
    Answers(u16),
}

impl Away {
    pub const ALL: [Self; 5] =
        [Self::Refused, Self::Broken, Self::Answers(500), Self::Answers(503), Self::Answers(429)];

    pub fn answer(self) -> Result<Response<kube::client::Body>, tower::BoxError> {
        let code = match self {
            Self::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Self::Broken => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Self::Answers(code) => code,
        };
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "X", "message": "a planted fault", "code": code });
        let answer = Response::builder().status(code).header("content-type", "application/json");
        Ok(answer.body(kube::client::Body::from(status.to_string().into_bytes()))?)
    }
}

/// Whether a request fails, by its method and path.
pub type Hit = fn(&Method, &str) -> bool;

/// What of the API is away at the moment.
#[derive(Clone, Default)]
pub struct Outage(Arc<Mutex<Option<(Away, Hit)>>>);

impl Outage {
    pub fn begin(&self, away: Away, hit: Hit) {
        *self.0.lock().unwrap() = Some((away, hit));
    }

    pub fn end(&self) {
        *self.0.lock().unwrap() = None;
    }

    pub fn through(self) -> impl Fn(Client) -> Client + Send + Sync + 'static {
        move |client| {
            let outage = self.clone();
            let service = tower::service_fn(move |request: Request<kube::client::Body>| {
                let (client, now) = (client.clone(), *outage.0.lock().unwrap());
                async move {
                    match now {
                        Some((away, hit)) if hit(request.method(), request.uri().path()) => away.answer(),
                        Some(_) | None => client.send(request).await.map_err(tower::BoxError::from),
                    }
                }
            });
            Client::new(service, "default")
        }
    }
}

/// A request that would be done if the API were there.
pub fn good(method: &Method, path: &str) -> Call {
    let query = |place: String, more: &str| match place.contains('?') {
        true => format!("{place}&{more}"),
        false => format!("{place}?{more}"),
    };
    let place = place(&path.replace("{host}", "github"), "a", "thing");
    let place = match (method.as_str(), path.rsplit('/').next().unwrap()) {
        ("DELETE", "lock") => query(place, "id=held"),
        ("GET", "login") => query(place, "once=a.word"),
        ("GET", "events") if path == "/api/v1/events" => query(place, "namespace=a"),
        _ => place,
    };
    let call = Call::new(method.clone(), &place);
    match (method.as_str(), path) {
        ("POST", "/tfstacks") => call.json(&json!({ "template": "thing", "variables": {} })),
        ("PUT" | "PATCH", "/tfstacks/{id}") => call.json(&json!({ "labels": { "team": "net" } })),
        ("POST", _) if path.ends_with("/approvals") => {
            call.json(&json!({ "planSha256": "c".repeat(64), "decision": "approve" }))
        }
        ("PUT", _) if path.ends_with("/state") => {
            let state = json!({ "version": 4, "serial": 1 });
            let sha256 = Sha256::of(state.to_string().as_bytes());
            call.header(datastore::header::SHA256, sha256.as_str()).json(&state)
        }
        _ => call,
    }
}

/// All but what tells who asks and what they may.
fn beyond_rights(_: &Method, path: &str) -> bool {
    let rights = ["/secrets/terrane-token-", "/tokenreviews", "/subjectaccessreviews"];
    !rights.iter().any(|part| path.contains(part))
}

/// What is answered from memory, once everything was seen.
const FROM_MEMORY: [&str; 7] = [
    "/api/v1/layers",
    "/api/v1/runs",
    "/api/v1/repositories",
    "/api/v1/queue",
    "/api/v1/session",
    "/tfstacks",
    "/tfstacks/templates",
];

pub fn is_away(answer: &Answer) -> Result<(), String> {
    let problem: Value = serde_json::from_str(&answer.text).map_err(|error| error.to_string())?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    let is_problem = answer.header("content-type") == "application/problem+json"
        && problem["type"] == "about:blank"
        && problem["title"] == "Service Unavailable"
        && problem["status"] == 503
        && !detail.is_empty();
    let wait: u64 = answer.header("retry-after").parse().unwrap_or_default();
    if answer.status == 503 && is_problem && (1..=60).contains(&wait) {
        Ok(())
    } else {
        Err("no 503".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_a_problem_or_a_memory_while_the_api_is_away() {
    let mut ground = Ground::new().await;
    ground.layer("a", "thing", json!({}), json!({})).await;
    ground.run("a", "thing", "thing", json!({})).await;
    ground.repository("a", "thing").await;
    let machine = ground.token("machine", &Scope::ALL, &["a"]).await;
    let rules = json!([{ "apiGroups": ["terrane.dev", ""], "resources": ["*"], "verbs": ["*"] }]);
    let account = ground.account("anna", rules).await;
    let outage = Outage::default();
    ground.restart_through(outage.clone().through());
    for list in ["layers", "runs", "repositories"] {
        let call = || Call::get(&format!("/api/v1/{list}")).bearer(&machine);
        ground.until("everything is seen", call, |answer| answer.names() == ["thing"]).await;
    }
    let (mut wrong, mut away_at, mut remembered) = (Vec::new(), 0, 0);
    // Nothing is there; then only what tells who asks and what they may, so that it is the operation itself that fails.
    let whole: Hit = |_, _| true;
    let cases = [(&machine, whole), (&account, whole), (&machine, beyond_rights), (&account, beyond_rights)];
    for away in Away::ALL {
        for (at, (token, hit)) in cases.into_iter().enumerate() {
            outage.begin(away, hit);
            for (method, path, is_open) in operations() {
                // Deliveries prove themselves, and have cases of their own. A token is no session that could be ended.
                if path.starts_with("/webhooks") || (method == Method::DELETE && path == "/api/v1/session") {
                    continue;
                }
                let call = good(&method, &path);
                let call = if is_open { call } else { call.bearer(token) };
                let begun = Instant::now();
                let answer = tokio::time::timeout(AT_ONCE * 4, ground.call(call)).await;
                let Ok(answer) = answer else {
                    wrong.push(format!("case {at} of {away:?}: {method} {path} hangs"));
                    continue;
                };
                let took = begun.elapsed();
                let is_remembered = answer.status.is_success()
                    && at > 1
                    && method == Method::GET
                    && FROM_MEMORY.contains(&path.as_str());
                match is_away(&answer) {
                    Ok(()) => away_at += 1,
                    Err(_) if is_remembered => remembered += 1,
                    Err(why) => {
                        wrong.push(format!("case {at} of {away:?}: {method} {path}: {why}: {answer:?}"))
                    }
                }
                if took > AT_ONCE {
                    wrong.push(format!("case {at} of {away:?}: {method} {path} took {took:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(away_at > 600 && remembered > 40, "{away_at} {remembered}");
    // It comes back, and nothing has to be started anew.
    outage.end();
    for token in [&machine, &account] {
        let layer = Call::get("/api/v1/namespaces/a/layers/thing").bearer(token);
        ground.call(layer).await.with(200);
    }
}
