//! Artefacts.
