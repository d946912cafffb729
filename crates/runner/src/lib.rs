//! One attempt.
