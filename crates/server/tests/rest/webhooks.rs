//! Deliveries of Git hosts: who is believed, what is written down before the answer, and that a refused one leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::TerraformRepository;
use api::repository::WebhookStatus;
use api::service::WEBHOOK_SECRETS;
use axum::body::Body;
use axum::http::{Method, Request, Response};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::deliveries::Delivery;

use crate::ground::{Answer, Call, Ground};
use crate::outage::{Away, Hit, Outage};

const HOSTS: [&str; 5] = ["github", "gitlab", "gitea", "bitbucket", "azuredevops"];
const SECRET: &str = "hook:a secret of one repository";
const OTHER: &str = "hook:a secret of another repository";

/// In the place of namespace and name: a path that has neither.
const ANY: &str = "";

fn delivery(name: &str) -> Delivery {
    Delivery::named(name).unwrap()
}

/// A delivery as its host posts it, proved with this secret.
pub fn post(place: &str, delivery: &Delivery, secret: &str) -> Call {
    bare(place, &delivery.clone().proved(secret).unwrap())
}

/// A delivery with the headers that it has.
fn bare(place: &str, delivery: &Delivery) -> Call {
    let path = if place == ANY { String::new() } else { format!("/{place}") };
    let call = Call::post(&format!("/webhooks/{}{path}", delivery.host));
    let call = delivery
        .headers
        .iter()
        .fold(call, |call, (name, value)| call.header(name.as_str(), value.to_str().unwrap()));
    call.body(delivery.body.clone())
}

impl Ground {
    /// A repository with a secret. The service knows it after a restart: what it read of Secrets it believes for a few seconds.
    pub async fn hooked(&self, namespace: &str, name: &str, host: &str, secret: &str) {
        let azure = "https://dev.azure.com/infra/net/_git/code";
        let url = if host == "azuredevops" { azure } else { "git@git.example.com:infra/code.git" };
        self.repository_at(namespace, name, url).await;
        self.secret(namespace, name, secret).await;
    }

    async fn secret(&self, namespace: &str, name: &str, text: &str) {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": WEBHOOK_SECRETS }, "stringData": { name: text },
        });
        let manager = PatchParams::apply(name).force();
        secrets.patch(WEBHOOK_SECRETS, &manager, &Patch::Apply(object)).await.unwrap();
    }

    async fn read(&self, place: &str) -> TerraformRepository {
        let (namespace, name) = place.split_once('/').unwrap();
        Api::namespaced(self.client.clone(), namespace).get(name).await.unwrap()
    }

    async fn webhook(&self, place: &str) -> Option<WebhookStatus> {
        self.read(place).await.status.and_then(|status| status.webhook)
    }

    /// Posts what must have no effect.
    async fn refused(&self, place: &str, call: Call, expected: u16) -> Answer {
        let before = self.read(place).await.resource_version();
        let answer = self.call(call).await.with(expected);
        assert_eq!(self.read(place).await.resource_version(), before, "{answer:#?}");
        answer
    }
}

