//! What may be asked of a repository or a registry, and what the answers are. Nothing here asks.

use api::template::Declared;
use api::text::{CommitId, ImageDigest, Sha256};
use engine::image;
use engine::repository::Look;
use jiff::Timestamp;
use sources::{Interest, Module};

use super::{Branch, Followed, ImageAt, Place};

/// Whose questions wait for each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Repository(Place),
    Registry { namespace: String, host: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// Which commits do the branches point to?
    Heads(Place),
    /// Which commit last mattered to a layer, seen from that head?
    Relevant { branch: Branch, head: CommitId, interest: Interest },
    /// Does a branch that moved from `before` to `head` still hold what it held?
    GoesOn { place: Place, before: CommitId, head: CommitId },
    /// Where are the files of this commit?
    Bundle { place: Place, commit: CommitId },
    /// Which variables does a module declare?
    Declared { place: Place, commit: CommitId, module: Module },
    /// Which image is the one that a layer follows?
    Image(Followed),
    /// Where are the layers of this image?
    ImageBundle { at: ImageAt, digest: ImageDigest },
}

impl Question {
    pub(super) fn whose(&self) -> Whose {
        match self {
            Self::Heads(place)
            | Self::Relevant { branch: Branch { place, .. }, .. }
            | Self::GoesOn { place, .. }
            | Self::Bundle { place, .. }
            | Self::Declared { place, .. } => Whose::Repository(place.clone()),
            Self::Image(Followed { at, .. }) | Self::ImageBundle { at, .. } => {
                Whose::Registry { namespace: at.namespace.clone(), host: at.place.host.clone() }
            }
        }
    }

    /// Whether its answer is a look at the world, which only another look replaces.
    pub(super) fn is_look(&self) -> bool {
        matches!(self, Self::Heads(_) | Self::Image(_))
    }
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Heads(Look),
    Relevant(CommitId),
    GoesOn(bool),
    /// It was there at that time.
    Bundle {
        sha256: Sha256,
        at: Timestamp,
    },
    Declared(Vec<Declared>),
    Image(image::Look),
    /// In words for the status, and until when nobody asks again.
    Failed {
        why: String,
        until: Timestamp,
    },
}

impl Answer {
    pub(super) fn heads(&self) -> Option<&Look> {
        match self {
            Self::Heads(look) => Some(look),
            Self::Relevant(_)
            | Self::GoesOn(_)
            | Self::Bundle { .. }
            | Self::Declared(_)
            | Self::Image(_)
            | Self::Failed { .. } => None,
        }
    }
}
