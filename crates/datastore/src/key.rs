//! The names of everything in the datastore. A key decides the path of an object, the associated data of its
//! encryption, and its size limit; no other code builds a path.

use std::fmt;
use std::str::FromStr;

use api::text::Sha256;

/// What an attempt leaves, each written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Artefact {
    /// What the runner is told; written by the controller before the pod exists.
    Spec,
    /// The tool's own plan file.
    Plan,
    /// The redacted plan in JSON.
    PlanJson,
    /// The plan for people.
    PlanText,
    /// What the code gives out, once it is in place; sensitive values among it.
    Outputs,
    /// The runner's last act.
    Result,
    /// What an apply was given, values of Secrets among it, for whoever undoes it.
    Inputs,
}

impl Artefact {
    pub const ALL: [Self; 7] =
        [Self::Spec, Self::Plan, Self::PlanJson, Self::PlanText, Self::Outputs, Self::Result, Self::Inputs];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Plan => "plan",
            Self::PlanJson => "plan.json",
            Self::PlanText => "plan.txt",
            Self::Outputs => "outputs",
            Self::Result => "result",
            Self::Inputs => "inputs",
        }
    }
}

/// A name that is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct Error {
    pub value: String,
    pub expected: &'static str,
}

impl FromStr for Artefact {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|artefact| artefact.name() == name).ok_or_else(|| Error {
            value: name.to_owned(),
            expected: "an artefact: spec, plan, plan.json, plan.txt, outputs, result or inputs",
        })
    }
}

fn is_word(text: &str, max: usize) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= max
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && !text.contains("..")
}

/// Refuses what cannot be the name of a namespace.
pub fn check_namespace(name: &str) -> Result<(), Error> {
    if is_word(name, 63) {
        Ok(())
    } else {
        Err(Error { value: name.to_owned(), expected: "the name of a namespace" })
    }
}

/// One attempt of one run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    run_uid: String,
    number: u32,
}

impl Attempt {
    pub fn new(run_uid: impl Into<String>, number: u32) -> Result<Self, Error> {
        let run_uid = run_uid.into();
        if is_word(&run_uid, 128) {
            Ok(Self { run_uid, number })
        } else {
            Err(Error { value: run_uid, expected: "the uid of a run" })
        }
    }

    pub fn run_uid(&self) -> &str {
        &self.run_uid
    }

    pub const fn number(&self) -> u32 {
        self.number
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run_uid, self.number)
    }
}

/// A run, by its uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunUid(String);

