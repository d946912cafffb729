//! The kubeconfig that makes kubectl and kube work at once: the CA inline, the administrator's token, private to its owner.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::files::{self, write_private};

/// The first line of every kubeconfig that is ours to overwrite.
const MARK: &str = "# Written by terrane at each start; changes are lost.";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is somebody's kubeconfig and would be overwritten: choose another file with --kubeconfig", .0.display())]
    NotOurs(PathBuf),
    #[error(transparent)]
    Files(#[from] files::Error),
}

/// By which name the server proves itself: the certificate made here holds none of the addresses by which others reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    ByAddress,
    AsLocalhost,
}

pub(super) fn write(
    path: &Path,
    server: &str,
    proof: Proof,
    authority_pem: &str,
    token: &str,
) -> Result<(), Error> {
    // What cannot be read as text is not ours either.
    if path.exists() && !std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARK)) {
        return Err(Error::NotOurs(path.to_owned()));
    }
    Ok(write_private(path, &render(server, proof, authority_pem, token))?)
}

/// Every value is base64, hexadecimal or an address, so nothing needs quoting.
fn render(server: &str, proof: Proof, authority_pem: &str, token: &str) -> String {
    let proof = match proof {
        Proof::ByAddress => "",
        Proof::AsLocalhost => "\n    tls-server-name: localhost",
    };
    let authority = STANDARD.encode(authority_pem);
    format!(
        "{MARK}
apiVersion: v1
kind: Config
clusters:
- name: terrane
  cluster:
    server: {server}{proof}
    certificate-authority-data: {authority}
users:
- name: terrane-admin
  user:
    token: {token}
contexts:
- name: terrane
  context:
    cluster: terrane
    user: terrane-admin
current-context: terrane
"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_kubeconfig_is_read_by_kube_and_nobody_elses_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        write(&path, "https://127.0.0.1:7443", Proof::AsLocalhost, "pem", "t0").unwrap();
        let config = kube::config::Kubeconfig::read_from(&path).unwrap();
        let cluster = config.clusters.first().unwrap().cluster.clone().unwrap();
        assert_eq!(cluster.tls_server_name.as_deref(), Some("localhost"));
        write(&path, "https://127.0.0.1:7443", Proof::ByAddress, "pem", "t1").unwrap();
        let config = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("terrane"));
        let cluster = config.clusters.first().unwrap().cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:7443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("cGVt"));
        assert_eq!(cluster.tls_server_name, None);
        std::fs::write(&path, "apiVersion: v1\nkind: Config\n").unwrap();
        let error =
            write(&path, "https://127.0.0.1:7443", Proof::ByAddress, "pem", "t2").unwrap_err().to_string();
        assert!(error.ends_with(
            "is somebody's kubeconfig and would be overwritten: choose another file with --kubeconfig"
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "apiVersion: v1\nkind: Config\n");
    }
}
