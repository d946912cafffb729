//! How long to wait after a failure.

use std::time::Duration;

/// Exponential: `first`, twice that, and so on up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub first: Duration,
    pub max: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { first: Duration::from_secs(15), max: Duration::from_secs(15 * 60) }
    }
}

impl Policy {
    /// The pause after the `failures`-th failure in a row (from 1).
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(32);
        self.first.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(self.max)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::later;

    #[test]
    fn doubles_up_to_the_maximum() {
        let policy = Policy { first: Duration::from_secs(10), max: Duration::from_secs(60) };
        let pauses: Vec<u64> = (0..6).map(|n| policy.pause(n).as_secs()).collect();
        assert_eq!(pauses, [10, 10, 20, 40, 60, 60]);
    }

    proptest! {
        #[test]
        fn never_shrinks_and_never_exceeds_the_maximum(first in 1_u64..1000, max in 1000_u64..100_000, n in 0_u32..u32::MAX) {
            let policy = Policy { first: Duration::from_secs(first), max: Duration::from_secs(max) };
            prop_assert!(policy.pause(n) <= policy.pause(n.saturating_add(1)));
            prop_assert!(policy.pause(n) <= policy.max);
        }

        /// Whatever a clock says and however long the pauses are, at both ends of time too.
        #[test]
        fn the_next_try_is_never_before_now_nor_after_the_longest_pause(
            first in any::<Duration>(), max in any::<Duration>(), failures in any::<u32>(),
            now in Timestamp::MIN.as_second()..=Timestamp::MAX.as_second(),
        ) {
            let (policy, now) = (Policy { first, max }, Timestamp::from_second(now).unwrap());
            let next = later(now, policy.pause(failures));
            prop_assert!(next >= now);
            prop_assert!(Duration::try_from(next.duration_since(now)).unwrap() <= max);
            prop_assert!(next <= later(now, policy.pause(failures.saturating_add(1))));
        }
    }
}
