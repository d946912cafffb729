//! The five rows of the Kubernetes API: what must be reached, and whether it was.

use std::time::Duration;

use crate::measures::{Figures, Scale};
use crate::report::{Outcome, Row};

/// What both servers' figures say.
pub fn rows(scale: &Scale, ours: &Figures, theirs: &Figures) -> Vec<Row> {
    let creates = ours.creates_per_second / theirs.creates_per_second;
    let start = ratio(ours.start, theirs.start);
    let page = ratio(ours.page_p95, theirs.page_p95);
    let event = ratio(ours.event_p99, theirs.event_p99);
    let memory = mebibytes(ours.resident_bytes);
    vec![
        Row {
            measure: format!("durable creates a second, {} clients over HTTPS", scale.clients),
            ours: format!("{:.0}/s", ours.creates_per_second),
            theirs: format!("{:.0}/s", theirs.creates_per_second),
            ratio: Some(creates),
            must_reach: "≥ 3.00, 5,000/s to beat".into(),
            outcome: Outcome::from(creates >= 3.0),
        },
        Row {
            measure: format!("start to ready, {} layers stored", scale.layers),
            ours: millis(ours.start),
            theirs: millis(theirs.start),
            ratio: Some(start),
            must_reach: "≤ 0.25".into(),
            outcome: Outcome::from(start <= 0.25),
        },
        Row {
            measure: format!(
                "resident memory, {} layers stored, {} watches open",
                scale.layers, scale.watches
            ),
            ours: format!("{memory:.0} MiB"),
            theirs: format!("{:.0} MiB", mebibytes(theirs.resident_bytes)),
            ratio: Some(memory / mebibytes(theirs.resident_bytes)),
            must_reach: "≤ 120 MiB".into(),
            outcome: Outcome::from(memory <= 120.0),
        },
        Row {
            measure: format!("list of {} layers by pages of 500, p95 a page", scale.layers),
            ours: millis(ours.page_p95),
            theirs: millis(theirs.page_p95),
            ratio: Some(page),
            must_reach: "< 1.00".into(),
            outcome: Outcome::from(page < 1.0),
        },
        Row {
            measure: format!("write to watch event, p99 under {} writes/s", scale.writes_per_second),
            ours: millis(ours.event_p99),
            theirs: millis(theirs.event_p99),
            ratio: Some(event),
            must_reach: "≤ 1.00".into(),
            outcome: Outcome::from(event <= 1.0),
        },
    ]
}

fn ratio(ours: Duration, theirs: Duration) -> f64 {
    ours.as_secs_f64() / theirs.as_secs_f64()
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

#[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_reached_only_where_its_bound_is_kept() {
        let theirs = Figures {
            creates_per_second: 1000.0,
            start: Duration::from_secs(4),
            resident_bytes: 500 << 20,
            page_p95: Duration::from_millis(20),
            event_p99: Duration::from_millis(10),
        };
        let good = Figures {
            creates_per_second: 3000.0,
            start: Duration::from_secs(1),
            resident_bytes: 120 << 20,
            page_p95: Duration::from_millis(19),
            event_p99: Duration::from_millis(10),
        };
        let bad = Figures {
            creates_per_second: 2999.0,
            start: Duration::from_millis(1001),
            resident_bytes: 121 << 20,
            page_p95: Duration::from_millis(20),
            event_p99: Duration::from_millis(11),
        };
        let outcomes = |ours| {
            rows(&Scale::whole(), ours, &theirs).into_iter().map(|row| row.outcome).collect::<Vec<_>>()
        };
        assert_eq!(outcomes(&good), [Outcome::Reached; 5]);
        assert_eq!(outcomes(&bad), [Outcome::Missed; 5]);
    }
}
