//! The process node: a small kubelet that runs the containers of pods as processes of this machine.
//!
//! It works against any Kubernetes API through a [`kube::Client`] and knows nothing of the one that Terrane brings
//! along. [`Node::open`] prepares the machine, [`Node::run`] serves until its future is dropped; what runs then keeps
//! running under its shims, and the next node of the same directory takes it up again.

pub mod config;
pub mod env;
mod events;
pub mod fields;
pub mod images;
pub mod isolation;
pub mod jobs;
pub mod logs;
pub mod mounts;
pub mod pods;
pub mod process;
pub mod quantity;
pub mod records;
mod register;
mod scheduler;
pub mod shim;
pub mod sources;
pub mod volumes;

use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;

pub use config::Config;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the node cannot use the directory {} for its pods: {source}", path.display())]
    Pods { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Records(#[from] records::Error),
}

/// A node that has its directories for itself and has not begun to serve.
#[derive(Debug)]
pub struct Node {
    config: Config,
    records: records::Records,
    _lock: records::Lock,
}

impl Node {
    /// Claims the node's directories. Fails when another node has them.
    pub fn open(config: Config) -> Result<Node, Error> {
        let records = records::Records::open(&config.state)?;
        let lock = records.lock()?;
        config::open_pods_directory(&config.pods, &config.isolation)
            .map_err(|source| Error::Pods { path: config.pods.clone(), source })?;
        Ok(Node { config, records, _lock: lock })
    }

    /// Serves until it is dropped, or until its records cannot be read any more.
    pub async fn run(self, client: Client) -> Result<(), Error> {
        let facts = register::facts(&self.config.pods);
        let room =
            Arc::new(pods::Room::new(&self.config.pods, self.config.isolation.clone(), self.config.max_pods));
        let (events, sender) = events::channel(client.clone(), &self.config.name);
        let shared = Arc::new(pods::Shared {
            client: client.clone(),
            config: self.config.clone(),
            records: self.records.clone(),
            facts: facts.clone(),
            room: room.clone(),
            events,
        });
        let schedule = async {
            match self.config.schedule {
                config::Schedule::BindUnscheduled => {
                    scheduler::run(client.clone(), self.config.name.clone(), room.clone()).await;
                }
                config::Schedule::LeaveToScheduler => std::future::pending().await,
            }
        };
        let jobs = async {
            match self.config.jobs {
                config::Jobs::Control => jobs::run(client.clone()).await,
                config::Jobs::LeaveToController => std::future::pending().await,
            }
        };
        let heartbeat = register::run(
            client.clone(),
            &self.config.name,
            &facts,
            self.config.max_pods,
            &self.config.admission,
        );
        tokio::select! {
            ended = pods::run(shared) => Ok(ended?),
            () = heartbeat => Ok(()),
            () = schedule => Ok(()),
            () = jobs => Ok(()),
            () = sender.run() => Ok(()),
        }
    }
}
