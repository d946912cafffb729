//! SIGKILL of `terrane up` while stacks are asked for and webhooks arrive: what was acknowledged before is there afterwards, and what is
//! asked again because no answer came is not made twice.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::{TerraformLayer, TerraformRepository, label};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::deliveries::Delivery;
use tokio::task::JoinSet;

use crate::harness::{Terrane, declare_repository, is, layer_until, until};
use crate::people::finished;

const KILLS: u32 = 10;
const ASKING: usize = 4;
const DELIVERING: usize = 4;
const HOOKED_OF_ONE: usize = 120;
/// One life in so many ends before it is known to be ready.
const KILLED_YOUNG: u32 = 4;
const YOUTH_MILLISECONDS: Range<u64> = 0..800;
/// How much is acknowledged before a life ends.
const ACKNOWLEDGED_OF_A_LIFE: Range<usize> = 1..24;
const SECRET: &str = "a secret that the host and Terrane know";

#[derive(Clone)]
struct Shared {
    /// Where the newest life listens.
    service: Arc<Mutex<String>>,
    http: reqwest::Client,
    token: String,
    acknowledged: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
}

impl Shared {
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.service.lock().unwrap())
    }

    /// The answer; nothing where none came, or one that says to come again.
    async fn answer(&self, request: reqwest::RequestBuilder) -> Option<(StatusCode, Value)> {
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        let is_for_later = matches!(status.as_u16(), 429 | 503);
        assert!(status.is_success() || is_for_later, "{status}: {text}");
        if is_for_later { None } else { Some((status, serde_json::from_str(&text).unwrap())) }
    }

    /// Asks for one stack after the other; each is asked for by the same key until it is acknowledged.
    async fn ask(self, number: usize) -> Vec<String> {
        let mut made = Vec::new();
        while !self.enough.load(Ordering::Relaxed) {
            let key = format!("asking-{number}-{}", made.len());
            let body = json!({ "template": "machine", "variables": { "word": key, "secret": key } });
            let id = until("a stack is acknowledged", || async {
                let asked = self.http.post(self.at("/tfstacks")).bearer_auth(&self.token);
                let (status, told) = self.answer(asked.header("idempotency-key", &key).json(&body)).await?;
                assert_eq!(status, StatusCode::ACCEPTED, "{told}");
                Some(told["stack"]["id"].as_str().unwrap().to_owned())
            })
            .await;
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            made.push(id);
        }
        made
    }

    /// Delivers for one repository after the other, until that is acknowledged: what stands there then, nobody writes again.
    async fn deliver(self, names: Vec<String>) -> Vec<String> {
        let mut written = Vec::new();
        for name in names {
            if self.enough.load(Ordering::Relaxed) {
                break;
            }
            let Delivery { headers, body, .. } = push(&name).proved(SECRET).unwrap();
            until("a delivery is acknowledged", || async {
                let to = self.at(&format!("/webhooks/gitea/default/{name}"));
                let (_, told) =
                    self.answer(self.http.post(to).headers(headers.clone()).body(body.clone())).await?;
                // It may have been written down for one that nobody answered.
                assert!(told["outcome"] == "recorded" || told["outcome"] == "covered", "{told}");
                Some(())
            })
            .await;
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            written.push(name);
        }
        written
    }
}

fn address(name: &str) -> String {
    format!("file:///there-is-nothing-here/{name}")
}

fn push(name: &str) -> Delivery {
    let body = json!({
        "ref": "refs/heads/main", "before": "0".repeat(40), "after": "1".repeat(40),
        "repository": { "clone_url": address(name) },
    });
    Delivery { body: body.to_string().into_bytes(), ..Delivery::named("gitea-push").unwrap() }
}

async fn declare_hooked(client: &Client, names: &[String]) {
    let post = PostParams::default();
    let secrets: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!(SECRET))).collect();
    let secret = json!({ "metadata": { "name": "terrane-webhooks" }, "stringData": secrets });
    let all = Api::<Secret>::namespaced(client.clone(), "default");
    all.create(&post, &serde_json::from_value(secret).unwrap()).await.unwrap();
    for name in names {
        let repository = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": name },
            "spec": { "repository": { "url": address(name) }, "pollInterval": "1h" },
        });
        let all = Api::<TerraformRepository>::namespaced(client.clone(), "default");
        all.create(&post, &serde_json::from_value(repository).unwrap()).await.unwrap();
    }
}

