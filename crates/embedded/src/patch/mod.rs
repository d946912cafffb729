//! JSON patch, merge patch and strategic merge patch, as pure functions on JSON values.
