//! What is kept of many objects in little memory: texts that are copied by their address, and moments that are no texts.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Serialize, Serializer};

/// Text that is held in several places and never changed.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Text(Arc<str>);

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

/// Texts that many objects have in common, such as a commit or the reason of a run, so that each is held once.
#[derive(Default)]
pub(crate) struct Texts {
    known: HashSet<Text>,
    /// With so many, those that nobody else holds any more are let go.
    limit: usize,
}

impl Texts {
    const FEW: usize = 1024;

    /// Puts the one that is known in the place of its like. O(1); now and then O(known texts), as seldom as they double.
    pub(crate) fn share(&mut self, text: &mut Text) {
        if let Some(known) = self.known.get(text) {
            *text = known.clone();
            return;
        }
        if self.known.len() >= self.limit {
            self.known.retain(|known| Arc::strong_count(&known.0) > 1);
            self.limit = (2 * self.known.len()).max(Self::FEW);
        }
        self.known.insert(text.clone());
    }
}

/// A moment, written as RFC 3339 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(Timestamp);

impl From<&Time> for Moment {
    fn from(time: &Time) -> Self {
        Self(time.0)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_held_once_and_let_go_when_nobody_holds_it() {
        let mut texts = Texts::default();
        let (mut first, mut second) = (Text::from("a commit"), Text::from("a commit"));
        texts.share(&mut first);
        texts.share(&mut second);
        assert!(Arc::ptr_eq(&first.0, &second.0));
        for number in 0..10 * Texts::FEW {
            texts.share(&mut Text::from(number.to_string()));
            assert!(texts.known.len() <= Texts::FEW, "{}", texts.known.len());
        }
        let mut third = Text::from("a commit");
        texts.share(&mut third);
        assert!(Arc::ptr_eq(&first.0, &third.0), "what is held stays known");
    }
}
