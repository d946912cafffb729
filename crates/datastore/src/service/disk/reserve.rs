//! Room that is kept for the day when the disk is full: an allocated file that is cut down as far as a write needs it that must not be
//! refused, and allocated again when there is room. Other programs can fill the disk at any moment; this much they cannot take.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use object_store::Extensions;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::own_file;
use crate::key::{Artefact, Key};

const NAME: &str = "reserve#0";
const LARGEST: u64 = 32 * 1024 * 1024;
const SMALLEST: u64 = 256 * 1024;
/// Beside the bytes themselves a write needs directories, and a log.
const SLACK: u64 = 256 * 1024;

/// What becomes of a write when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Need {
    /// It is refused, and can be made again: nothing has changed in the world.
    Refusable,
    /// It is the record of what was done to real infrastructure.
    Essential,
}

impl Need {
    pub(in super::super) fn of(key: &Key) -> Self {
        match key {
            Key::StateStep(_, _) | Key::StateContent(_, _) | Key::Artefact(_, Artefact::Result) => {
                Self::Essential
            }
            // Without room for these nothing begins, which is as well. A log has no end that could be planned for.
            Key::Bundle(_)
            | Key::Artefact(_, Artefact::Spec | Artefact::Plan | Artefact::PlanJson | Artefact::PlanText)
            | Key::LogSegment(_, _)
            | Key::Audit(_, _) => Self::Refusable,
        }
    }

    /// Stores that know nothing of it ignore it.
    pub(in super::super) fn mark(self, extensions: &mut Extensions) {
        extensions.insert(self);
    }

    pub(super) fn marked(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or(Self::Refusable)
    }
}

pub(super) struct Reserve {
    root: PathBuf,
    /// How much it should hold.
    whole: u64,
    held: Mutex<Held>,
}

struct Held {
    /// None where the file system cannot allocate.
    file: Option<File>,
    size: u64,
}

impl Reserve {
    /// A reserve on a file system of so many bytes. What cannot be had is done without.
    pub(super) fn open(root: &Path, disk: u64) -> Self {
        let whole = (disk / 32).clamp(SMALLEST, LARGEST);
        let held = match own_file(root, NAME).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((size, file)) => Held { file: Some(file), size },
            Err(error) => {
                tracing::warn!(%error, place = %root.display(), "no room can be kept for when the disk is full");
                Held { file: None, size: 0 }
            }
        };
        let reserve = Self { root: root.to_owned(), whole, held: Mutex::new(held) };
        reserve.refill();
        reserve
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> Option<u64> {
        statvfs(&self.root).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Makes room for a write of `size` bytes that must not be refused.
    pub(super) fn prepare(&self, need: Need, size: usize) {
        match need {
            Need::Refusable => return,
            Need::Essential => {}
        }
        let wanted = u64::try_from(size).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(SLACK);
        let Some(missing) = self.free().and_then(|free| wanted.checked_sub(free)) else { return };
        let mut held = self.held();
        let left = held.size.saturating_sub(missing);
        let Some(file) = &held.file else { return };
        match file.set_len(left) {
            Ok(()) => held.size = left,
            Err(error) => tracing::error!(%error, "the room that was kept could not be given up"),
        }
    }

    /// Takes back what was given up, once there is ample room.
    pub(super) fn refill(&self) {
        let mut held = self.held();
        let missing = self.whole.saturating_sub(held.size);
        if missing == 0 {
            return;
        }
        let is_ample = self.free().is_some_and(|free| free > self.whole.saturating_mul(2));
        let Some(file) = held.file.as_ref().filter(|_| is_ample) else { return };
        match fallocate(file, FallocateFlags::empty(), held.size, missing) {
            Ok(()) => held.size = self.whole,
            Err(rustix::io::Errno::OPNOTSUPP) => held.file = None,
            // Another took the room first. What was allocated of it counts.
            Err(_) => held.size = file.metadata().map_or(held.size, |found| found.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn room_is_given_up_for_what_must_not_be_refused_only_and_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(directory.path(), u64::from(u32::MAX));
        let size = || directory.path().join(NAME).metadata().unwrap().len();
        assert_eq!(size(), LARGEST);
        let more_than_there_is = usize::try_from(reserve.free().unwrap()).unwrap();
        reserve.prepare(Need::Refusable, more_than_there_is);
        reserve.prepare(Need::Essential, 1000);
        assert_eq!(size(), LARGEST, "nothing is given up without need");
        reserve.prepare(Need::Essential, more_than_there_is);
        assert_eq!(size(), 0);
        reserve.refill();
        assert_eq!(size(), LARGEST);
    }
}