impl RunUid {
    pub fn new(uid: impl Into<String>) -> Result<Self, Error> {
        Attempt::new(uid, 0).map(|attempt| Self(attempt.run_uid))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a state kept here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateId(String);

impl StateId {
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        if is_word(&id, 200) {
            Ok(Self(id))
        } else {
            Err(Error {
                value: id,
                expected: "a state identity: up to 200 letters, digits, '-', '_' and '.', starting with a letter or digit",
            })
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A layer whose history is kept, by namespace and name: its history outlives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    namespace: String,
    layer: String,
}

impl Subject {
    pub fn new(namespace: impl Into<String>, layer: impl Into<String>) -> Result<Self, Error> {
        let (namespace, layer) = (namespace.into(), layer.into());
        check_namespace(&namespace)?;
        if !is_word(&layer, 253) {
            return Err(Error { value: layer, expected: "the name of a layer" });
        }
        Ok(Self { namespace, layer })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn layer(&self) -> &str {
        &self.layer
    }
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Bundle(Sha256),
    Artefact(Attempt, Artefact),
    /// A piece of a log, by the offset of its first byte.
    LogSegment(Attempt, u64),
    /// One step in the life of a state: a lock, a write, an unlock. The steps of a state are numbered without a gap,
    /// and creating the next number is what decides between two writers.
    StateStep(StateId, u64),
    /// The content of a state, named by its digest so that an unfinished write never stands in anyone's way.
    StateContent(StateId, Sha256),
    /// What allowed an attempt to change infrastructure, written before it started.
    Audit(Subject, Attempt),
}

const MIB: u64 = 1024 * 1024;

/// The most that is kept of an attempt's outputs: more than fits into a few Secrets.
pub const OUTPUTS_LIMIT: u64 = 16 * MIB;

impl Key {
    /// Where all bundles are.
    pub const BUNDLES: &str = "bundles";

    pub fn path(&self) -> String {
        match self {
            Self::Bundle(sha256) => format!("{}/{sha256}", Self::BUNDLES),
            Self::Artefact(attempt, artefact) => format!("runs/{attempt}/{}", artefact.name()),
            Self::LogSegment(attempt, offset) => format!("{}/{offset:020}", Self::log_prefix(attempt)),
            Self::StateStep(id, number) => format!("{}/{number:020}", Self::steps_prefix(id)),
            Self::StateContent(id, sha256) => format!("states/{id}/content/{sha256}"),
            Self::Audit(subject, attempt) => {
                format!("{}/{}.{:06}", Self::audit_prefix(subject), attempt.run_uid, attempt.number)
            }
        }
    }

    /// The object that rests at a path; the inverse of [`Key::path`].
    pub fn from_path(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let key = match parts.as_slice() {
            ["bundles", sha256] => Self::Bundle(Sha256::new(*sha256).ok()?),
            ["runs", run, attempt, "log", offset] => {
                Self::LogSegment(Attempt::new(*run, attempt.parse().ok()?).ok()?, offset.parse().ok()?)
            }
            ["runs", run, attempt, artefact] => {
                Self::Artefact(Attempt::new(*run, attempt.parse().ok()?).ok()?, artefact.parse().ok()?)
            }
            ["states", id, "steps", number] => Self::StateStep(StateId::new(*id).ok()?, number.parse().ok()?),
            ["states", id, "content", sha256] => {
                Self::StateContent(StateId::new(*id).ok()?, Sha256::new(*sha256).ok()?)
            }
            ["audit", namespace, layer, name] => {
                let (run, attempt) = name.rsplit_once('.')?;
                let attempt = Attempt::new(run, attempt.parse().ok()?).ok()?;
                Self::Audit(Subject::new(*namespace, *layer).ok()?, attempt)
            }
            _ => return None,
        };
        // A number can be written in several ways; only one of them is ours.
        (key.path() == path).then_some(key)
    }

    /// Everything that a run left.
    pub fn run_prefix(run_uid: &RunUid) -> String {
        format!("runs/{run_uid}")
    }

    pub fn log_prefix(attempt: &Attempt) -> String {
        format!("runs/{attempt}/log")
    }

    pub fn steps_prefix(id: &StateId) -> String {
        format!("states/{id}/steps")
    }

    pub fn audit_prefix(subject: &Subject) -> String {
        format!("audit/{}/{}", subject.namespace, subject.layer)
    }

    /// Kind, owner, attempt and name: what the ciphertext is bound to, beside its tenant.
    pub fn binding(&self) -> [String; 4] {
        let text = str::to_owned;
        match self {
            Self::Bundle(sha256) => [text("bundle"), String::new(), String::new(), sha256.to_string()],
            Self::Artefact(attempt, artefact) => {
                [text("run"), text(&attempt.run_uid), attempt.number.to_string(), text(artefact.name())]
            }
            Self::LogSegment(attempt, offset) => {
                [text("log"), text(&attempt.run_uid), attempt.number.to_string(), offset.to_string()]
            }
            Self::StateStep(id, number) => {
                [text("state-step"), text(&id.0), String::new(), number.to_string()]
            }
            Self::StateContent(id, sha256) => [text("state"), text(&id.0), String::new(), sha256.to_string()],
            Self::Audit(subject, attempt) => {
                [text("audit"), text(&attempt.run_uid), attempt.number.to_string(), text(&subject.layer)]
            }
        }
    }

    /// The most bytes that are accepted.
    pub const fn limit(&self) -> u64 {
        match self {
            Self::Bundle(_) => 2048 * MIB,
            Self::Artefact(_, Artefact::Spec | Artefact::Result) => MIB,
            Self::Artefact(_, Artefact::Plan | Artefact::PlanJson) => 512 * MIB,
            Self::Artefact(_, Artefact::PlanText | Artefact::Inputs) => 64 * MIB,
            Self::Artefact(_, Artefact::Outputs) => OUTPUTS_LIMIT,
            Self::LogSegment(_, _) | Self::StateStep(_, _) | Self::Audit(_, _) => MIB,
            Self::StateContent(_, _) => 512 * MIB,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_cannot_climb_out_of_their_place() {
        for bad in ["", "..", "a/b", "a..b", "-a", ".a", "a\0", "a b", &"x".repeat(129)] {
            assert!(Attempt::new(bad, 1).is_err(), "{bad:?}");
            assert!(StateId::new(bad).is_err() || bad.len() > 1 && bad.starts_with('x'), "{bad:?}");
        }
        let attempt = Attempt::new("0b3e-42", 3).unwrap();
        assert_eq!(Key::Artefact(attempt.clone(), Artefact::PlanJson).path(), "runs/0b3e-42/3/plan.json");
        assert_eq!(Key::LogSegment(attempt, 17).path(), "runs/0b3e-42/3/log/00000000000000000017");
    }

    #[test]
    fn a_key_is_found_by_its_path_and_nothing_else_is() {
        let attempt = Attempt::new("0b3e-42", 3).unwrap();
        let state = StateId::new("net.prod").unwrap();
        let mut keys = vec![
            Key::Bundle(Sha256::of(b"bundle")),
            Key::LogSegment(attempt.clone(), 17),
            Key::StateStep(state.clone(), 5),
            Key::StateContent(state, Sha256::of(b"state")),
            Key::Audit(Subject::new("team", "data.base").unwrap(), attempt.clone()),
        ];
        keys.extend(Artefact::ALL.map(|artefact| Key::Artefact(attempt.clone(), artefact)));
        for key in keys {
            assert_eq!(Key::from_path(&key.path()), Some(key.clone()), "{}", key.path());
        }
        for other in ["", "staging/0b", "runs/a/1/log/17", "runs/a/01/plan", "bundles/x", "states/a/steps"] {
            assert_eq!(Key::from_path(other), None, "{other}");
        }
    }

    #[test]
    fn every_artefact_is_found_by_its_name() {
        for artefact in Artefact::ALL {
            assert_eq!(artefact.name().parse(), Ok(artefact));
        }
        assert!("log".parse::<Artefact>().is_err());
    }
}