/// Of code without resources, so that the machine has little to do for each stack.
async fn declare_template(client: &Client) {
    let code = "variable \"word\" {}\nvariable \"secret\" { sensitive = true }\n";
    let _source = declare_repository(client, "code", &[("machine/main.tf", code)]).await;
    let template = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "machine" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "machine", "template": {} },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(template).unwrap()).await.unwrap();
    layer_until(client, "machine", "its variables are known", is("Ready")).await;
}

#[allow(clippy::disallowed_methods, reason = "a run is repeated with the seed that it printed")]
fn choose_seed() -> u64 {
    std::env::var("TERRANE_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

async fn live_and_die(terrane: &mut Terrane, shared: &Shared, random: &mut StdRng) {
    if random.random_ratio(1, KILLED_YOUNG) {
        let age = Duration::from_millis(random.random_range(YOUTH_MILLISECONDS));
        // Not a wait for anything: the moment of death is the point.
        tokio::time::sleep(age).await;
    } else {
        let enough =
            shared.acknowledged.load(Ordering::Relaxed) + random.random_range(ACKNOWLEDGED_OF_A_LIFE);
        until("enough is acknowledged", || {
            std::future::ready((shared.acknowledged.load(Ordering::Relaxed) >= enough).then_some(()))
        })
        .await;
    }
    terrane.signal(Signal::KILL);
    assert_eq!(terrane.ended().await.code(), Some(128 + Signal::KILL.as_raw()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_before_a_kill_is_there_afterwards_and_nothing_is_there_twice() {
    let seed = choose_seed();
    println!("TERRANE_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let names = |worker: usize| -> Vec<String> {
        (0..HOOKED_OF_ONE).map(|number| format!("hooked-{worker}-{number}")).collect()
    };
    declare_hooked(&client, &(0..DELIVERING).flat_map(names).collect::<Vec<_>>()).await;
    declare_template(&client).await;
    let token = terrane.command(&["token", "create", "killed", "--scope", "read,write", "--expires", "1h"]);
    let service = format!("http://{}", terrane.service().await);
    let shared = Shared {
        service: Arc::new(Mutex::new(service)),
        http: reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap(),
        token: finished(token).with_code(0).out.trim().to_owned(),
        acknowledged: Arc::default(),
        enough: Arc::default(),
    };
    let (mut asking, mut delivering) = (JoinSet::new(), JoinSet::new());
    for number in 0..ASKING {
        asking.spawn(shared.clone().ask(number));
    }
    for number in 0..DELIVERING {
        delivering.spawn(shared.clone().deliver(names(number)));
    }
    for _ in 0..KILLS {
        live_and_die(&mut terrane, &shared, &mut random).await;
        terrane.launch(&[]);
        *shared.service.lock().unwrap() = format!("http://{}", terrane.service().await);
    }
    shared.enough.store(true, Ordering::Relaxed);
    let made: Vec<String> = asking.join_all().await.into_iter().flatten().collect();
    let hooked: Vec<String> = delivering.join_all().await.into_iter().flatten().collect();
    terrane.signal(Signal::KILL);
    terrane.ended().await;
    let client = terrane.start(&[]).await;

    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let stacks = layers.list(&ListParams::default().labels(label::STACK_TEMPLATE)).await.unwrap().items;
    let there: BTreeSet<String> = stacks.iter().map(ResourceExt::name_any).collect();
    let told: BTreeSet<String> = made.iter().cloned().collect();
    assert_eq!((there, told.len()), (told.clone(), made.len()), "each that was acknowledged, and no other");
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    for id in &made {
        let secret = secrets.get_opt(&format!("{id}-variables")).await.unwrap();
        assert!(secret.is_some_and(|secret| secret.data.is_some()), "the Secret of {id} is as whole as it");
    }
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    for name in &hooked {
        let status = repositories.get(name).await.unwrap().status;
        assert!(status.is_some_and(|status| status.webhook.is_some()), "what {name} was told is forgotten");
    }
    println!("{KILLS} kills, {} stacks, {} deliveries", made.len(), hooked.len());
    assert!(!made.is_empty() && !hooked.is_empty());
    terrane.signal(Signal::TERM);
    terrane.ended().await;
}
