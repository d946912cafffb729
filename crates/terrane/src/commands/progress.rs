//! What a command waits for and for how long, on one line of a terminal's standard error. Elsewhere nothing is shown.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is drawn again.
pub(super) const TICK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    since: Instant,
    text: String,
}

impl Progress {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { shown, since: Instant::now(), text: text.into() }
    }

    pub(super) fn say(&mut self, text: impl Into<String>) {
        self.text = text.into();
        self.draw();
    }

    pub(super) fn draw(&self) {
        if self.shown {
            let mut out = std::io::stderr().lock();
            // A terminal that cannot be written to has nobody to tell.
            let _ = write!(out, "\r\x1b[K{} ({} s)", self.text, self.since.elapsed().as_secs());
            let _ = out.flush();
        }
    }

    /// Takes the line away, so that what is printed next stands alone.
    pub(super) fn clear(&self) {
        if self.shown {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[K");
            let _ = out.flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
