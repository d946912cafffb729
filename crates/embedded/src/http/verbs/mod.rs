//! One file a verb: what it does with the objects of the store.

pub mod bind;
pub mod create;
pub mod delete;
pub mod get;
pub mod patch;
pub mod review;
pub mod update;
