//! The machine side of Terrane as a person meets it: the real binary, its flags, what it refuses, and what it survives. What layers
//! and runs do there is tested elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod definitions;
mod flags;
mod full_disk;
mod harness;
mod killed;
mod lost;
mod metacontroller;
mod namespaced;
mod node;
