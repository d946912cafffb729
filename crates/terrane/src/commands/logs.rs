//! `terrane logs`: what a run printed, followed across its attempts.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use api::TerraformRun;
use clap::Args;
use futures::StreamExt;
use kube::{Api, ResourceExt};

use super::progress::Progress;
use super::service::{Call, Service};
use super::watching::{self, Seen, within};
use super::{Connection, apply, find};
use crate::arguments::Reach;

/// A connection that breaks off this often in a row is not coming back.
const TRIES: u32 = 5;
/// How long an approved apply may take to start.
const START: Duration = Duration::from_secs(300);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A layer, whose latest run is meant, or run/NAME
    name: String,
    /// Go on until the run has ended, across its attempts
    #[arg(short, long)]
    follow: bool,
    /// Only this attempt; without it, the newest, or with --follow all from the newest on
    #[arg(long, value_name = "NUMBER")]
    attempt: Option<u32>,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let connection = super::connection(&options.reach).await?;
    let run = find::run_meant(&connection.client, &connection.namespace, &options.name).await?;
    let service = Service::find(&connection).await?;
    let name = run.name_any();
    let log = Log { service: &service, namespace: &connection.namespace, run: &name };
    match (options.attempt, options.follow) {
        (Some(number), true) => log.print(Some(number), End::OfAttempt).await,
        (number, false) => log.print(number, End::OfNow).await,
        (None, true) => {
            if find::has_ended(&run)
                && let Some(next) = next_run(&connection, &options.name, &run).await?
            {
                return follow(&connection, &service, &next, 0).await.map(drop);
            }
            let attempts = run.status.as_ref().map_or(0, |status| status.attempts.len());
            follow(&connection, &service, &name, attempts.saturating_sub(1)).await.map(drop)
        }
    }
}

/// The apply that follows an approval of a moment ago: whoever follows a layer then means that one, not the plan before it.
async fn next_run(
    connection: &Connection,
    name: &str,
    latest: &TerraformRun,
) -> anyhow::Result<Option<String>> {
    let layer = name.strip_prefix("layer/").unwrap_or(name);
    if latest.spec.layer.name.as_str() != layer {
        return Ok(None);
    }
    let layer = super::layer(&connection.client, &connection.namespace, layer).await?;
    let Some(plan) = apply::about_to_start(connection, &layer).await? else {
        // It may have started between the two looks.
        let runs = find::runs_of(&connection.client, &connection.namespace, &layer.name_any()).await?;
        return Ok(runs.first().map(ResourceExt::name_any).filter(|newest| *newest != latest.name_any()));
    };
    let name = layer.name_any();
    let advice = format!("`terrane describe {name}` says what it waits for");
    within(START, &format!("the approved apply of {name}"), &advice, apply::started(connection, &name, &plan))
        .await
        .map(Some)
}

/// Prints the attempts of a run from the `first` on, as they come, until the run has ended. Returns how it ended.
pub(super) async fn follow(
    connection: &Connection,
    service: &Service,
    name: &str,
    first: usize,
) -> anyhow::Result<TerraformRun> {
    let namespace = connection.namespace.as_str();
    let api = Api::<TerraformRun>::namespaced(connection.client.clone(), namespace);
    let log = Log { service, namespace, run: name };
    let mut printed = first;
    loop {
        let mut progress = Progress::new(format!("{name}: waiting"));
        let run = watching::until(api.clone(), name, &mut progress, |run| {
            let run = run.with_context(|| format!("run {namespace}/{name} was deleted"))?;
            let attempts = run.status.as_ref().map_or(0, |status| status.attempts.len());
            Ok(if attempts > printed || find::has_ended(&run) {
                Seen::Enough(run)
            } else {
                Seen::Waiting(format!("{name}: {}", find::waits_for(&run)))
            })
        })
        .await?;
        drop(progress);
        let attempts = run.status.as_ref().map(|status| status.attempts.as_slice()).unwrap_or_default();
        let Some(attempt) = attempts.get(printed) else { return Ok(run) };
        if printed > 0 {
            eprintln!("attempt {} of {name}:", printed + 1);
        }
        log.print(Some(attempt.number), End::OfAttempt).await?;
        printed += 1;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// What there is.
    OfNow,
    /// Until the attempt has ended.
    OfAttempt,
}

struct Log<'a> {
    service: &'a Service,
    namespace: &'a str,
    run: &'a str,
}

impl Log<'_> {
    /// Prints a log to standard output; a connection that breaks off is taken up where it was.
    async fn print(&self, attempt: Option<u32>, end: End) -> anyhow::Result<()> {
        let mut offset = 0u64;
        let mut failures = 0;
        loop {
            let broken = match self.copy(attempt, end, &mut offset, &mut failures).await {
                Ok(()) => return Ok(()),
                Err(Broken::Off(error)) => error,
                Err(Broken::Refused(error)) => return Err(error),
            };
            failures += 1;
            if failures >= TRIES {
                return Err(broken)
                    .with_context(|| format!("read the log of {}/{}", self.namespace, self.run));
            }
        }
    }

    async fn copy(
        &self,
        attempt: Option<u32>,
        end: End,
        offset: &mut u64,
        failures: &mut u32,
    ) -> Result<(), Broken> {
        let path = [self.namespace, "runs", self.run, "log"];
        let (from, number) = (offset.to_string(), attempt.map(|number| number.to_string()));
        let mut query = vec![("offset", from.as_str())];
        if let Some(number) = &number {
            query.push(("attempt", number));
        }
        if end == End::OfAttempt {
            query.push(("follow", "true"));
        }
        let call = Call { query: &query, ..Call::get(&path) };
        let answer = self.service.send(call).await.map_err(Broken::Refused)?;
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| Broken::Off(error.into()))?;
            *failures = 0;
            *offset += u64::try_from(piece.len()).unwrap_or(0);
            let mut out = std::io::stdout().lock();
            out.write_all(&piece)
                .and_then(|()| out.flush())
                .context("print the log")
                .map_err(Broken::Refused)?;
        }
        Ok(())
    }
}

/// How a log ends too early.
enum Broken {
    /// Worth another try from where it was.
    Off(anyhow::Error),
    Refused(anyhow::Error),
}
