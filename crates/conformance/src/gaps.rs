//! What the embedded API does not do as kube-apiserver does, and why. Checked both ways: a gap that closes must go.

/// A case that fails on the embedded API.
#[derive(Debug, Clone, Copy)]
pub struct Gap {
    /// The name of the case.
    pub case: &'static str,
    /// Why it differs, in one sentence.
    pub why: &'static str,
}

/// Every difference that is known. docs/conformance.md has the same rows.
pub const KNOWN_GAPS: &[Gap] = &[];
