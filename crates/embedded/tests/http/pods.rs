//! pods
