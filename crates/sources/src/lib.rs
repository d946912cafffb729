//! Git.
