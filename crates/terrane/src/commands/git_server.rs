//! `terrane git-server`: a directory of files as a Git repository over https, to read. It is what a quickstart or a test in a cluster
//! needs for its code to come from Git, and no forge: one repository, one branch, nobody is asked who they are.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::json;
use sources::{Protocol, Publication};
use tokio::sync::Semaphore;

use crate::listening::{Door, Draining, Encryption};
use crate::{certifying, environment, kubernetes};

/// The one service of a Git server that reads.
const SERVICE: &str = "git-upload-pack";
/// Requests of a fetch are lists of commits.
const MOST_REQUESTED: u64 = 2 * 1024 * 1024;
/// Git processes at a time; further requests wait.
const AT_A_TIME: usize = 4;

/// Serve a directory of files as a Git repository over https, to read
///
/// The repository is at /code.git. It has the branch main, whose only commit is what the files are when somebody asks: the same files
/// are the same commit, changed files are a new one. Everybody who reaches it may read it. A ConfigMap as a volume makes it a Git server
/// inside a cluster, for trying things out; for work, use a forge.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Example, in a pod whose ServiceAccount may patch the Secret quickstart-git of its namespace:
      terrane git-server --files /code --listen 0.0.0.0:8443 --certificate-for quickstart-git.default.svc \\
          --authority-secret quickstart-git
A TerraformRepository with the URL https://quickstart-git.default.svc/code.git and these credentials then reads it.")]
pub(crate) struct Options {
    /// The files: a directory as it is, or a volume of a ConfigMap
    #[arg(long, value_name = "DIR")]
    files: PathBuf,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
    #[command(flatten)]
    encryption: Encryption,
    /// Make a certificate for this name at each start, instead of --tls-cert
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tls_cert", "behind_tls"], requires = "authority_secret")]
    certificate_for: Option<String>,
    /// Write the authority of that certificate into `ca.crt` of this Secret, which is there already, in the namespace of this pod or
    /// of the kubeconfig
    #[arg(long, value_name = "NAME", requires = "certificate_for")]
    authority_secret: Option<String>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("make a directory for the repository")?;
    let publication = Publication::new(&options.files, scratch.path(), &environment::search_path()).await?;
    let (encryption, authority) = match &options.certificate_for {
        Some(name) => {
            let (encryption, authority) =
                certify(name, scratch.path()).with_context(|| format!("make a certificate for {name}"))?;
            (encryption, Some(authority))
        }
        None => (options.encryption, None),
    };
    let door = Door::open(options.listen, encryption).await?;
    if let (Some(secret), Some(authority)) = (&options.authority_secret, authority) {
        publish_authority(secret, &authority).await?;
    }
    tracing::info!(address = %door.address()?, scheme = door.scheme(), files = %options.files.display(), "serving files as a Git repository");
    door.serve(router(publication), &Draining::default()).await
}

/// The directory is private, and goes with the process.
fn certify(name: &str, directory: &Path) -> anyhow::Result<(Encryption, String)> {
    let made = certifying::certify(&[name.to_owned()])?;
    let (chain_file, key_file) = (directory.join("tls.crt"), directory.join("tls.key"));
    std::fs::write(&chain_file, made.chain)?;
    std::fs::write(&key_file, made.key)?;
    Ok((Encryption::with_certificate(chain_file, key_file), made.authority))
}

/// Server-side apply, so that what else is in the Secret stays, and of several servers the last one is believed.
async fn publish_authority(name: &str, authority: &str) -> anyhow::Result<()> {
    let client = kubernetes::role_client().await?;
    let namespace = client.default_namespace().to_owned();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "data": { "ca.crt": BASE64_STANDARD.encode(authority) },
    });
    Api::<Secret>::namespaced(client, &namespace)
        .patch(name, &PatchParams::apply("terrane-git-server").force(), &Patch::Apply(secret))
        .await
        .with_context(|| format!("write the authority of this server into Secret {namespace}/{name}; make the Secret, and let this account patch it"))?;
    Ok(())
}

struct Shelf {
    publication: Publication,
    places: Semaphore,
}

fn router(publication: Publication) -> Router {
    let shelf = Arc::new(Shelf { publication, places: Semaphore::new(AT_A_TIME) });
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/code.git/info/refs", get(advertise))
        .route("/code.git/git-upload-pack", post(answer))
        .with_state(shelf)
}

#[derive(Deserialize)]
struct Wish {
    service: Option<String>,
}

