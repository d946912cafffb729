//! Kubernetes quantities (`250m`, `1Gi`, `1e3`) as exact numbers, for resource fields and the quality-of-service class.

/// A quantity in billionths, the smallest unit that Kubernetes keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const ONE: i128 = 1_000_000_000;

impl Quantity {
    pub const ZERO: Quantity = Quantity(0);

    pub fn whole(value: u64) -> Quantity {
        Quantity(i128::from(value).saturating_mul(ONE))
    }

    /// `None` for what is no quantity.
    pub fn parse(text: &str) -> Option<Quantity> {
        let split =
            text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(split)?;
        let (numerator, denominator) = scale(suffix)?;
        let negative = number.starts_with('-');
        let digits = number.trim_start_matches(['+', '-']);
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if integer.is_empty() && fraction.is_empty() {
            return None;
        }
        let mut value: i128 = 0;
        let mut divisor = denominator;
        for digit in integer.chars().chain(fraction.chars()) {
            value = value.checked_mul(10)?.checked_add(i128::from(digit.to_digit(10)?))?;
        }
        for _ in fraction.chars() {
            divisor = divisor.checked_mul(10)?;
        }
        let scaled = value.checked_mul(numerator)?.checked_mul(ONE)?;
        // What is finer than the smallest unit is rounded up, as Kubernetes does.
        let rounded = scaled.checked_add(divisor - 1)?.checked_div(divisor)?;
        Some(Quantity(if negative { -rounded } else { rounded }))
    }

    /// How often `divisor` goes into it, rounded up. `None` for a divisor of zero.
    pub fn divide_up(self, divisor: Quantity) -> Option<i128> {
        let negative_or_whole = self.0.checked_div_euclid(divisor.0)?;
        let rest = self.0.checked_rem_euclid(divisor.0)?;
        Some(if rest > 0 { negative_or_whole + 1 } else { negative_or_whole })
    }
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| 1024_i128.checked_pow(power).map(|n| (n, 1));
    let decimal = |power: u32| 10_i128.checked_pow(power).map(|n| (n, 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let scale = 10_i128.checked_pow(power.unsigned_abs())?;
            Some(if power < 0 { (1, scale) } else { (scale, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("2", Some(2 * ONE)),
            ("250m", Some(ONE / 4)),
            ("1.5", Some(ONE + ONE / 2)),
            ("1Gi", Some((1 << 30) * ONE)),
            ("0.5Ki", Some(512 * ONE)),
            ("1e3", Some(1000 * ONE)),
            ("12E", Some(12 * 10_i128.pow(18) * ONE)),
            ("5E-3", Some(5 * ONE / 1000)),
            ("-1", Some(-ONE)),
            ("1ki", None),
            ("", None),
            ("m", None),
            ("1..2", None),
        ] {
            assert_eq!(Quantity::parse(text), expected.map(Quantity), "{text}");
        }
    }

    #[test]
    fn division_rounds_up() {
        let of = |a: &str, b: &str| Quantity::parse(a).unwrap().divide_up(Quantity::parse(b).unwrap());
        assert_eq!(of("250m", "1"), Some(1));
        assert_eq!(of("1500m", "1m"), Some(1500));
        assert_eq!(of("64Mi", "1Mi"), Some(64));
        assert_eq!(of("65Mi", "1Gi"), Some(1));
        assert_eq!(of("1", "0"), None);
    }
}
