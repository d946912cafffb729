//! Every case, by subject.

mod applying;
mod definitions;
mod deleting;
mod discovery;
mod identity;
mod lists;
mod namespaces;
mod objects;
mod terrane;
mod watches;
mod writing;

use crate::Case;

/// All cases, in the order of the subjects.
pub fn all() -> Vec<Case> {
    [
        discovery::CASES,
        objects::CASES,
        namespaces::CASES,
        lists::CASES,
        watches::CASES,
        writing::CASES,
        applying::CASES,
        deleting::CASES,
        definitions::CASES,
        identity::CASES,
        terrane::CASES,
    ]
    .concat()
}
