//! Front doors: objects that stand for a repository and a layer, for people who want to say less. A door makes those two and keeps the
//! fields that it sets, copies back how they are doing, and never makes a pod.

mod branch;
mod child;
pub mod composite;
mod job;
mod place;
mod ready;
pub mod repo;
mod rounds;
pub mod surroundings;
pub mod terraform;
mod workload;
