//! The one answer to "may they?": members of `system:masters` always, everyone else by RBAC.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::identity::MASTERS_GROUP;
use super::index::Index;
use super::{Attributes, Identity, Refusal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `reason` names the binding; it is empty for the administrator.
    Allowed { reason: Arc<str> },
    /// `reason` is empty unless a binding names a role that does not exist.
    Denied { reason: String },
}

impl Verdict {
    pub fn is_allowed(&self) -> bool {
        match self {
            Verdict::Allowed { .. } => true,
            Verdict::Denied { .. } => false,
        }
    }
}

#[derive(Debug, Default)]
pub struct Authorizer {
    index: ArcSwap<Index>,
}

impl Authorizer {
    /// An authorizer of rights that do not change.
    pub fn fixed(index: Index) -> Self {
        Authorizer { index: ArcSwap::from_pointee(index) }
    }

    pub fn index(&self) -> Arc<Index> {
        self.index.load_full()
    }

    /// O(rules of the subject); allocates only to say no.
    pub fn check(&self, identity: &Identity, attributes: &Attributes<'_>) -> Verdict {
        if identity.is_in(MASTERS_GROUP) {
            return Verdict::Allowed { reason: "".into() };
        }
        self.index().check(identity, attributes)
    }

    /// As `check`, for a caller that only wants to go on or to answer with the refusal.
    pub fn require(&self, identity: &Identity, attributes: &Attributes<'_>) -> Result<(), Refusal> {
        match self.check(identity, attributes) {
            Verdict::Allowed { .. } => Ok(()),
            Verdict::Denied { reason } => Err(Refusal::forbidden(identity, attributes, &reason)),
        }
    }
}
