//! The real tool on small modules that need no provider.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use api::run::PlanSummary;
use tofu::{Job, program};
use tokio_util::sync::CancellationToken;

fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap()
}

async fn job(directory: &Path) -> Job {
    let program =
        program::find(None, &[], &search_path()).await.expect("terraform or tofu on PATH: run `make setup`");
    Job {
        program,
        directory: directory.to_owned(),
        environment: vec![("PATH".into(), search_path()), ("HOME".into(), directory.into())],
        stop: CancellationToken::new(),
        grace: Duration::from_secs(20),
    }
}

#[tokio::test]
async fn plans_shows_and_applies() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("main.tf"), "resource \"terraform_data\" \"a\" {\n  input = \"x\"\n}\n")
        .unwrap();
    let job = job(dir.path()).await;
    let mut log = Vec::new();
    let mut sink = |line: &str| log.push(line.to_owned());
    assert_eq!(job.init(&mut sink).await.unwrap().exit_code(), 0);
    let plan = dir.path().join("plan.bin");
    assert_eq!(job.plan(&plan, &[], &mut sink).await.unwrap().exit_code(), 2);
    let view = job.show(&plan).await.unwrap();
    assert_eq!(view.summary, PlanSummary { add: 1, ..PlanSummary::default() });
    assert!(job.show_text(&plan).await.unwrap().contains("terraform_data.a will be created"));
    assert_eq!(job.apply(&plan, &mut sink).await.unwrap().exit_code(), 0);
    assert_eq!(job.plan(&plan, &[], &mut sink).await.unwrap().exit_code(), 0);
    assert!(log.iter().any(|line| line.contains("1 added")), "{log:#?}");
}

#[tokio::test]
async fn the_first_error_names_its_place() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("m")).unwrap();
    fs::write(dir.path().join("m/main.tf"), "variable \"name\" {}\n").unwrap();
    fs::write(dir.path().join("main.tf"), "module \"x\" {\n  source = \"./m\"\n}\n").unwrap();
    let job = job(dir.path()).await;
    let mut sink = |_: &str| {};
    let init = job.init(&mut sink).await.unwrap();
    let ended = if init.exit_code() == 0 {
        job.plan(&dir.path().join("p"), &[], &mut sink).await.unwrap()
    } else {
        init
    };
    assert_eq!(ended.exit_code(), 1);
    let error = ended.first_error.unwrap();
    assert!(error.starts_with("Missing required argument"), "{error}");
}

#[tokio::test]
async fn one_interrupt_saves_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let code = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = \"touch {} && sleep 60\"\n  }}\n}}\n\
         resource \"terraform_data\" \"quick\" {{}}\n",
        started.display()
    );
    fs::write(dir.path().join("main.tf"), code).unwrap();
    let job = job(dir.path()).await;
    let mut sink = |_: &str| {};
    job.init(&mut sink).await.unwrap();
    let plan = dir.path().join("plan.bin");
    job.plan(&plan, &[], &mut sink).await.unwrap();
    let stop = job.stop.clone();
    let watch = async {
        while !started.exists() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(job.apply(&plan, &mut sink), watch);
    let ended = ended.unwrap();
    assert!(ended.stopped);
    assert_ne!(ended.exit_code(), 0);
    let state = fs::read_to_string(dir.path().join("terraform.tfstate")).unwrap();
    assert!(state.contains("\"quick\""), "{state}");
}
