//! `cargo xtask`: what a developer runs beside the compiler.
fn main() {}
