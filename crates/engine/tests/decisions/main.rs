//! What the engine decides, in small worlds: by kind of object, and for layers by what they are about. One program, because the types
//! that all of them are made of take longer to compile than the tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod bundles;
mod image_pods;
mod kaniko;
mod layer;
mod layer_answers;
mod layer_backend;
mod layer_branch;
mod layer_build;
mod layer_conditions;
mod layer_deletion;
mod layer_drift;
mod layer_expiry;
mod layer_history;
mod layer_image;
mod layer_inputs;
mod layer_outputs;
mod layer_refused;
mod layer_remediation;
mod layer_setup;
mod layer_template;
mod notification;
mod outputs;
mod repo;
mod repository;
mod run;
mod run_canceled;
mod run_conditions;
mod run_described;
mod run_limits;
mod run_undoing;
mod runner_override;
mod runner_pod;
mod runner_sweep;
mod terraform;
mod terraform_composite;
mod terraform_surroundings;
mod webhook;
mod world;
