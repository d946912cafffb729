//! What is counted about deliveries, for Prometheus. No label holds the name of an object.

use std::sync::Arc;

use forge::Host;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::Refusal;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Written down, and answered after that.
    Recorded,
    /// An earlier one that was written down stands for it.
    Covered,
    /// All that it says had been seen already.
    Known,
    /// Of another event or repository.
    Ignored,
    /// Not believed.
    Refused,
    /// Believed, or not even that, but not what a host sends.
    Malformed,
    TooLarge,
    TooSlow,
    TooOften,
    /// The API could not be asked.
    Unavailable,
}

impl Outcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Covered => "covered",
            Self::Known => "known",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::TooSlow => "too_slow",
            Self::TooOften => "too_often",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Outcome {
    /// Of several repositories that a delivery is for, the one with the highest rank is told.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Recorded => 3,
            Self::Covered => 2,
            Self::Known => 1,
            Self::Ignored
            | Self::Refused
            | Self::Malformed
            | Self::TooLarge
            | Self::TooSlow
            | Self::TooOften
            | Self::Unavailable => 0,
        }
    }
}

impl From<&Refusal> for Outcome {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Unauthenticated(_) | Refusal::Forbidden(_) | Refusal::NotFound(_) => Self::Refused,
            Refusal::TooLarge(_) => Self::TooLarge,
            Refusal::TooSlow(_) => Self::TooSlow,
            Refusal::TooOften { .. } => Self::TooOften,
            Refusal::Unavailable(_) => Self::Unavailable,
            Refusal::MethodNotAllowed(_)
            | Refusal::Conflict(_)
            | Refusal::Outdated(_)
            | Refusal::BadRequest(_)
            | Refusal::WrongType(_)
            | Refusal::Invalid(_)
            | Refusal::Faulty { .. } => Self::Malformed,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    host: &'static str,
    outcome: &'static str,
}

/// Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Deliveries {
    registry: Arc<Registry>,
    counts: Family<Labels, Counter>,
}

impl Default for Deliveries {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("terrane");
        let counts = Family::default();
        let help = "Deliveries of webhooks, by the kind of Git host and by what became of them";
        registry.register("webhook_deliveries", help, counts.clone());
        // There from the start, at 0: of a series that begins at 1 Prometheus sees no increase.
        for host in Host::ALL {
            for outcome in [Outcome::Recorded, Outcome::Refused, Outcome::Unavailable] {
                drop(counts.get_or_create(&Labels { host: host.as_str(), outcome: outcome.as_str() }));
            }
        }
        Self { registry: Arc::new(registry), counts }
    }
}

impl Deliveries {
    pub(crate) fn count(&self, host: Host, outcome: Outcome) {
        self.counts.get_or_create(&Labels { host: host.as_str(), outcome: outcome.as_str() }).inc();
    }

    /// In the format of OpenMetrics, to be followed by what else a process tells: the mark of the end is not there.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode_registry(&mut text, &self.registry);
        text
    }
}
