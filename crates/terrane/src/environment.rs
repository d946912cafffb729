//! The one place that reads the environment, beside clap's own `env` of flags.
#![expect(clippy::disallowed_methods, reason = "this is the place")]

use std::ffi::OsString;
use std::path::PathBuf;

/// Where programs are looked for.
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// A variable that names a place.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

pub(crate) fn all() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// People who do not want colour say so with `NO_COLOR`.
pub(crate) fn wants_no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some()
}

/// What is text of it, for libraries that look for their own names.
pub(crate) fn texts() -> impl Iterator<Item = (String, String)> {
    all().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
