//! The controllers as a role: what they need, and how they stand for election. `terrane up` and `terrane controller` differ only
//! in where these things come from.

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use controllers::{Desk, Election, Leadership, Metrics, Namespaces, Outbox, Terraforms, Turns};
use engine::leader::Terms;
use engine::shard::Shard;
use jiff::Timestamp;
use sources::oci::{ImageOptions, Images};
use sources::{Git, GitOptions};
use tokio_util::sync::CancellationToken;

use crate::definitions::Definitions;
use crate::signs::{Duty, Signs};

pub(crate) struct ControllersRole {
    pub(crate) client: kube::Client,
    pub(crate) namespaces: Namespaces,
    pub(crate) terraforms: Terraforms,
    pub(crate) datastore: datastore::Client,
    pub(crate) git: GitOptions,
    pub(crate) images: ImageOptions,
    pub(crate) settings: Arc<engine::Settings>,
    pub(crate) metrics: Metrics,
    pub(crate) offices: Offices,
}

/// What this process stands for at the moment. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Offices(Arc<Mutex<Vec<Leadership>>>);

impl Offices {
    /// Of the whole fleet, or of each shard in its order.
    pub(crate) fn leaderships(&self) -> Vec<Leadership> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stand(&self, leaderships: Vec<Leadership>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = leaderships;
    }
}

impl ControllersRole {
    pub(crate) fn signs(&self, definitions: Option<Definitions>, duty: Duty) -> Signs {
        Signs {
            client: self.client.clone(),
            datastore: self.datastore.clone(),
            metrics: self.metrics.clone(),
            deliveries: server::Deliveries::default(),
            stored: None,
            offices: self.offices.clone(),
            definitions,
            duty,
        }
    }

    /// Acts wherever it leads, until told to stop.
    pub(crate) async fn lead(&self, candidacy: Candidacy, stop: CancellationToken) -> anyhow::Result<()> {
        let Candidacy { elections, turns, identity, terms } = candidacy;
        let is_divided = elections.len() > 1;
        let leaderships: Vec<Leadership> =
            elections.iter().map(|(_, election)| election.leadership()).collect();
        self.offices.stand(leaderships.clone());
        self.metrics.follow_leaderships(leaderships);
        let balancing = async {
            if is_divided {
                controllers::balance(self.client.clone(), &identity, terms, stop.clone()).await;
            }
            // Whether it has ended is for the elections to say.
            std::future::pending::<anyhow::Result<Vec<()>>>().await
        };
        let leading = elections.into_iter().map(|(shard, election)| {
            let leadership = election.leadership();
            let turns = turns.clone();
            controllers::lead(election, move || self.context(shard, &turns, &leadership), stop.clone())
        });
        tokio::select! {
            ended = futures::future::try_join_all(leading) => ended.map(drop),
            ended = balancing => ended.map(drop),
        }
    }

    fn context(
        &self,
        shard: Shard,
        turns: &Turns,
        leadership: &Leadership,
    ) -> anyhow::Result<controllers::Context> {
        let git = Git::new(self.git_of(shard))?;
        let client = leadership.guard(self.client.clone());
        let images = Images::new(self.images.clone())?;
        let desk = Desk::new(client.clone(), git, images, self.datastore.clone(), Timestamp::now);
        let desk = Arc::new(desk);
        let settings = Arc::clone(&self.settings);
        let context =
            controllers::Context::new(client, self.datastore.clone(), desk, settings, Timestamp::now);
        let context = context.within(self.namespaces.clone()).of_shard(shard, turns.clone());
        let context = context.with_terraforms(self.terraforms);
        // What may be read from there may be told there.
        let context = context.with_outbox(Outbox::to(self.git.addresses));
        Ok(context.with_metrics(self.metrics.clone()))
    }

    /// Shards know nothing of each other, so each has mirrors of its own.
    fn git_of(&self, shard: Shard) -> GitOptions {
        let mut git = self.git.clone();
        if shard != Shard::WHOLE {
            git.cache_dir = git.cache_dir.join(format!("shard-{}-of-{}", shard.index(), shard.of()));
        }
        git
    }
}

/// What a process stands for: the whole fleet, or each of its shards.
pub(crate) struct Candidacy {
    elections: Vec<(Shard, Election)>,
    turns: Turns,
    identity: String,
    terms: Terms,
}

impl Candidacy {
    /// `identity` is of this process alone.
    pub(crate) fn new(client: &kube::Client, identity: &str, terms: Terms, shards: NonZeroU16) -> Self {
        let stand = |shard| (shard, Election::new(client.clone(), identity, terms).for_shard(shard));
        // Undivided, one process acts at a time, and its own memory is enough.
        let turns = match shards.get() {
            1 => Turns::default(),
            _ => Turns::among_processes(client.clone(), identity),
        };
        Self {
            elections: Shard::all(shards).map(stand).collect(),
            turns,
            identity: identity.to_owned(),
            terms,
        }
    }
}

/// How a runner is told where to get providers from.
pub(crate) fn provider_mirror(mirror: &str) -> (String, String) {
    ("TERRANE_PROVIDER_MIRROR".to_owned(), mirror.to_owned())
}

/// How a runner is told where the store of tools is.
pub(crate) fn tools_directory(directory: &Path) -> (String, String) {
    ("TERRANE_TOOLS_DIR".to_owned(), directory.display().to_string())
}

/// How a runner is told whom to believe about the datastore's certificate, which is no secret.
pub(crate) fn datastore_authority(pem: String) -> (String, String) {
    ("TERRANE_DATASTORE_AUTHORITY".to_owned(), pem)
}

/// The authority of `--datastore-ca`, in PEM.
pub(crate) fn read_authority(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let read = std::fs::read_to_string(file);
    read.map(Some).with_context(|| format!("read --datastore-ca {}", file.display()))
}
