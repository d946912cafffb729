//! Two candidates on one API: one acts at a time, and the one that was overtaken can write nothing more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod clocks;
mod shards;

use std::num::NonZeroU16;
use std::time::Duration;

use api::SYSTEM_NAMESPACE;
use controllers::Election;
use embedded::auth::Identity;
use embedded::serve::{Listen, Options, Server};
use engine::leader::{LEASE, Terms};
use engine::shard::Shard;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

/// Far beyond what anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// So long that a stall of the machine ends no term by itself.
const CALM: Terms = Terms {
    duration: Duration::from_secs(300),
    trust: Duration::from_secs(200),
    period: Duration::from_millis(50),
};
/// So short that a test can wait for the end of a term.
const HASTY: Terms = Terms {
    duration: Duration::from_secs(2),
    trust: Duration::from_secs(1),
    period: Duration::from_millis(50),
};

struct Ground {
    server: Server,
    _directory: tempfile::TempDir,
}

impl Ground {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            listen: Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
            definitions: api::custom_resources(),
            ..Options::new(directory.path().join("data"))
        };
        let server = Server::start(options).await.unwrap();
        let namespaces = Api::<Namespace>::all(server.client(Identity::administrator()));
        let namespace = Namespace { metadata: named(SYSTEM_NAMESPACE), ..Namespace::default() };
        if namespaces.get_opt(SYSTEM_NAMESPACE).await.unwrap().is_none() {
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        Self { server, _directory: directory }
    }

    fn client(&self) -> Client {
        self.server.client(Identity::administrator())
    }

    fn candidate(&self, identity: &str, terms: Terms) -> Election {
        Election::new(self.client(), identity, terms)
    }

    async fn renewed(&self) -> Option<MicroTime> {
        let leases = Api::<Lease>::namespaced(self.client(), SYSTEM_NAMESPACE);
        leases.get(LEASE).await.unwrap().spec.unwrap().renew_time
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("not so within {DEADLINE:?}: {what}"))
}

async fn write(client: &Client, name: &str) -> Result<ConfigMap, kube::Error> {
    let object = ConfigMap { metadata: named(name), ..ConfigMap::default() };
    Api::<ConfigMap>::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await
}

async fn exists(client: &Client, name: &str) -> bool {
    Api::<ConfigMap>::namespaced(client.clone(), "default").get_opt(name).await.unwrap().is_some()
}

#[tokio::test]
async fn the_other_stands_by_while_one_leads_and_follows_at_once_when_it_goes_in_order() {
    let ground = Ground::new().await;
    let (mut first, mut second) = (ground.candidate("first", CALM), ground.candidate("second", CALM));
    let (first_client, second_client) =
        (first.leadership().guard(ground.client()), second.leadership().guard(ground.client()));
    assert!(write(&first_client, "early").await.is_err(), "nobody leads yet");
    assert_eq!(within("the first leads", first.won()).await, 1);

    let begun = ground.renewed().await;
    let renewed = async {
        while ground.renewed().await == begun {
            tokio::time::sleep(CALM.period).await;
        }
    };
    tokio::select! {
        _ = second.won() => panic!("two lead"),
        () = first.lost() => panic!("a term ended by itself"),
        () = within("the first renews its Lease", renewed) => {}
    }
    write(&first_client, "by-the-first").await.unwrap();
    let refused = write(&second_client, "by-the-second").await.unwrap_err();
    assert!(format!("{refused:?}").contains("NotLeader"), "{refused:?}");
    assert!(!exists(&second_client, "by-the-second").await, "reads pass, and nothing was written");

    first.release().await;
    assert!(write(&first_client, "too-late").await.is_err());
    assert_eq!(within("the second follows", second.won()).await, 2);
    write(&second_client, "by-the-second").await.unwrap();
    ground.server.stop().await;
}

#[tokio::test]
async fn nobody_leads_while_another_divides_the_fleet_into_another_number_of_shards() {
    let ground = Ground::new().await;
    let second = Shard::all(NonZeroU16::new(4).unwrap()).nth(1).unwrap();
    let (mut whole, mut part) =
        (ground.candidate("whole", CALM), ground.candidate("part", CALM).for_shard(second));
    assert_eq!(within("the whole is led", whole.won()).await, 1);
    for _ in 0..3 {
        let begun = ground.renewed().await;
        let renewed = async {
            while ground.renewed().await == begun {
                tokio::time::sleep(CALM.period).await;
            }
        };
        tokio::select! {
            _ = part.won() => panic!("a namespace has two leaders"),
            () = whole.lost() => panic!("a term ended by itself"),
            () = within("the first renews its Lease", renewed) => {}
        }
    }
    whole.release().await;
    assert_eq!(within("the part is led", part.won()).await, 1, "its Lease is another one");
    let leases = Api::<Lease>::namespaced(ground.client(), SYSTEM_NAMESPACE);
    let taken = leases.get(LEASE).await.unwrap().spec.unwrap().holder_identity;
    let mut heir = ground.candidate("heir", CALM);
    let part_is_renewed = async {
        let begun = leases.get(&second.lease()).await.unwrap().metadata.resource_version;
        while leases.get(&second.lease()).await.unwrap().metadata.resource_version == begun {
            tokio::time::sleep(CALM.period).await;
        }
    };
    tokio::select! {
        _ = heir.won() => panic!("a namespace has two leaders"),
        () = part.lost() => panic!("a term ended by itself"),
        () = within("the part is renewed", part_is_renewed) => {}
    }
    assert_eq!(leases.get(LEASE).await.unwrap().spec.unwrap().holder_identity, taken, "nor was it tried");
    ground.server.stop().await;
}

#[tokio::test]
async fn a_leader_that_falls_silent_writes_nothing_once_another_leads() {
    let ground = Ground::new().await;
    let (mut silent, mut second) = (ground.candidate("silent", HASTY), ground.candidate("second", HASTY));
    let client = silent.leadership().guard(ground.client());
    assert_eq!(within("the first leads", silent.won()).await, 1);
    // It renews nothing from here on, as if the process stood still.
    assert_eq!(within("the second takes over", second.won()).await, 2);
    assert_eq!(silent.leadership().term(), None);
    assert!(write(&client, "stale").await.is_err());
    assert!(!exists(&client, "stale").await);
    within("the first learns that its term is over", silent.lost()).await;
    ground.server.stop().await;
}

#[tokio::test]
async fn the_same_identity_follows_itself_at_once_after_a_crash_in_a_higher_term() {
    let ground = Ground::new().await;
    assert_eq!(within("it leads", ground.candidate("only", CALM).won()).await, 1);
    assert_eq!(within("its next process leads", ground.candidate("only", CALM).won()).await, 2);
    ground.server.stop().await;
}
