//! The figures of a running Terrane, against what is made of them: the dashboard and the alerts of the chart.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testkit::process::Scratch;

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
    let chart = chart_files();
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

fn chart_files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/terrane/files")
}

/// The queries of all panels, those inside of rows too. O(values of the dashboard).
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(targets) = fields.get("targets").and_then(Value::as_array) {
                for target in targets {
                    // Grafana shows nothing for one without a query, and says nothing of it either.
                    let query = target["expr"].as_str().filter(|query| !query.trim().is_empty());
                    found.push(query.unwrap_or_else(|| panic!("no query: {target}")).to_owned());
                }
            }
            fields.values().for_each(|below| queries(below, found));
        }
        Value::Array(items) => items.iter().for_each(|below| queries(below, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Queries as rules, by which Prometheus' own reader of expressions can be asked. JSON is YAML.
fn read_as_rules(queries: &[String]) -> Output {
    let rule = |(at, query): (usize, &String)| json!({ "record": format!("panel:{at}"), "expr": query });
    let rules: Vec<Value> = queries.iter().enumerate().map(rule).collect();
    let place = Scratch::new("terrane-dashboard-").unwrap();
    let file = place.path().join("rules.yaml");
    let text = json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string();
    std::fs::write(&file, text).unwrap();
    let promtool = testkit::tools::tool("promtool").unwrap();
    Command::new(promtool).args(["check", "rules"]).arg(&file).output().unwrap()
}

#[test]
fn every_query_of_the_dashboard_is_one() {
    let dashboard = std::fs::read_to_string(chart_files().join("dashboard.json")).unwrap();
    let mut asked = Vec::new();
    queries(&serde_json::from_str(&dashboard).unwrap(), &mut asked);
    assert_eq!(asked.len(), dashboard.matches("\"expr\"").count());
    assert!(asked.len() > 20, "{asked:?}");
    // What Grafana puts in.
    for query in &mut asked {
        *query = query.replace("$__rate_interval", "5m");
        assert!(!query.contains('$'), "who gives {query} its value?");
    }
    let answer = read_as_rules(&asked);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    asked.push("sum(rate(terrane_runs_total[5m])".to_owned());
    assert!(!read_as_rules(&asked).status.success(), "what is no query is found");
}
