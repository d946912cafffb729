//! custom
