//! Which faults each request meets, and which requests are left to another workload that begins in the same way.
//!
//! **A write** meets the death of its sender before it and after it, the loss of its answer, a conflict, and one other refusal:
//! those take turns, by the kind of request, because to the controllers they differ in the time until the next try at most. A write
//! that carries no version of what it changes (a creation, an artefact) is also repeated; one that does (S16 looks at each) no longer
//! matches the second time. In the simplest workload each write is repeated, and meets each refusal.
//!
//! Where one process works alone, a death before a write that follows another write at once, without an execution or an act of people
//! between them, is the death after that other: the same was done, and what the dead knew is gone either way. It is met once, as the latter.
//!
//! **A read of the datastore** meets the two refusals alone: it changes nothing, so dying at it is dying after the write before it,
//! and a lost answer is a broken connection.
//!
//! Where the sender leads because it was elected, it is also cut off, and stopped with the write in its hands, until another leads.
//!
//! **What is not met again.** Two workloads that declare the same are one world as long as the same requests are sent, the same
//! executions end in the same way and people do the same. A fault in that part is lived through once, in the workload that comes
//! first. Its consequences may reach beyond the next execution, because a controller that was refused tries again later: so only
//! the requests before the last execution or act of people that both have in common are left out. Of a workload of a Terraform, of a stack, of a notification or of a webhook only the
//! requests about it, its repository and its layer meet faults: what runs do for that layer is what they do for any other.

use std::collections::BTreeMap;

use testkit::faults::{Fault, Refusal, Seam, Site};

use crate::stage::Verdict;
use crate::workloads::{Act, Lead, Meanwhile, SIMPLEST, Workload};

/// What happened in a world, as far as another one may be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Request(Site),
    Ended(Verdict),
    Acted(Act),
}

/// How often each kind of request met a refusal that is no conflict.
#[derive(Debug, Default)]
pub struct Turns(BTreeMap<(Seam, String, String), usize>);

impl Turns {
    fn next(&mut self, site: &Site) -> Option<Fault> {
        let turn = self.0.entry((site.seam, site.verb.clone(), site.target.clone())).or_default();
        *turn += 1;
        refusals().skip(1).cycle().nth(*turn - 1)
    }
}

/// What keeps a request from arriving, the conflict first.
fn refusals() -> impl Iterator<Item = Fault> + Clone {
    let others = Refusal::ALL.into_iter().filter(|refusal| *refusal != Refusal::Conflict);
    std::iter::once(Refusal::Conflict).chain(others).map(Fault::Refuse).chain([Fault::Drop])
}

/// The requests of a world, each with what came right before it.
pub fn sites(steps: &[Step]) -> impl Iterator<Item = (&Site, Option<&Step>)> {
    let before = std::iter::once(None).chain(steps.iter().map(Some));
    steps.iter().zip(before).filter_map(|(step, before)| match step {
        Step::Request(site) => Some((site, before)),
        Step::Ended(_) | Step::Acted(_) => None,
    })
}

fn is_write(site: &Site) -> bool {
    site.verb != "GET"
}

pub fn faults_at(workload: &Workload, site: &Site, before: Option<&Step>, turns: &mut Turns) -> Vec<Fault> {
    let (is_write, is_simplest) = (is_write(site), workload.name == SIMPLEST);
    // Of several processes another one may have done something in between.
    let is_alone = workload.processes.len() == 1;
    let follows_a_write = is_alone && matches!(before, Some(Step::Request(before)) if self::is_write(before));
    let mut faults = Vec::new();
    if is_write && !follows_a_write {
        faults.push(Fault::CrashBefore);
    }
    if is_write {
        faults.push(Fault::CrashAfter);
    }
    match workload.meanwhile {
        Meanwhile::Nothing => {}
        // It happens only to the dead: without a death this is the simplest workload.
        Meanwhile::Retool => return faults,
    }
    if is_write {
        faults.push(Fault::LoseReply);
        if is_simplest || site.verb == "POST" || site.seam == Seam::Datastore {
            faults.push(Fault::Repeat);
        }
        match workload.lead {
            Lead::Each => {}
            Lead::Elected => faults.extend([Fault::Cut, Fault::Hold]),
        }
    }
    if is_simplest {
        faults.extend(refusals());
    } else {
        faults.push(Fault::Refuse(Refusal::Conflict));
        faults.extend(turns.next(site));
    }
    faults
}

/// How many requests of `one` are left to `other`.
pub fn shared(one: (&Workload, &[Step]), other: (&Workload, &[Step])) -> usize {
    let declared = |workload: &Workload| {
        let mut layers = (workload.layers)().unwrap();
        // Nothing depends on it before the deletion, which is an act of people.
        layers.iter_mut().for_each(|layer| layer.spec.deletion_policy = None);
        (
            layers,
            (workload.repos)().unwrap(),
            (workload.terraforms)().unwrap(),
            (workload.notifications)().unwrap(),
            workload.processes,
            workload.lead,
            workload.cap,
            workload.meanwhile,
        )
    };
    if declared(one.0) != declared(other.0) {
        return 0;
    }
    let common = one.1.iter().zip(other.1).take_while(|(a, b)| a == b).count();
    let is_request = |step: &&Step| matches!(step, Step::Request(_));
    let last = one.1[..common].iter().rposition(|step| !is_request(&step)).unwrap_or(0);
    one.1[..last].iter().filter(is_request).count()
}

#[test]
fn each_write_meets_deaths_a_lost_answer_and_two_refusals_and_others_take_turns() {
    let site = |target: &str| Site {
        actor: "controllers".to_owned(),
        seam: Seam::Api,
        verb: "PUT".to_owned(),
        target: target.to_owned(),
        occurrence: 0,
    };
    let workload = crate::workloads::named("drift");
    let mut turns = Turns::default();
    let mut met = Vec::new();
    for _ in 0..7 {
        let faults = faults_at(&workload, &site("terraformruns/status"), None, &mut turns);
        assert_eq!(
            faults[..4],
            [Fault::CrashBefore, Fault::CrashAfter, Fault::LoseReply, Fault::Refuse(Refusal::Conflict)]
        );
        assert_eq!(faults.len(), 5);
        met.push(faults[4]);
        // Another kind of request does not take a turn away.
        faults_at(&workload, &site("pods"), None, &mut turns);
    }
    let before = Step::Request(site("pods"));
    let after_a_write = faults_at(&workload, &site("pods"), Some(&before), &mut turns);
    assert_eq!(after_a_write[0], Fault::CrashAfter, "the death after the write before it is this one");
    for refusal in refusals().skip(1) {
        assert!(met.contains(&refusal), "{refusal:?} was never met: {met:?}");
    }
}
