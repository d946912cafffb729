//! Every parser of bytes that others wrote, fed with damaged ones: none may panic, hang, or believe what it should refuse.
//!
//! `FUZZ_SECONDS=600 cargo test -p testkit --test fuzz` looks longer; `FUZZ_NUMBER=N` tries one input of each again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod archives;
mod images;
mod kubernetes;
mod mail;
mod requests;
mod terragrunt;
mod webhooks;

use std::fs;
use std::io::Cursor;

use serde_json::Value;
use testkit::fuzz::{Fuzz, Report};

fn fuzz(target: &str, check: impl FnMut(&[u8])) {
    let report = Fuzz::target(target).unwrap().run(check).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{target}: {report:?}");
    assert!(report.inputs > report.corpus || report.corpus == 0, "there was time for more than the corpus");
}

#[test]
fn hcl() {
    fuzz("hcl", |input| {
        for name in ["main.tf", "main.tf.json", "backend.tofu"] {
            let once = sources::hcl::outline(name, input);
            assert_eq!(once, sources::hcl::outline(name, input), "the same bytes mean the same");
        }
    });
}

#[test]
fn plan_json() {
    fuzz("plan-json", |input| {
        if let Ok(shown) = tofu::plan::read(input) {
            // What was redacted once has nothing left to redact.
            let written = shown.redacted.to_string();
            let again = tofu::plan::read(written.as_bytes()).expect("what we wrote can be read");
            assert_eq!(without_fractions(again.redacted), without_fractions(shown.redacted));
        }
    });
}

/// A fraction may lose its last digit each time that it is read.
fn without_fractions(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => Value::Null,
        Value::Array(items) => items.into_iter().map(without_fractions).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, without_fractions(value))).collect()
        }
        other => other,
    }
}

#[test]
fn plan_text() {
    fuzz("plan-text", |input| {
        let text = String::from_utf8_lossy(input);
        let _ = tofu::plan::summary_from_text(&text);
        let mut collector = tofu::diagnostics::Collector::default();
        text.lines().for_each(|line| collector.line(line));
        let _ = (collector.meaning(), collector.first().map(|first| first.message()));
    });
}

#[test]
fn plan_file() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("plan");
    fuzz("plan-file", |input| {
        fs::write(&file, input).unwrap();
        let _ = tofu::plan_file::base_state(&file);
    });
}

#[test]
fn state() {
    fuzz("state", |input| {
        let _ = tofu::plan_file::StateFacts::read(Cursor::new(input));
    });
}

#[test]
fn refs() {
    fuzz("refs", |input| {
        let refs = sources::Refs::parse(input);
        assert!(refs.branches.keys().chain(refs.tags.keys()).all(|name| !name.contains('\n')));
    });
}

#[test]
fn tree() {
    fuzz("tree", |input| {
        if let Ok(entries) = sources::objects::parse_tree(input) {
            assert!(entries.is_sorted_by(|a, b| a.path <= b.path));
            assert!(entries.iter().all(|entry| !entry.path.is_empty() && !entry.path.contains(&0)));
        }
    });
}

#[test]
fn versions() {
    fuzz("versions", |input| {
        let text = String::from_utf8_lossy(input);
        let version = tofu::versions::parse_version("1.12.6").unwrap();
        for line in text.lines() {
            let _ = tofu::versions::parse_version(line);
            if let Ok(constraint) = line.parse::<tofu::versions::Constraint>() {
                let shown = constraint.to_string();
                let again: tofu::versions::Constraint = shown.parse().expect("what was shown can be read");
                assert_eq!(again.is_satisfied_by(&version), constraint.is_satisfied_by(&version), "{shown}");
            }
        }
    });
}

/// Damaged keys and signatures never vouch for content that nobody signed.
#[test]
fn signature() {
    let certificates = include_bytes!("../../../../fuzz/corpus/signature/vendor.asc");
    let vendor = tofu::signature::read_certificates(certificates).unwrap();
    let by_vendor = include_bytes!("../../../../fuzz/corpus/signature/sums.sig");
    fuzz("signature", |input| {
        assert!(tofu::signature::verify(b"never signed", input, &vendor).is_err());
        if let Ok(read) = tofu::signature::read_certificates(input) {
            assert!(tofu::signature::verify(b"never signed", by_vendor, &read).is_err());
        }
    });
}

/// The search itself: a parser with a mistake is caught, the input is kept, and its number repeats it.
#[test]
fn a_planted_mistake_is_found_and_can_be_repeated() {
    let place = tempfile::tempdir().unwrap();
    let (corpus, failures) = (place.path().join("corpus"), place.path().join("failures"));
    fs::create_dir(&corpus).unwrap();
    fs::write(corpus.join("seed"), "length=3;abc").unwrap();
    let fuzz = Fuzz::new("planted", &corpus, &failures).unwrap();
    // It believes the length that is written, as so many have.
    let careless = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        if let Some((length, rest)) = text.strip_prefix("length=").and_then(|rest| rest.split_once(';'))
            && let Ok(length) = length.parse::<usize>()
        {
            let _ = &rest.as_bytes()[..length];
        }
    };
    let failure = fuzz.run(careless).expect_err("the mistake is found");
    assert!(failure.contains("out of range"), "{failure}");
    let number: u64 =
        failure.split("FUZZ_NUMBER=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    let kept = fs::read(failures.join(format!("planted-{number}"))).unwrap();
    assert_eq!(kept, fuzz.input(number), "the same number is the same input");
    assert!(std::panic::catch_unwind(|| careless(&kept)).is_err());

    let careful = fuzz.run(|_| {}).unwrap();
    assert!(matches!(careful, Report { corpus: 1, inputs: 2.. }), "{careful:?}");
    assert!(Fuzz::new("empty", &place.path().join("none"), &failures).is_err(), "no corpus, no target");
}
