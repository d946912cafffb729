//! The process node as a program of its own, for this crate's tests and for work on it. The product's binary offers
//! the same two entries.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("shim") => node::shim::main(args),
        _ => {
            eprintln!("usage: terrane-node shim <attempt directory>");
            ExitCode::from(2)
        }
    }
}
