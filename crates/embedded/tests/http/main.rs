//! The API as clients see it: kube's client and plain requests over the router, in process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod crud;
mod custom;
mod deletion;
mod discovery;
mod examples;
mod harness;
mod lists;
mod patches;
mod pods;
mod refusals;
mod tables;
mod watches;