async fn advertise(
    State(shelf): State<Arc<Shelf>>,
    Query(wish): Query<Wish>,
    headers: HeaderMap,
) -> Response {
    if wish.service.as_deref() != Some(SERVICE) {
        let why = "this server is read by git's own protocol over https, and nothing can be pushed to it\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Ok(_place) = shelf.places.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let told = shelf.publication.advertise(protocol(&headers)).await;
    respond(told, "application/x-git-upload-pack-advertisement")
}

async fn answer(State(shelf): State<Arc<Shelf>>, headers: HeaderMap, body: Bytes) -> Response {
    let request = match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => body.to_vec(),
        // Git packs requests that are longer than a kilobyte.
        Some(b"gzip" | b"x-gzip") => match unpacked(&body) {
            Some(request) => request,
            None => return StatusCode::BAD_REQUEST.into_response(),
        },
        Some(_) => return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response(),
    };
    let Ok(_place) = shelf.places.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let answered = shelf.publication.answer(protocol(&headers), &request).await;
    respond(answered, "application/x-git-upload-pack-result")
}

fn unpacked(body: &[u8]) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(body).take(MOST_REQUESTED + 1);
    reader.read_to_end(&mut request).ok()?;
    (u64::try_from(request.len()).is_ok_and(|length| length <= MOST_REQUESTED)).then_some(request)
}

fn protocol(headers: &HeaderMap) -> Protocol {
    Protocol::of_header(headers.get("git-protocol").and_then(|value| value.to_str().ok()))
}

fn respond(result: Result<Vec<u8>, sources::Error>, kind: &'static str) -> Response {
    match result {
        // A proxy that kept an answer would hide a new commit.
        Ok(content) => {
            ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], content).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "a request was not answered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;
    use std::process::Stdio;

    use tokio::process::Command;

    use super::*;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(content).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn a_packed_request_has_a_limit_too() {
        assert_eq!(unpacked(&packed(b"0032want")).unwrap(), b"0032want");
        assert_eq!(unpacked(b"0032want"), None);
        let bomb = vec![0; usize::try_from(MOST_REQUESTED).unwrap() + 1];
        assert_eq!(unpacked(&packed(&bomb)), None);
    }

    async fn git(words: &[&str]) -> (bool, String) {
        let mut command = Command::new("git");
        // What this machine has set for its own git must not answer here.
        command.env_clear().env("PATH", environment::search_path()).env("GIT_TERMINAL_PROMPT", "0");
        command.args(words).stdin(Stdio::null());
        let output = command.kill_on_drop(true).output().await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[tokio::test]
    async fn git_clones_by_both_protocols_believes_the_certificate_and_cannot_push() {
        let scratch = tempfile::tempdir().unwrap();
        let files = scratch.path().join("files");
        std::fs::create_dir_all(files.join("net")).unwrap();
        std::fs::write(files.join("net/main.tf"), "a = 1\n").unwrap();
        let work = tempfile::tempdir().unwrap();
        let path = environment::search_path();
        let publication = Publication::new(&files, work.path(), &path).await.unwrap();
        let (encryption, authority) = certify("localhost", work.path()).unwrap();
        let door = Door::open(([127, 0, 0, 1], 0).into(), encryption).await.unwrap();
        let url = format!("https://localhost:{}/code.git", door.address().unwrap().port());
        let believed = scratch.path().join("ca.crt");
        std::fs::write(&believed, authority).unwrap();
        let trust = format!("http.sslCAInfo={}", believed.display());
        let asking = async {
            for version in ["protocol.version=0", "protocol.version=2"] {
                let target = scratch.path().join(version);
                let target = target.to_str().unwrap();
                let (cloned, said) = git(&["-c", &trust, "-c", version, "clone", "-q", &url, target]).await;
                assert!(cloned, "{said}");
                let file = scratch.path().join(version).join("net/main.tf");
                assert_eq!(std::fs::read_to_string(file).unwrap(), "a = 1\n");
            }
            let clone = scratch.path().join("protocol.version=2");
            let clone = clone.to_str().unwrap();
            let (pushed, said) = git(&["-c", &trust, "-C", clone, "push", &url, "main:other"]).await;
            assert!(!pushed && said.contains("403"), "{said}");
            let (believed, said) = git(&["ls-remote", &url]).await;
            assert!(!believed && said.contains("certificate"), "{said}");
        };
        let draining = Draining::default();
        tokio::select! {
            ended = door.serve(router(publication), &draining) => ended.unwrap(),
            () = asking => {}
        }
    }
}
