//! The pinned kubectl on the embedded API and on a real kube-apiserver: the same commands must end with the same
//! words and exit codes on both. Only the known differences may fail on the embedded API, and each of them must.

#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value answers null for what it has not; nothing else is indexed here"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use conformance::gaps::Gap;
use conformance::runner::{timed, verdict};
use conformance::{Scope, Target};
use embedded::serve::{Listen, Options, Server};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use secrecy::ExposeSecret;
use testkit::cluster::RealCluster;
use testkit::process::Scratch;

use crate::program::{Kubectl, Place};

/// The registry of one subject: each function is a case, named after the subject and itself.
macro_rules! cases {
    ($subject:literal: $($case:ident),+ $(,)?) => {
        /// The cases of this subject.
        pub(crate) const CASES: &[$crate::Case] = &[$(
            $crate::Case { name: concat!($subject, "/", stringify!($case)), run: |kubectl| Box::pin($case(kubectl)) }
        ),+];
    };
}

mod applying;
mod asking;
mod program;
mod reading;
mod waiting;
mod writing;
mod wrong;

/// How many cases run at the same time: each is a process that wants a core for most of its life.
const AT_ONCE: usize = 4;
/// No case takes this long: it ends one that hangs, so that the others are still reported.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// What fails on the embedded API, and why. Nothing does now.
const KNOWN: &[Gap] = &[];

/// One thing that a user of kubectl sees.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    name: &'static str,
    run: fn(Kubectl) -> BoxFuture<'static, Result<()>>,
}

fn all() -> Vec<Case> {
    let subjects =
        [reading::CASES, writing::CASES, applying::CASES, waiting::CASES, asking::CASES, wrong::CASES];
    subjects.concat()
}

/// Runs all cases on one server; an error names each that failed, and each known difference that is none any more.
async fn run(target: &Target, place: &Place, known: &[Gap]) -> Result<()> {
    let cases = all();
    for gap in known {
        ensure!(cases.iter().any(|case| case.name == gap.case), "{} is a difference of no case", gap.case);
    }
    let outcomes: Vec<(&'static str, Result<()>)> = stream::iter(cases)
        .map(|case| timed(case.name, run_case(target, place, case)))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    verdict(&outcomes, known)
}

async fn run_case(target: &Target, place: &Place, case: Case) -> Result<()> {
    let scope = Scope::new(target.clone(), case.name)?;
    scope.pod_namespace().await?;
    let kubectl = Kubectl::new(place, scope)?;
    match tokio::time::timeout(CASE_LIMIT, (case.run)(kubectl)).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("it did not end within {} s", CASE_LIMIT.as_secs()),
    }
}

async fn start(directory: &Path) -> Result<(Server, Target)> {
    let options = Options {
        listen: Listen::new(([127, 0, 0, 1], 0).into(), None, None)?,
        definitions: api::custom_resources(),
        ..Options::new(directory.join("data"))
    };
    let server = Server::start(options).await?;
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let token = config.auth_info.token.as_ref().context("the kubeconfig has no token")?;
    let token = token.expose_secret().to_owned();
    Ok((server, Target::on_port(config, token)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_works_on_the_embedded_api() -> Result<()> {
    let scratch = Scratch::new("terrane-kubectl-")?;
    let (server, target) = start(scratch.path()).await?;
    let place = Place::new(server.kubeconfig(), scratch.path())?;
    let outcome = run(&target, &place, KNOWN).await;
    server.stop().await;
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_works_on_a_real_cluster() -> Result<()> {
    let cluster = RealCluster::shared().await;
    let target = Target::on_port(cluster.config()?, cluster.token())?;
    Scope::new(target.clone(), "setup")?.install_terrane().await?;
    let scratch = Scratch::new("terrane-kubectl-")?;
    let place = Place::new(cluster.kubeconfig(), scratch.path())?;
    run(&target, &place, &[]).await
}
