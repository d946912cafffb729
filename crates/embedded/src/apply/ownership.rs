//! How a write moves ownership: conflicts, what is taken from whom, and what an applier lets go of.

use jiff::Timestamp;
use serde_json::Value;

use super::collect::fields_of;
use super::compare::{Comparison, compare};
use super::error::{Conflict, Conflicts};
use super::managed::{Entry, Id, Managed};
use super::merge::{Leftover, merge, remove};
use super::path::same;
use super::place::Place;
use super::set::FieldSet;
use super::validate::Faults;
use super::{OnConflict, STRIPPED};

/// What a manager does in one write.
pub(super) struct Act<'a> {
    pub(super) place: &'a Place<'a>,
    pub(super) api_version: &'a str,
    /// Fields that this endpoint resets, and that are not owned by writing to it.
    pub(super) reset: &'a FieldSet,
    pub(super) now: Timestamp,
}

pub(super) enum Refused {
    Conflicts(Owned),
    Faults(Faults),
}

/// What others own of the fields a write would change.
pub(super) struct Owned(pub(super) Vec<(Id, FieldSet)>);

impl From<Faults> for Refused {
    fn from(faults: Faults) -> Self {
        Refused::Faults(faults)
    }
}

impl Owned {
    pub(super) fn conflicts(&self) -> Conflicts {
        let of = |(id, set): &(Id, FieldSet)| {
            let owner = id.describe();
            set.paths()
                .into_iter()
                .map(move |path| Conflict { owner: owner.clone(), path })
                .collect::<Vec<_>>()
        };
        Conflicts(self.0.iter().flat_map(of).collect())
    }

    /// Without the fields of a set.
    pub(super) fn except(&self, allowed: &FieldSet) -> Owned {
        let rest = self.0.iter().map(|(id, set)| (id.clone(), set.difference(allowed)));
        Owned(rest.filter(|(_, set)| !set.is_empty()).collect())
    }
}

impl Act<'_> {
    /// Lays `config` over `live`, and takes out what this applier applied before and nobody wants any more. The object is
    /// `None` if it would not change.
    pub(super) fn apply(
        &self,
        live: &Value,
        config: &Value,
        mut managed: Managed,
        applier: &Id,
        on_conflict: OnConflict,
    ) -> Result<(Option<Value>, Managed), Refused> {
        self.follow_schema(&mut managed);
        let merged = merge(self.place, live, config)?;
        let before = managed.0.remove(applier);
        let set = fields_of(self.place, config).difference_below(self.reset);
        let time = before.as_ref().and_then(|entry| entry.time);
        let entry = Entry { set, api_version: self.api_version.to_owned(), time };
        managed.0.insert(applier.clone(), entry);
        let merged = match before {
            Some(before) => self.prune(&merged, &managed, &before.set),
            None => merged,
        };
        let comparison = compare(self.place, live, &merged)?.without(self.reset);
        self.take_from_others(&mut managed, Some(applier), &comparison, on_conflict)?;
        let changed = !same(live, &merged);
        if let Some(entry) = managed.0.get_mut(applier) {
            entry.set = entry.set.difference(&STRIPPED);
            // A first apply that changes nothing is recorded without a time, as Kubernetes does.
            if changed {
                entry.time = Some(self.now);
            }
        }
        managed.0.retain(|_, entry| !entry.set.is_empty());
        Ok((changed.then_some(merged), managed))
    }

    /// Gives the updater what differs between the objects.
    pub(super) fn update(
        &self,
        old: &Value,
        new: &Value,
        managed: &mut Managed,
        updater: Id,
    ) -> Result<(), Faults> {
        self.follow_schema(managed);
        let comparison = compare(self.place, old, new)?.without(self.reset);
        // Nothing conflicts with an update: it takes what it changes.
        let _ = self.take_from_others(managed, None, &comparison, OnConflict::TakeOver);
        let gained = comparison.modified.union(&comparison.added).difference(&STRIPPED);
        if !gained.is_empty() {
            managed.grant(updater, &gained, self.api_version, self.now);
        }
        managed.cap_updates();
        Ok(())
    }

    fn follow_schema(&self, managed: &mut Managed) {
        for entry in managed.0.values_mut() {
            entry.set = entry.set.with_atomics_whole(self.place);
        }
    }

    /// O(managers × fields).
    fn take_from_others(
        &self,
        managed: &mut Managed,
        own: Option<&Id>,
        comparison: &Comparison,
        on_conflict: OnConflict,
    ) -> Result<(), Refused> {
        // A new object has no owners yet.
        if managed.0.keys().all(|id| Some(id) == own) {
            return Ok(());
        }
        let written = comparison.modified.union(&comparison.added);
        let others = || managed.0.iter().filter(|(id, _)| Some(*id) != own);
        let conflicts: Vec<(Id, FieldSet)> = others()
            .map(|(id, entry)| (id.clone(), entry.set.intersection(&written)))
            .filter(|(_, conflict)| !conflict.is_empty())
            .collect();
        match on_conflict {
            OnConflict::Refuse if !conflicts.is_empty() => return Err(Refused::Conflicts(Owned(conflicts))),
            OnConflict::Refuse | OnConflict::TakeOver => {}
        }
        let lost = written.union(&comparison.removed);
        for (id, entry) in &mut managed.0 {
            if Some(id) != own {
                entry.set = entry.set.difference(&lost);
            }
        }
        managed.0.retain(|id, entry| Some(id) == own || !entry.set.is_empty());
        Ok(())
    }

    /// Takes out of the merged object what the applier applied last time, unless it does so again or another owns it.
    fn prune(&self, merged: &Value, managed: &Managed, last: &FieldSet) -> Value {
        if last.is_empty() {
            return merged.clone();
        }
        let place = self.place;
        let fields = |value: &Value| fields_of(place, value).with_declared_parents(place);
        let without = |set: &FieldSet| remove(place, merged, set, Leftover::Null);
        let last = last.with_declared_parents(place);
        let all = fields(merged);
        let owned = managed.0.values().fold(FieldSet::new(), |owned, entry| owned.union(&entry.set));
        // What is left without the last set, and what anyone owns, stays. Removing the rest may leave less than that of values
        // whose parts are nobody's, so only what was in the last set is removed in the end.
        let kept = fields(&without(&last)).union(&owned.with_declared_parents(place));
        let kept = fields(&without(&all.difference(&kept)));
        remove(place, merged, &all.difference(&kept).intersection(&last), Leftover::Empty)
    }
}
