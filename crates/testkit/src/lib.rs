//! What the tests of every crate share: a real Kubernetes API to compare with, and children that
//! never outlive a test. Nothing here is part of the product.

pub mod cluster;
pub mod forge;
pub mod process;
pub mod tools;
