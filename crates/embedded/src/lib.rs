//! A Kubernetes-shaped API in one process: what controllers, kube and kubectl use of kube-apiserver, with the same answers.
//! It knows nothing of Terrane but the custom resources that it installs at start; pods are run elsewhere, by the `node` crate.

pub mod apply;
pub mod auth;
pub mod http;
pub mod kinds;
pub mod lifecycle;
pub mod patch;
pub mod schema;
pub mod serve;
pub mod store;
