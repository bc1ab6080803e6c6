//! Compares the observable state of an address space.

use quire::error::FaultError;

use super::{Answer, Lockstep, Outcome};
use crate::space::{Backing, Locked, PAGE, PROBES, SpaceId, Vma, normalise};
use crate::subject::{Actor, Subject};

/// Pages probed after each operation.
const PROBED: usize = 2;

impl<S: Subject> Lockstep<S> {
    /// Whether an access failed for lack of memory, where it may. A stack may have grown to the address by
    /// then.
    pub(super) fn out_of_memory<T>(&mut self, id: SpaceId, addr: u64, got: Result<T, FaultError>) -> bool {
        got.as_ref().err().into_iter().for_each(|&fault| self.answer = Answer::Fault(fault));
        if !matches!(got, Err(FaultError::OutOfMemory)) || !self.subject.may_lack_memory() {
            return false;
        }
        if self.model.space(id).vma_at(addr).is_none() {
            let mut grown = self.model.clone();
            let seen = self.subject.vmas(id);
            if grown.grow_down(id, addr).is_ok()
                && self.comparable(grown.space(id).vmas()) == self.comparable(&seen)
            {
                self.model = grown;
            }
        }
        true
    }

    pub(super) fn same_fault(&self, got: Result<(), FaultError>, want: Result<(), FaultError>) -> Outcome {
        let same = if self.subject.names_faults() { got == want } else { got.is_ok() == want.is_ok() };
        if same { Ok(()) } else { Err(format!("answer {got:?}, want {want:?}")) }
    }

    /// A list of mappings without the attributes that the subject does not show.
    pub(super) fn comparable(&self, vmas: &[Vma]) -> Vec<Vma> {
        let mut vmas = vmas.to_vec();
        for vma in &mut vmas {
            if let Backing::Shared(number) = &mut vma.backing {
                *number = 0;
            }
            if vma.backing == Backing::Anonymous {
                vma.page_offset = 0;
            }
            if vma.locked == Locked::OnFault && !self.subject.shows_lock_on_fault() {
                vma.locked = Locked::Now;
            }
        }
        normalise(vmas)
    }

    /// The mappings of one address space, how many bytes of them are locked, and the most that may be resident.
    pub(super) fn compare_mappings(&mut self, id: SpaceId) -> Outcome {
        let got = self.subject.vmas(id);
        if !self.subject.keeps_edges() && normalise(told_apart(&got)).len() < got.len() {
            return Err(format!("space {id} has neighbours that agree in everything: {got:x?}"));
        }
        let space = self.model.space(id);
        let (got, want) = (self.comparable(&got), self.comparable(space.vmas()));
        if got != want {
            return Err(format!("mappings of space {id} differ:\n{}", differences(&got, &want)));
        }
        let Some(resident) = self.subject.resident(id) else { return Ok(()) };
        let private = want.iter().filter(|vma| vma.is_private()).map(|vma| vma.len() / PAGE).sum();
        let locked = want.iter().filter(|vma| vma.locked != Locked::No).map(Vma::len).sum();
        if resident.anon <= private && resident.locked == locked {
            return Ok(());
        }
        Err(format!("space {id}: {resident:?}, want {locked} bytes locked, at most {private} private pages"))
    }

    /// Mappings and counts of one address space.
    pub(super) fn compare_space(&mut self, id: SpaceId) -> Outcome {
        self.compare_mappings(id)?;
        let Some(resident) = self.subject.resident(id) else { return Ok(()) };
        let bounds = self.model.bounds(id);
        // When memory runs out, a populate stops early and succeeds, or fails after populating a part.
        let scarce = self.subject.is_scarce();
        let most = match self.subject.single_pages() && !scarce {
            true => bounds.anon_touched,
            false => bounds.anon_most,
        };
        let least = if scarce { 0 } else { bounds.anon_least };
        if resident.anon < least || resident.anon > most {
            return Err(format!(
                "space {id}: {} private pages resident, want {} to {most}",
                resident.anon, least
            ));
        }
        Ok(())
    }

    /// Loads from a few pages that are known to hold something, on any CPU.
    pub(super) fn probe_some(&mut self, actor: Actor) -> Outcome {
        let touched = self.model.space(actor.space).pages().count();
        for _ in 0..PROBED.min(touched) {
            let nth = self.rng.usize(..touched);
            let Some((number, _)) = self.model.space(actor.space).pages().nth(nth) else { break };
            let (cpu, probe) = (self.rng.usize(..self.cpus), self.rng.usize(..PROBES));
            self.load(Actor { cpu, ..actor }, number * PAGE, probe)?;
        }
        Ok(())
    }

    /// Loads every probe of every touched page, and of the pages at the edges of mappings.
    pub(super) fn probe_all(&mut self, id: SpaceId) -> Outcome {
        let space = self.model.space(id);
        let touched = space.pages().map(|(number, _)| number * PAGE);
        let edges = space.vmas().iter().flat_map(|vma| [vma.start, vma.end - PAGE]);
        for addr in touched.chain(edges).collect::<Vec<_>>() {
            let cpu = self.rng.usize(..self.cpus);
            (0..PROBES).try_for_each(|probe| self.load(Actor { cpu, space: id }, addr, probe))?;
        }
        Ok(())
    }
}

/// The mappings with a number of its own for each that shows shared memory: a list does not say which are of one object.
fn told_apart(vmas: &[Vma]) -> Vec<Vma> {
    let mut vmas = vmas.to_vec();
    for (number, vma) in (0..).zip(&mut vmas) {
        if let Backing::Shared(shared) = &mut vma.backing {
            *shared = number;
        }
    }
    vmas
}

fn differences(got: &[Vma], want: &[Vma]) -> String {
    let line = |sign: char, vma: &Vma| format!("  {sign} {:#x}..{:#x} {vma:?}\n", vma.start, vma.end);
    let extra = got.iter().filter(|vma| !want.contains(vma)).map(|vma| line('+', vma));
    let missing = want.iter().filter(|vma| !got.contains(vma)).map(|vma| line('-', vma));
    extra.chain(missing).collect()
}
