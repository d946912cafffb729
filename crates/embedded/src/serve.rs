//! The API on a port: TLS, the kubeconfig, the lock on the data directory.
