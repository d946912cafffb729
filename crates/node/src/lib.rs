//! The process node.
