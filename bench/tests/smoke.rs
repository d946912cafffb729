//! Every measure of the embedded API can be taken: tiny numbers, a server in a process of its own.

use std::process::Command;

#[test]
fn every_measure_of_the_embedded_api_is_taken() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).arg("smoke").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    for figure in ["creates_per_second", "start", "resident_bytes", "page_p95", "event_p99"] {
        assert!(told.contains(figure), "{figure} is missing in\n{told}");
    }
    assert!(!told.contains("creates_per_second: 0.0,"), "{told}");
}
