//! The front doors' loops, a folder a kind. They write repositories and layers, and copy their status back; none makes a pod.

pub(crate) mod repo;
