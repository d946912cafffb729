//! Lineage and serial of a state, read from the bytes as they stream by: states can be large, and are never held in
//! memory for two numbers. Total and linear; nesting costs nothing. The tools write both near the start, and what follows is not looked
//! at: that it arrived whole is proved by its digest, and what it means is the tools' business.

/// Longest name or value that is looked at.
const TOKEN_LIMIT: usize = 256;

/// What matters outside of strings where nothing is kept.
const STRUCTURE: [u8; 5] = *b"\"{}[]";

/// What a state file says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateFacts {
    pub(crate) lineage: Option<String>,
    pub(crate) serial: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Outside,
    Inside,
    Escaped,
}

#[derive(Debug)]
pub(crate) struct StateScan {
    depth: u64,
    text: Text,
    /// The string or number being read, when it stands at the top level.
    token: Vec<u8>,
    /// The last complete string at the top level: a name when a colon follows.
    last: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    found: StateFacts,
    is_object: bool,
    /// The last byte that is not white space.
    end: u8,
}

impl StateScan {
    pub(crate) fn new() -> Self {
        Self {
            depth: 0,
            text: Text::Outside,
            token: Vec::new(),
            last: None,
            name: None,
            found: StateFacts::default(),
            is_object: false,
            end: 0,
        }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        if let Some(end) = bytes.iter().rev().find(|byte| !byte.is_ascii_whitespace()) {
            self.end = *end;
        }
        while !self.knows_all() {
            // Nearly all of a state lies deeper than the two facts: there only what opens, closes or escapes counts.
            if self.depth > 1 {
                let skip = match self.text {
                    Text::Outside => bytes.iter().position(|byte| STRUCTURE.contains(byte)),
                    Text::Inside => memchr::memchr2(b'"', b'\\', bytes),
                    Text::Escaped => Some(0),
                };
                let Some(skip) = skip else { return };
                bytes = bytes.get(skip..).unwrap_or_default();
            }
            let Some((byte, rest)) = bytes.split_first() else { return };
            self.step(*byte);
            bytes = rest;
        }
    }

    fn knows_all(&self) -> bool {
        self.found.lineage.is_some() && self.found.serial.is_some()
    }

    /// The facts, if the whole was one JSON object as far as it was looked at.
    pub(crate) fn finish(self) -> Option<StateFacts> {
        let is_closed = (self.depth == 0 && self.text == Text::Outside) || self.knows_all();
        (self.is_object && is_closed && self.end == b'}').then_some(self.found)
    }

    fn step(&mut self, byte: u8) {
        match self.text {
            Text::Escaped => {
                self.text = Text::Inside;
                self.keep(byte);
            }
            Text::Inside => match byte {
                b'\\' => self.text = Text::Escaped,
                b'"' => {
                    self.text = Text::Outside;
                    if self.depth == 1 {
                        self.last = Some(std::mem::take(&mut self.token));
                    }
                }
                other => self.keep(other),
            },
            Text::Outside => self.outside(byte),
        }
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text = Text::Inside;
                self.token.clear();
            }
            b'{' | b'[' => {
                self.is_object |= self.depth == 0 && byte == b'{';
                self.depth = self.depth.saturating_add(1);
                self.last = None;
            }
            b'}' | b']' => {
                self.value_ended();
                self.depth = self.depth.saturating_sub(1);
            }
            b':' if self.depth == 1 => {
                self.name = self.last.take();
                self.token.clear();
            }
            b',' => self.value_ended(),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            other => self.keep(other),
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && self.token.len() < TOKEN_LIMIT {
            self.token.push(byte);
        }
    }

    fn value_ended(&mut self) {
        if self.depth != 1 {
            return;
        }
        let string = self.last.take().and_then(|bytes| String::from_utf8(bytes).ok());
        let number = std::str::from_utf8(&self.token).ok().and_then(|text| text.parse().ok());
        match self.name.take().as_deref() {
            Some(b"lineage") => self.found.lineage = string,
            Some(b"serial") => self.found.serial = number,
            Some(_) | None => {}
        }
        self.token.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Option<StateFacts> {
        let mut whole = StateScan::new();
        whole.push(text.as_bytes());
        let mut pieces = StateScan::new();
        for byte in text.as_bytes() {
            pieces.push(&[*byte]);
        }
        let found = whole.finish();
        assert_eq!(found, pieces.finish());
        found
    }

    #[test]
    fn finds_the_two_facts_wherever_they_stand() {
        let facts = Some(StateFacts { lineage: Some("a-b".to_owned()), serial: Some(7) });
        assert_eq!(scan(r#"{"version":4,"serial":7,"lineage":"a-b","outputs":{}}"#), facts);
        assert_eq!(
            scan(
                "{\n \"resources\": [{\"serial\": 99, \"x\": \"}{\\\",\"}],\n \"lineage\" : \"a-b\" , \"serial\" : 7\n}\n"
            ),
            facts
        );
        assert_eq!(scan(r#"{"outputs":{"lineage":{"value":"z"}},"lineage":"a-b","serial":7}"#), facts);
    }

    #[test]
    fn what_is_no_state_gives_nothing() {
        for bad in ["", "[]", "{", "\"lineage\"", "{\"a\": \"", "null", "{\"lineage\":\"a\",\"serial\":1,"] {
            assert_eq!(scan(bad), None, "{bad}");
        }
        assert_eq!(scan(r#"{"serial":"7","lineage":4}"#), Some(StateFacts::default()));
    }
}
