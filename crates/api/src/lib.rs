//! The resource types.
