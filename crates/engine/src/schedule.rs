//! How regular work of many objects is spread over time.

use std::time::Duration;

/// The share of an interval that is added at most.
const JITTER: f64 = 0.1;

/// A number from 0 to 1 that an object keeps for life, spread evenly over many: the first digits of its uid.
pub fn share(uid: &str) -> f64 {
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(4).collect();
    f64::from(u16::from_str_radix(&digits, 16).unwrap_or_default()) / f64::from(u16::MAX)
}

/// The interval, longer by the object's share of a tenth.
pub fn jittered(interval: Duration, share: f64) -> Duration {
    let added = interval.as_secs_f64() * JITTER * share.clamp(0.0, 1.0);
    interval.saturating_add(Duration::try_from_secs_f64(added).unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::later;

    #[test]
    fn an_object_keeps_its_share_and_two_differ() {
        assert_eq!(share("ffff0000-1"), 1.0);
        assert_eq!(share("0000ffff-1"), 0.0);
        assert!(share("80001111-2").total_cmp(&share("40001111-2")).is_gt());
        assert_eq!(share(""), 0.0);
    }

    proptest! {
        #[test]
        fn an_interval_grows_by_a_tenth_at_most(secs in 1_u64..10_000_000, uid in ".*") {
            let interval = Duration::from_secs(secs);
            let spread = jittered(interval, share(&uid));
            prop_assert!(interval <= spread && spread <= interval.mul_f64(1.100_001));
        }

        /// Whatever a clock says and however long the interval is, at both ends of time too.
        #[test]
        fn what_is_due_regularly_is_due_no_earlier_than_its_interval(
            interval in any::<Duration>(), share in any::<f64>(),
            last in Timestamp::MIN.as_second()..=Timestamp::MAX.as_second(),
        ) {
            let spread = jittered(interval, share);
            prop_assert!(spread >= interval);
            let last = Timestamp::from_second(last).unwrap();
            prop_assert!(later(last, spread) >= later(last, interval) && later(last, interval) >= last);
        }
    }
}
