//! The object store: an append-only SQLite log, a snapshot in memory, and the log that watches read.
