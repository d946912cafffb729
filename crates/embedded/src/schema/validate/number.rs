//! Numbers against their bounds. An integer is compared as an integer, with the bound cut to one, as kube-apiserver does.

use serde_json::{Number, Value};

use crate::schema::node::{Node, Type};
use crate::schema::wording;

use super::format::Format;
use super::values::Run;

#[derive(Clone, Copy)]
enum Held {
    Integer(i64),
    Float(f64),
}

impl Held {
    fn of(number: &Number) -> Self {
        match number.as_i64() {
            Some(integer) => Held::Integer(integer),
            None => Held::Float(number.as_f64().unwrap_or_default()),
        }
    }

    fn as_float(self) -> f64 {
        match self {
            Held::Integer(integer) => integer as f64,
            Held::Float(float) => float,
        }
    }

    fn value(self) -> Value {
        match self {
            Held::Integer(integer) => Value::from(integer),
            Held::Float(float) => Value::from(float),
        }
    }
}

pub(super) fn check(run: &mut Run<'_>, node: &Node, format: Option<Format<'_>>, number: &Number) {
    let held = Held::of(number);
    let kind = if node.int_or_string { None } else { node.kind };
    let range = Range { kind, format: format.map(|format| format.name) };
    if let Some(complaint) = range.complaint(held, "Checked", &run.path) {
        run.pathless(complaint);
    }
    if let Some(factor) = node.multiple_of {
        let held = range.admit(run, factor, "MultipleOf", held);
        multiple(run, held, factor);
    }
    if let Some(minimum) = node.minimum {
        let held = range.admit(run, minimum, "Minimum boundary", held);
        let bound = match held {
            Held::Integer(_) => Held::Integer(minimum as i64),
            Held::Float(_) => Held::Float(minimum),
        };
        let below = match (held, bound) {
            (Held::Integer(held), Held::Integer(bound)) => {
                held < bound || (node.exclusive_minimum && held == bound)
            }
            (held, bound) => {
                held.as_float() < bound.as_float()
                    || (node.exclusive_minimum && held.as_float() == bound.as_float())
            }
        };
        if below {
            let relation = if node.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            run.invalid(held.value(), format!("{} in body should be {relation} {}", run.path, shown(bound)));
        }
    }
    if let Some(maximum) = node.maximum {
        let held = range.admit(run, maximum, "Maximum boundary", held);
        let bound = match held {
            Held::Integer(_) => Held::Integer(maximum as i64),
            Held::Float(_) => Held::Float(maximum),
        };
        let above = match (held, bound) {
            (Held::Integer(held), Held::Integer(bound)) => {
                held > bound || (node.exclusive_maximum && held == bound)
            }
            (held, bound) => {
                held.as_float() > bound.as_float()
                    || (node.exclusive_maximum && held.as_float() == bound.as_float())
            }
        };
        if above {
            let relation = if node.exclusive_maximum { "less than" } else { "less than or equal to" };
            run.invalid(held.value(), format!("{} in body should be {relation} {}", run.path, shown(bound)));
        }
    }
}

fn shown(held: Held) -> String {
    match held {
        Held::Integer(integer) => integer.to_string(),
        Held::Float(float) => wording::float(float),
    }
}

fn multiple(run: &mut Run<'_>, held: Held, factor: f64) {
    let (factor, whole) = match held {
        Held::Integer(integer) => {
            let factor = factor as i64;
            (Held::Integer(factor), integer.checked_rem(factor) == Some(0))
        }
        Held::Float(float) => {
            let ratio = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
            (Held::Float(factor), is_integral(ratio))
        }
    };
    let shown_factor = shown(factor);
    if factor.as_float() <= 0.0 {
        let detail = format!("factor MultipleOf declared for {} must be positive: {shown_factor}", run.path);
        run.invalid(factor.value(), detail);
    } else if !whole {
        run.invalid(held.value(), format!("{} in body should be a multiple of {shown_factor}", run.path));
    }
}

/// Whether a floating-point number is, but for the last bits, a whole number that JSON carries exactly.
pub(super) fn is_integral(float: f64) -> bool {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > LARGEST {
        return false;
    }
    let rounded = float.trunc();
    if float == rounded {
        return true;
    }
    let difference = (float - rounded).abs();
    difference / (float.abs() + rounded.abs()) < 1e-9
}

/// What numbers a type and a format hold.
struct Range<'a> {
    kind: Option<Type>,
    format: Option<&'a str>,
}

impl Range<'_> {
    /// The value as it is compared with a bound: natively if the bound itself fits the type, as a float (and with a complaint)
    /// if it does not.
    fn admit(&self, run: &mut Run<'_>, bound: f64, role: &str, held: Held) -> Held {
        match self.complaint(Held::Float(bound), role, &run.path) {
            None => held,
            Some(complaint) => {
                run.pathless(complaint);
                Held::Float(held.as_float())
            }
        }
    }

    fn complaint(&self, held: Held, role: &str, path: &str) -> Option<String> {
        let integer = match held {
            Held::Integer(integer) => Some(integer),
            Held::Float(float) if float.trunc() == float && float.abs() < 9.2e18 => Some(float as i64),
            Held::Float(_) => None,
        };
        let (fits, type_name) = match (self.kind, self.format) {
            (Some(Type::Integer), Some("int32")) => {
                (integer.is_some_and(|i| i32::try_from(i).is_ok()), "integer")
            }
            (Some(Type::Integer), _) => (integer.is_some(), "integer"),
            (_, Some("float")) => (held.as_float().abs() <= f64::from(f32::MAX), "number"),
            (_, _) => (true, ""),
        };
        match (fits, self.format) {
            (true, _) => None,
            (false, Some(format)) => {
                Some(format!("{role} value must be of type {type_name} with format {format} in {path}"))
            }
            (false, None) => {
                Some(format!("{role} value must be of type {type_name} (default format) in {path}"))
            }
        }
    }
}
