//! deletion
