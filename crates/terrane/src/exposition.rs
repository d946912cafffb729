//! How figures are written down for whoever scrapes them: OpenMetrics for those who ask for it, else the older text format, which all
//! understand. They differ in how a counter's family is called and in a few remarks.

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `figures` is OpenMetrics, with the mark of its end.
pub(crate) fn answer(asked: &HeaderMap, figures: String) -> Response {
    let accepted = asked.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let vary = (header::VARY, "accept");
    if accepted.into_iter().any(|value| value.contains("application/openmetrics-text")) {
        ([(header::CONTENT_TYPE, OPEN_METRICS), vary], figures).into_response()
    } else {
        ([(header::CONTENT_TYPE, TEXT), vary], older(&figures)).into_response()
    }
}

/// In the older format a counter's family bears the name of its samples, and there are neither units nor an end.
fn older(figures: &str) -> String {
    let mut text = String::with_capacity(figures.len());
    let mut help = None;
    for line in figures.lines() {
        let Some(remark) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let mut words = remark.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            // Written with the type, which says what the family is called.
            (Some("HELP"), Some(_), words) => help = words,
            (Some("TYPE"), Some(family), Some(kind)) => {
                let family = if kind == "counter" { format!("{family}_total") } else { family.to_owned() };
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {family} {help}\n"));
                }
                text.push_str(&format!("# TYPE {family} {kind}\n"));
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FIGURES: &str = "# HELP terrane_runs Runs.\n# TYPE terrane_runs counter\nterrane_runs_total{action=\"plan\"} 1\n\
        # HELP terrane_wait_seconds Waits.\n# TYPE terrane_wait_seconds histogram\n# UNIT terrane_wait_seconds seconds\n\
        terrane_wait_seconds_sum 2.0\n# EOF\n";

    #[test]
    fn who_asks_for_nothing_gets_the_format_that_all_understand() {
        let older = older(FIGURES);
        assert_eq!(
            older,
            "# HELP terrane_runs_total Runs.\n# TYPE terrane_runs_total counter\nterrane_runs_total{action=\"plan\"} 1\n\
            # HELP terrane_wait_seconds Waits.\n# TYPE terrane_wait_seconds histogram\nterrane_wait_seconds_sum 2.0\n"
        );
    }

    #[test]
    fn who_asks_for_open_metrics_gets_it() {
        let mut asked = HeaderMap::new();
        let kind = |answer: Response| answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        assert_eq!(kind(answer(&asked, FIGURES.to_owned())), TEXT);
        asked.insert(
            header::ACCEPT,
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5".parse().unwrap(),
        );
        assert_eq!(kind(answer(&asked, FIGURES.to_owned())), OPEN_METRICS);
    }
}
