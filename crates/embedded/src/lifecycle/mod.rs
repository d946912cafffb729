//! What a cluster does by itself: garbage collection, namespaces, default service accounts.
