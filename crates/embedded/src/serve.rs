//! The API on a port: TLS, the kubeconfig, the lock on the data directory.

mod connections;
mod files;
mod kubeconfig;
mod listen;
mod secrets;
mod tls;

pub use connections::Limits;
pub use listen::{Certificates, DEFAULT_PORT, Error as ListenError, Listen};
