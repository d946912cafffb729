//! The figures of a running Terrane, against what is made of them: the dashboard and the alerts of the chart.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Prometheus' own reader finds nothing wrong with them.
pub(crate) fn are_read_by_prometheus(text: &str) {
    let mut promtool = Command::new(testkit::tools::tool("promtool").unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let answer = promtool.wait_with_output().unwrap();
    assert!(answer.status.success(), "{}\n{text}", String::from_utf8_lossy(&answer.stderr));
}

/// A panel or an alert on a metric that nobody tells would be silent for ever.
pub(crate) fn hold_what_dashboard_and_alerts_ask_for(told: &[String]) {
    let told: BTreeSet<&str> = told
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/terrane/files");
    let mut asked = BTreeSet::new();
    for file in ["dashboard.json", "alerts.yaml"] {
        let text = std::fs::read_to_string(chart.join(file)).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        asked.extend(words.filter(|word| word.starts_with("terrane_")).map(str::to_owned));
    }
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<&String> = asked.iter().filter(|name| !told.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "asked for and never told: {missing:?}; told: {told:?}");
}