pub fn outcome(answer: &Answer) -> String {
    answer.json()["outcome"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_every_host_says_of_branches_and_tags_is_written_down_before_the_answer() {
    let mut ground = Ground::new().await;
    let kinds = ["push", "tag", "deleted"];
    for host in HOSTS {
        for kind in kinds {
            ground.hooked("a", &format!("{host}-{kind}"), host, SECRET).await;
        }
    }
    ground.restart();
    for host in HOSTS {
        for kind in kinds {
            let name = format!("{host}-{kind}");
            let place = format!("a/{name}");
            let delivery = delivery(&name);
            let before = Timestamp::now() - SignedDuration::from_secs(2);
            let first = ground.call(post(&place, &delivery, SECRET)).await.with(202);
            assert_eq!(outcome(&first), "recorded");
            let written = ground.webhook(&place).await.unwrap();
            assert_eq!(written.host, host);
            assert!(written.look_after.0 > before && written.received_at.0 > before, "{written:?}");
            // Again: one more look is enough for all that may come in the next while.
            ground.call(post(&place, &delivery, SECRET)).await.with(202);
            let later = ground.webhook(&place).await.unwrap();
            assert!(later.look_after.0 > written.look_after.0 + SignedDuration::from_secs(9), "{later:?}");
            for _ in 0..3 {
                let covered = ground.refused(&place, post(&place, &delivery, SECRET), 200).await;
                assert_eq!(outcome(&covered), "covered");
            }
        }
    }
    let token = ground.token("reader", &[server::credential::Scope::Read], &["a"]).await;
    let shown = Call::get("/api/v1/namespaces/a/repositories/gitlab-tag").bearer(&token);
    assert_eq!(ground.call(shown).await.with(200).json()["webhook"]["host"], "gitlab");
    let counted = ground.deliveries.text();
    for host in HOSTS {
        let line = |outcome, count| {
            format!("terrane_webhook_deliveries_total{{host=\"{host}\",outcome=\"{outcome}\"}} {count}\n")
        };
        assert!(counted.contains(&line("recorded", 6)) && counted.contains(&line("covered", 9)), "{counted}");
    }
}

#[tokio::test]
async fn other_events_and_other_repositories_are_answered_and_ignored() {
    let mut ground = Ground::new().await;
    let events = [
        ("github-ping", "ping"),
        ("github-other", "pull_request"),
        ("gitlab-other", "Merge Request Hook"),
        ("gitea-other", "issues"),
        ("bitbucket-ping", "diagnostics:ping"),
        ("azuredevops-other", "git.pullrequest.created"),
        ("other-refs", "no branch and no tag"),
    ];
    for (name, _) in events {
        ground.hooked("a", name, &delivery(name).host, SECRET).await;
    }
    ground.hooked("b", "elsewhere", "azuredevops", SECRET).await;
    ground.hooked("b", "form", "github", SECRET).await;
    ground.restart();
    for (name, word) in events {
        let place = format!("a/{name}");
        let answer = ground.refused(&place, post(&place, &delivery(name), SECRET), 200).await;
        assert!(outcome(&answer) == "ignored" && answer.text.contains(word), "{answer:#?}");
    }
    // Signed with the right secret, but about another repository than the one that the object names.
    for name in ["github-push", "gitlab-push", "gitea-push", "bitbucket-push", "bitbucket-server"] {
        let call = post("b/elsewhere", &delivery(name), SECRET);
        let answer = ground.refused("b/elsewhere", call, 200).await;
        assert!(outcome(&answer) == "ignored" && answer.text.contains("another repository"), "{answer:#?}");
    }
    // A form says the same as JSON.
    let answer = ground.call(post("b/form", &delivery("github-form"), SECRET)).await.with(202);
    assert_eq!(outcome(&answer), "recorded");
}

/// What is known already, as after a replay, costs nothing.
#[tokio::test]
async fn a_replay_of_what_was_seen_writes_nothing() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    ground.restart();
    let branches = json!([{ "name": "main", "latestRev": "1".repeat(40), "lastSyncStatus": "success" }]);
    let repositories = Api::<TerraformRepository>::namespaced(ground.client.clone(), "a");
    let seen = Patch::Merge(json!({ "status": { "branches": branches } }));
    repositories.patch_status("code", &PatchParams::default(), &seen).await.unwrap();
    for _ in 0..5 {
        let answer = ground.refused("a/code", post("a/code", &delivery("github-push"), SECRET), 200).await;
        assert_eq!(outcome(&answer), "known");
    }
    ground.call(post("a/code", &delivery("github-tag"), SECRET)).await.with(202);
    let status = ground.read("a/code").await.status.unwrap();
    assert_eq!(status.branches.len(), 1, "nothing of the status but the wish is written: {status:?}");
}

#[tokio::test]
async fn nobody_is_believed_who_does_not_know_the_secret_of_this_repository() {
    let mut ground = Ground::new().await;
    let twin = "hook:a secret of the same name elsewhere";
    for host in HOSTS {
        ground.hooked("a", host, host, SECRET).await;
        ground.hooked("a", &format!("{host}-other"), host, OTHER).await;
        ground.hooked("b", host, host, twin).await;
        ground.repository("b", &format!("{host}-bare")).await;
    }
    ground.restart();
    for host in HOSTS {
        let place = format!("a/{host}");
        let push = delivery(&format!("{host}-push"));
        let (header, value) = push.proof(SECRET).unwrap();
        let with = |value: &str| bare(&place, &push).header(header, value);
        for call in [
            bare(&place, &push),
            post(&place, &push, OTHER),
            post(&place, &push, twin),
            post(&place, &push, &SECRET[..SECRET.len() - 1]),
            post(&place, &push, &format!("{SECRET}\n{OTHER}").replace('\n', " ")),
            with(""),
            with("sha1=2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"),
            with(&value[..value.len() - 2]),
            with(&value).header(header, &value),
        ] {
            let answer = ground.refused(&place, call, 401).await;
            assert!(!answer.text.contains(SECRET) && !answer.text.contains("git.example.com"), "{answer:#?}");
        }
        // What was signed is what arrives.
        if !matches!(host, "gitlab" | "azuredevops") {
            let signed = push.clone().proved(SECRET).unwrap();
            for body in [&signed.body[..signed.body.len() - 1], b"", b"{}"] {
                ground.refused(&place, bare(&place, &signed).body(body.to_vec()), 401).await;
            }
        }
        // A repository without a secret, one that is not there, and names that cannot be there.
        for (other, expected) in [
            (format!("b/{host}-bare"), 401),
            ("a/nothing".to_owned(), 401),
            ("nowhere/code".to_owned(), 401),
            (format!("a/..%2F{host}"), 404),
            (format!("A/{host}"), 404),
            (format!("a/{host}/"), 404),
            (format!("a/{host}/more"), 404),
            ("/".to_owned(), 404),
        ] {
            ground.refused(&place, post(&other, &push, SECRET), expected).await;
        }
        assert_eq!(ground.webhook(&place).await, None);
        ground.call(post(&place, &push, SECRET)).await.with(202);
    }
    let push = delivery("github-push");
    let elsewhere = Delivery { host: "subversion".to_owned(), ..push.clone().proved(SECRET).unwrap() };
    ground.refused("a/gitlab", bare("a/gitlab", &elsewhere), 404).await;
    ground.refused("a/gitlab", Call::get("/webhooks/github/a/github"), 405).await;
}

#[tokio::test]
async fn secrets_rotate_and_what_is_no_secret_opens_nothing() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    ground.restart();
    let push = delivery("github-push");
    let post = |secret: &str| post("a/code", &push, secret);
    ground.call(post(OTHER)).await.with(401);
    ground.secret("a", "code", &format!("{OTHER}\n{SECRET}\n")).await;
    ground.restart();
    for secret in [SECRET, OTHER] {
        assert!(ground.call(post(secret)).await.status.is_success());
    }
    ground.secret("a", "code", &format!("{OTHER}\n")).await;
    // A secret that was taken away is believed for a few seconds more, and no longer.
    ground.until("the old one is not believed", || post(SECRET), |answer| answer.status == 401).await;
    assert!(ground.call(post(OTHER)).await.status.is_success());
    for none in ["", "\n", "short", &format!("{SECRET}\n{OTHER}\n{SECRET}")] {
        ground.secret("a", "code", none).await;
        ground.restart();
        for given in [none, SECRET, OTHER] {
            ground.refused("a/code", post(given), 401).await;
        }
    }
}

