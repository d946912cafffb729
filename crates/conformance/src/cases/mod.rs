//! Every case, by subject.

mod applying;
mod deleting;
mod discovery;
mod lists;
mod namespaces;
mod objects;
mod writing;
mod watches;

use crate::Case;

/// All cases, in the order of the subjects.
pub fn all() -> Vec<Case> {
    [discovery::CASES, objects::CASES, namespaces::CASES, lists::CASES, watches::CASES, writing::CASES, applying::CASES, deleting::CASES]
        .concat()
}
