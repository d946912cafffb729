//! Server-side apply: who owns which field.