#[tokio::test]
async fn what_cannot_be_a_delivery_is_refused_in_order() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    ground.hooked("a", "quick", "github", SECRET).await;
    ground.restart();
    let push = delivery("github-push");
    let signed = |body: &[u8]| Delivery { body: body.to_vec(), ..push.clone() }.proved(SECRET).unwrap();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [&b""[..], b"{", b"null", b"[]", b"{}", b"\xff\xfe", deep.as_bytes(), br#"{"ref":1}"#] {
        ground.refused("a/code", bare("a/code", &signed(body)), 400).await;
    }
    for kind in ["", "text/plain", "application/xml", "multipart/form-data; boundary=x"] {
        let mut other = signed(&push.body);
        other.headers.insert("content-type", kind.parse().unwrap());
        ground.refused("a/code", bare("a/code", &other), 415).await;
    }
    // Said to be too large, and found to be.
    let large = signed(&vec![b' '; 5 * 1024 * 1024 + 1]);
    ground.refused("a/code", bare("a/code", &large).header("content-length", "5242881"), 413).await;
    ground.refused("a/code", bare("a/code", &large), 413).await;
    let broken = futures::stream::iter([
        Ok(push.body.clone()),
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    ]);
    ground.refused("a/code", bare("a/code", &signed(&push.body)).body(Body::from_stream(broken)), 400).await;
    // A slow one is given up, and holds up nobody else.
    let slow = || Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let slow = (0..2).map(|_| ground.call(bare("a/code", &signed(&push.body)).body(slow())));
    let quick = async {
        tokio::task::yield_now().await;
        ground.call(post("a/quick", &push, SECRET)).await.with(202);
    };
    let (slow, ()) = tokio::join!(futures::future::join_all(slow), quick);
    for answer in slow {
        answer.with(408);
    }
    assert_eq!(ground.webhook("a/code").await, None);
    ground.call(post("a/code", &push, SECRET)).await.with(202);
}

