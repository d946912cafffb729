//! A layer that is only copied: nothing of it is planned. It is in order once it is known which variables its code declares.

use api::layer::LayerState;
use api::template::Declared;

use super::need::{Need, Standing, brief, hold, unknown};
use super::{Observed, Read};
use crate::Wake;

pub(super) fn need(seen: &Observed<'_>) -> Need {
    match seen.declared {
        Read::Present(Ok(_)) if seen.layer.spec.suspend => {
            let why = "a template that is suspended; nobody makes a stack of it until spec.suspend is false";
            hold(LayerState::Idle, "Suspended", why, Standing::Waiting, Wake::OnChange)
        }
        Read::Present(Ok(declared)) => {
            let why = match declared.len() {
                1 => "a template for stacks, with 1 variable".to_owned(),
                count => format!("a template for stacks, with {count} variables"),
            };
            hold(LayerState::Idle, "Template", why, Standing::InSync, Wake::OnChange)
        }
        Read::Present(Err(why)) => {
            let why = format!("a template whose variables cannot be read: {}", brief(why));
            hold(LayerState::Idle, "VariablesUnknown", why, Standing::Stuck, Wake::OnChange)
        }
        Read::Absent | Read::Unknown => unknown("looking at the variables of the template's code"),
    }
}

/// The variables as they are known; as they were, while they are looked for.
pub(super) fn declared(seen: &Observed<'_>, before: Vec<Declared>) -> Vec<Declared> {
    match seen.declared {
        Read::Present(Ok(found)) => found.clone(),
        Read::Present(Err(_)) => Vec::new(),
        Read::Absent | Read::Unknown => before,
    }
}
