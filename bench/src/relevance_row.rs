//! Which of many layers does a commit matter to? Asked as the controllers ask: each layer for itself, after the head has moved.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::text::{CommitId, GitUrl};
use sources::{FileUrls, Git, GitOptions, Interest, Relevance, Source};
use testkit::process::Scratch;

use crate::product::{Code, layer_path};
use crate::report::{Outcome, Row};

/// Layers, and how many commits are looked at, of which the middle one counts.
pub async fn take(layers: usize, commits: usize) -> Result<Row> {
    let code = Code::new(layers)?;
    let cache = Scratch::new("terrane-bench-")?;
    let git = Git::new(GitOptions { file_urls: FileUrls::Allowed, ..GitOptions::new(cache.path()) })?;
    let source = Source::anonymous(GitUrl::new(format!("file://{}", code.path().display()))?);
    let relevance = Relevance::default();
    let interests: Vec<Interest> = (0..layers)
        .map(|layer| Ok(Interest { path: layer_path(layer).parse()?, trigger_paths: Vec::new() }))
        .collect::<Result<_>>()?;
    let head = head(&code)?;
    let mirror = git.mirror(&source, &head).await?;
    for interest in &interests {
        git.relevant(&mirror, &head, interest, &relevance).await?;
    }
    let mut spans = Vec::new();
    for commit in 0..commits {
        let touched = (commit * 37) % layers;
        let file = code.path().join(layer_path(touched)).join("main.tf");
        std::fs::write(&file, format!("# {commit}\n")).context("changing a layer")?;
        code.git(&["commit", "--quiet", "--all", "--message=Change"])?;
        let head = self::head(&code)?;
        let mirror = git.mirror(&source, &head).await?;
        let start = Instant::now();
        let mut relevant = Vec::new();
        for (layer, interest) in interests.iter().enumerate() {
            let found = match relevance.known(&head, interest).await {
                Some(found) => found,
                None => git.relevant(&mirror, &head, interest, &relevance).await?,
            };
            if found == head {
                relevant.push(layer);
            }
        }
        spans.push(start.elapsed());
        ensure!(relevant == [touched], "the commit touches layer {touched}, not {relevant:?}");
    }
    spans.sort_unstable();
    let span = spans.get(spans.len() / 2).copied().unwrap_or(Duration::MAX);
    Ok(Row {
        measure: format!("relevant layers of one commit among {layers}"),
        ours: format!("{:.1} ms", span.as_secs_f64() * 1000.0),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 50 ms".into(),
        outcome: Outcome::from(span <= Duration::from_millis(50)),
    })
}

fn head(code: &Code) -> Result<CommitId> {
    Ok(CommitId::new(code.git(&["rev-parse", "HEAD"])?)?)
}
