//! watches
