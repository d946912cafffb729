//! The bytes of an object, which take little memory once nobody has changed it for a while. Objects of a collection are much alike: one of
//! them is the pattern that the others are written down against. Reading is the same, and some microseconds slower.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::thread;

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::object::{Collection, Stored};

/// Below this there is nothing to gain.
const WORTHWHILE: usize = 512;

pub(super) struct Body(RwLock<Form>);

enum Form {
    Plain(Bytes),
    Packed { deflated: Box<[u8]>, length: usize, pattern: Arc<Bytes> },
}

impl Body {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(RwLock::new(Form::Plain(bytes)))
    }

    pub(super) fn bytes(&self) -> Bytes {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Form::Plain(bytes) => bytes.clone(),
            // What is packed was unpacked once to see that it can be.
            Form::Packed { deflated, length, pattern } => {
                inflate(deflated, *length, pattern).unwrap_or_default().into()
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Form::Plain(bytes) => bytes.len(),
            Form::Packed { length, .. } => *length,
        }
    }

    fn plain(&self) -> Option<Bytes> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Form::Plain(bytes) => Some(bytes.clone()),
            Form::Packed { .. } => None,
        }
    }

    fn set(&self, form: Form) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = form;
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        Self::new(self.bytes())
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Body {}

/// Has objects packed by a thread of its own, so that no write waits for it. The thread ends with this.
#[derive(Debug)]
pub(super) struct Packer(Sender<Vec<Weak<Stored>>>);

impl Packer {
    pub(super) fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel::<Vec<Weak<Stored>>>();
        thread::Builder::new().name("store-packer".into()).spawn(move || {
            let mut press = None;
            for object in receiver.iter().flatten().filter_map(|quiet| quiet.upgrade()) {
                press.get_or_insert_with(Press::default).pack(&object);
            }
        })?;
        Ok(Self(sender))
    }

    /// Has these packed soon; what is gone by then costs nothing.
    pub(super) fn pack(&self, objects: Vec<Weak<Stored>>) {
        if !objects.is_empty() {
            // Without the thread everything still works, in more memory.
            let _ = self.0.send(objects);
        }
    }
}

/// Packs objects, and knows the pattern of each collection.
struct Press {
    deflate: Compress,
    patterns: HashMap<Collection, Arc<Bytes>>,
}

impl Default for Press {
    fn default() -> Self {
        Self { deflate: Compress::new(Compression::default(), false), patterns: HashMap::new() }
    }
}

impl Press {
    /// Makes an object smaller for all who hold it. One that is not much like its pattern is the next one's pattern.
    fn pack(&mut self, object: &Stored) {
        let Some(bytes) = object.body.plain().filter(|bytes| bytes.len() >= WORTHWHILE) else { return };
        let pattern = self.patterns.get(&object.key.collection);
        let packed = pattern.and_then(|pattern| {
            let deflated = deflate(&mut self.deflate, &bytes, pattern)?;
            let returns = inflate(&deflated, bytes.len(), pattern).is_some_and(|again| bytes == again);
            (returns && deflated.len() <= bytes.len() / 2).then(|| (deflated, Arc::clone(pattern)))
        });
        match packed {
            Some((deflated, pattern)) => {
                object.body.set(Form::Packed { deflated: deflated.into(), length: bytes.len(), pattern });
            }
            None => drop(self.patterns.insert(object.key.collection.clone(), Arc::new(bytes))),
        }
    }
}

fn deflate(deflate: &mut Compress, bytes: &[u8], pattern: &[u8]) -> Option<Vec<u8>> {
    deflate.reset();
    deflate.set_dictionary(pattern).ok()?;
    // It may take no more than half; with less room it ends without success, which is the answer too.
    let mut deflated = Vec::with_capacity(bytes.len() / 2 + 1);
    let end = deflate.compress_vec(bytes, &mut deflated, FlushCompress::Finish).ok()?;
    (end == flate2::Status::StreamEnd).then_some(deflated)
}

fn inflate(deflated: &[u8], length: usize, pattern: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(false));
    }
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(false);
        inflate.set_dictionary(pattern).ok()?;
        let mut bytes = Vec::with_capacity(length);
        let end = inflate.decompress_vec(deflated, &mut bytes, FlushDecompress::Finish).ok()?;
        (end == flate2::Status::StreamEnd && bytes.len() == length).then_some(bytes)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::super::fields::IndexedFields;
    use super::super::object::{Key, Op, Prepared};
    use super::*;

    fn stored(plural: &str, object: Value) -> Stored {
        let key = Key::new(Collection::new("terrane.dev", plural), "default", "a");
        Prepared::new(Op::Create { key: key.clone(), object }, &IndexedFields::default())
            .unwrap()
            .stored_at(key, 1)
    }

    fn run(number: usize) -> Value {
        let conditions: Vec<Value> = [
            "HasStatus",
            "HasSucceeded",
            "IsRunning",
            "HasReachedRetryLimit",
            "Ready",
        ]
        .map(|kind| json!({"type": kind, "status": "True", "reason": "Planned", "message": "no changes"}))
        .into();
        json!({"metadata": {"name": format!("run-{number}"), "uid": format!("{number:032x}")}, "status": {"conditions": conditions}})
    }

    fn is_packed(object: &Stored) -> bool {
        object.body.plain().is_none()
    }

    #[test]
    fn what_is_like_its_pattern_takes_a_fraction_and_reads_the_same() {
        let mut press = Press::default();
        let (first, second) = (stored("terraformruns", run(1)), stored("terraformruns", run(2)));
        let before = second.bytes();
        press.pack(&first);
        press.pack(&second);
        assert!(!is_packed(&first), "the first one is the pattern");
        let deflated = match &*second.body.0.read().unwrap() {
            Form::Packed { deflated, .. } => deflated.len(),
            Form::Plain(_) => usize::MAX,
        };
        assert!(deflated * 5 < before.len(), "{deflated} of {}", before.len());
        assert_eq!((second.bytes(), second.body.len()), (before.clone(), before.len()));
        assert_eq!(second.clone().bytes(), before);
        press.pack(&second);
        assert_eq!(second.bytes(), before, "once is enough");
    }

    #[test]
    fn what_is_small_or_unlike_stays_as_it_is_and_every_collection_has_its_pattern() {
        let mut press = Press::default();
        let small = stored("terraformruns", json!({"metadata": {"name": "x"}}));
        press.pack(&small);
        assert!(press.patterns.is_empty());
        press.pack(&stored("terraformruns", run(1)));
        let other = stored("terraformlayers", run(2));
        press.pack(&other);
        assert!(!is_packed(&other) && press.patterns.len() == 2);

        // Neither like its pattern nor like itself.
        let mut state = 1_u64;
        let noise: String = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b' ' + 2 + u8::try_from(state >> 58).unwrap())
        })
        .take(4000)
        .collect();
        let noisy = stored("terraformruns", json!({"data": noise}));
        let before = noisy.bytes();
        press.pack(&noisy);
        assert!(!is_packed(&noisy));
        assert_eq!(noisy.bytes(), before);
        let again = stored("terraformruns", json!({"data": noise}));
        press.pack(&again);
        assert!(is_packed(&again), "the noise is the pattern now");
        assert_eq!(again.bytes(), before);
    }
}