#[tokio::test]
async fn a_flood_that_is_not_believed_is_not_heard_for_a_while() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    ground.hooked("a", "other", "github", SECRET).await;
    ground.restart();
    let push = delivery("github-push");
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(ground.call(post("a/code", &push, OTHER)).await.status.as_u16());
    }
    assert!(statuses.iter().take(20).all(|status| *status == 401), "{statuses:?}");
    assert!(statuses.ends_with(&[429; 5]), "{statuses:?}");
    let refused = ground.refused("a/code", post("a/code", &push, SECRET), 429).await;
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    ground.call(post("a/other", &push, SECRET)).await.with(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_at_once_cost_two_writes_and_are_all_answered() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    ground.restart();
    let deliveries = ["github-push", "github-tag", "github-deleted", "github-created"].map(delivery);
    let calls = (0..100).map(|number| ground.call(post("a/code", &deliveries[number % 4], SECRET)));
    let answers = futures::future::join_all(calls).await;
    let recorded = answers.iter().filter(|answer| answer.status == 202).count();
    assert!(answers.iter().all(|answer| answer.status.is_success()), "{answers:#?}");
    assert_eq!(recorded, 2, "one for now, one for all that came after");
}

/// What the service asks of the API in its own name, with faults of `PATCH` in between.
fn faulty(client: Client, answers: &'static [u16], asked: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (client, asked) = (client.clone(), Arc::clone(&asked));
        async move {
            if request.method() == Method::PATCH
                && let Some(code) = answers.get(asked.fetch_add(1, Ordering::SeqCst))
            {
                let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "X", "message": "a planted fault", "code": code });
                let body = kube::client::Body::from(status.to_string().into_bytes());
                let answer = Response::builder().status(*code).header("content-type", "application/json");
                return answer.body(body).map_err(tower::BoxError::from);
            }
            client.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn no_delivery_is_answered_well_that_was_not_written_down() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    let push = delivery("github-push");
    let asked = Arc::new(AtomicUsize::new(0));
    ground.restart_with(faulty(ground.client.clone(), &[500, 403, 409, 409], Arc::clone(&asked)));
    for _ in 0..2 {
        let answer = ground.refused("a/code", post("a/code", &push, SECRET), 503).await;
        assert!(!answer.text.contains("planted") && answer.text.contains("next poll"), "{answer:#?}");
        assert_eq!(answer.header("retry-after"), "2");
    }
    // Somebody else was faster, twice.
    ground.call(post("a/code", &push, SECRET)).await.with(202);
    assert_eq!(asked.load(Ordering::SeqCst), 5);
    assert!(ground.webhook("a/code").await.is_some());
    let value: Value = serde_json::to_value(ground.read("a/code").await.status).unwrap();
    assert_eq!(value.as_object().unwrap().keys().collect::<Vec<_>>(), ["webhook"]);
}

