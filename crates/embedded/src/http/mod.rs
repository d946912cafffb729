//! The Kubernetes API over HTTP: paths, verbs, lists, watches, discovery, errors.
