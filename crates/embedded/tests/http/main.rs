//! The API as clients see it: kube's client and plain requests over the router, in process. What a real server answers to the
//! same requests is pinned by the `conformance` crate; here is what needs this crate's own parts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod crud;
mod harness;