/// Each request that a delivery costs fails in each way; the watch stays, so that the repository is known.
#[tokio::test]
async fn no_delivery_is_answered_well_while_what_it_needs_is_away() {
    let mut ground = Ground::new().await;
    ground.hooked("a", "code", "github", SECRET).await;
    let push = delivery("github-push");
    let secret: Hit = |_, path| path.ends_with("/secrets/terrane-webhooks");
    let read: Hit =
        |method, path| *method == Method::GET && path.ends_with("/namespaces/a/terraformrepositories/code");
    let write: Hit = |method, path| *method == Method::PATCH && path.ends_with("/code/status");
    for (what, hit) in [("secret", secret), ("read", read), ("write", write)] {
        for away in Away::ALL {
            let outage = Outage::default();
            // What was read of Secrets is believed for a while, so each begins with nothing in memory.
            ground.restart_through(outage.clone().through());
            outage.begin(away, hit);
            for place in ["a/code", ANY] {
                let answer = ground.refused("a/code", post(place, &push, SECRET), 503).await;
                assert_eq!(answer.header("retry-after"), "2", "{what} {away:?} {place:?}: {answer:#?}");
                assert!(
                    !answer.text.contains("planted") && answer.text.contains("next poll"),
                    "{what} {away:?} {place:?}: {answer:#?}"
                );
            }
            // A stranger learns nothing of it, and is not believed either.
            let stranger = ground.call(post("a/code", &push, OTHER)).await;
            assert!(matches!(stranger.status.as_u16(), 401 | 503), "{what} {away:?}: {stranger:#?}");
            assert_eq!(ground.webhook("a/code").await, None, "{what} {away:?}");
            let counted = ground.deliveries.text();
            assert!(!counted.contains("outcome=\"recorded\"} 1"), "{counted}");
        }
    }
    ground.restart();
    let answer = ground.call(post("a/code", &push, SECRET)).await.with(202);
    assert_eq!(outcome(&answer), "recorded");
    assert!(ground.webhook("a/code").await.is_some());
}

#[tokio::test]
async fn a_path_without_a_name_is_for_the_repository_whose_secret_it_was_made_with() {
    let mut ground = Ground::new().await;
    for host in HOSTS {
        ground.hooked("a", host, host, &format!("{SECRET} {host}")).await;
        ground.hooked("b", host, host, &format!("{OTHER} {host}")).await;
    }
    ground.restart();
    for host in HOSTS {
        let push = delivery(&format!("{host}-push"));
        let (mine, others) = (format!("a/{host}"), format!("b/{host}"));
        ground.refused(&mine, post(ANY, &push, "hook:a secret of nobody here"), 401).await;
        ground.refused(&mine, bare(ANY, &push), 401).await;
        let answer = ground.refused(&others, post(ANY, &push, &format!("{SECRET} {host}")), 202).await;
        assert_eq!(outcome(&answer), "recorded");
        assert_eq!(ground.webhook(&mine).await.unwrap().host, host);
    }
    let another_url = delivery("gitea-push");
    ground.repository_at("a", "elsewhere", "https://git.example.com/infra/other").await;
    ground.secret("a", "elsewhere", "hook:a secret that is theirs").await;
    ground.restart();
    let answer =
        ground.refused("a/elsewhere", post(ANY, &another_url, "hook:a secret that is theirs"), 200).await;
    assert_eq!(outcome(&answer), "ignored");
}

#[tokio::test]
async fn a_path_without_a_name_is_for_few_repositories() {
    let mut ground = Ground::new().await;
    for number in 0..101 {
        ground.hooked("a", &format!("many-{number}"), "gitea", &format!("{SECRET} {number}")).await;
    }
    ground.restart();
    let push = delivery("gitea-push");
    let answer = ground.refused("a/many-7", post(ANY, &push, &format!("{SECRET} 7")), 404).await;
    assert!(answer.json()["detail"].as_str().unwrap().contains("/NAMESPACE/NAME"), "{answer:#?}");
    ground.call(post("a/many-7", &push, &format!("{SECRET} 7"))).await.with(202);
}
