//! A thousand requests in flight that each change something: all are answered within a bound, what was accepted is there, and nothing
//! is there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::{TerraformRepository, label};
use futures::future::join_all;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use server::credential::Scope;
use testkit::deliveries::Delivery;

use crate::ground::{Answer, Ground};
use crate::stacks::{layers, post, template};
use crate::webhooks;

const CROWD: usize = 1000;
/// For a busy machine and a build for debugging; a hundredth of it is usual for one request.
const BOUND: Duration = Duration::from_secs(120);

async fn answered(calls: impl Iterator<Item = impl Future<Output = Answer>>) -> Vec<Answer> {
    let began = std::time::Instant::now();
    let answers = tokio::time::timeout(BOUND, join_all(calls)).await.expect("all are answered");
    assert_eq!(answers.len(), CROWD);
    println!("{CROWD} requests at once took {:?}", began.elapsed());
    answers
}

/// Every request comes twice, as from a client that did not wait for the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_stacks_at_once_are_made_once_each() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let answers = answered((0..CROWD).map(|number| {
        let key = number / 2;
        let body =
            json!({ "template": "machine", "variables": { "name": format!("web-{key}"), "size": key } });
        ground.call(post(&token, &body).header("idempotency-key", &format!("key-{key}")))
    }))
    .await;
    let mut accepted = BTreeMap::new();
    for (number, answer) in answers.into_iter().enumerate() {
        let stack = answer.with(202).json()["stack"].clone();
        let known = accepted.entry(number / 2).or_insert_with(|| stack["id"].clone());
        assert_eq!(*known, stack["id"], "one key, two stacks");
        assert_eq!(stack["variables"]["size"]["value"], json!(number / 2), "{stack}");
    }
    let told: BTreeSet<String> = accepted.values().map(|id| id.as_str().unwrap().to_owned()).collect();
    let of_template = ListParams::default().labels(label::STACK_TEMPLATE);
    let found = layers(&ground).list(&of_template).await.unwrap().items;
    let there: BTreeSet<String> = found.iter().map(ResourceExt::name_any).collect();
    assert_eq!((told.len(), found.len()), (CROWD / 2, CROWD / 2));
    assert_eq!(there, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_deliveries_at_once_are_written_down_or_refused() {
    const REPOSITORIES: usize = 100;
    const SECRET: &str = "hook:a secret of many repositories";
    let mut ground = Ground::new().await;
    let name = |number: usize| format!("code-{:03}", number % REPOSITORIES);
    for number in 0..REPOSITORIES {
        ground.hooked("a", &name(number), "github", SECRET).await;
    }
    ground.restart();
    let push = Delivery::named("github-push").unwrap();
    let deliver = |number: usize| webhooks::post(&format!("a/{}", name(number)), &push, SECRET);
    let answers = answered((0..CROWD).map(|number| ground.call(deliver(number)))).await;

    let (mut recorded, mut refused) = (BTreeMap::<String, usize>::new(), Vec::new());
    for (number, answer) in answers.into_iter().enumerate() {
        match answer.status.as_u16() {
            202 => *recorded.entry(name(number)).or_default() += 1,
            // Another that was written down stands for it.
            200 => assert_eq!(webhooks::outcome(&answer), "covered", "{answer:#?}"),
            // Its turn did not come in time; whoever sent it is told so.
            429 => {
                assert!(answer.with(429).header("retry-after").parse::<u64>().is_ok());
                refused.push(number);
            }
            other => panic!("{other}: {answer:#?}"),
        }
    }
    assert!(!recorded.is_empty());
    assert!(recorded.values().all(|count| *count <= 2), "one for now, one for all after: {recorded:?}");
    let written = async || -> BTreeSet<String> {
        let all = Api::<TerraformRepository>::namespaced(ground.client.clone(), "a");
        let all = all.list(&ListParams::default()).await.unwrap().items;
        let told =
            all.iter().filter(|one| one.status.as_ref().is_some_and(|status| status.webhook.is_some()));
        told.map(ResourceExt::name_any).collect()
    };
    assert_eq!(written().await, recorded.into_keys().collect());
    // Sent again, as its host would, each comes through.
    for number in refused {
        let answer = ground.call(deliver(number)).await;
        assert!(answer.status.is_success(), "{answer:#?}");
    }
    assert_eq!(written().await.len(), REPOSITORIES);
}
