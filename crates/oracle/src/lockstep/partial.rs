//! Verbs that work along a range and may stop in it when memory runs out: their possible partial effects.

use quire::error::MmError;

use super::{Lockstep, Outcome};
use crate::space::{Family, PAGE, PROBE_OFFSETS, PROBES, Remap, SpaceId};
use crate::subject::{Actor, Subject};

impl<S: Subject> Lockstep<S> {
    /// Compares the answer of a verb over `addr, len`. If the subject ran out of memory, the verb must have
    /// done nothing, or all of its work up to an edge of a mapping or the end (invariant 6); `part` does that
    /// much to a model.
    pub(super) fn in_parts(
        &mut self,
        id: SpaceId,
        (addr, len): (u64, u64),
        got: Result<(), MmError>,
        whole: impl FnOnce(&mut Family) -> Result<(), MmError>,
        part: impl Fn(&mut Family, u64) -> Result<(), MmError>,
    ) -> Outcome {
        if !self.lacked_memory(got) {
            let want = whole(&mut self.model);
            return if got == want { Ok(()) } else { Err(format!("answer {got:?}, want {want:?}")) };
        }
        let end = addr.saturating_add(len).saturating_add(PAGE - 1) & !(PAGE - 1);
        let mut stops: Vec<u64> =
            self.model.space(id).vmas().iter().flat_map(|vma| [vma.start, vma.end]).collect();
        stops.retain(|&stop| stop > addr && stop <= end);
        let parts = stops.into_iter().rev().map(|stop| {
            let mut model = self.model.clone();
            // A hole after the stop does not matter here.
            let _ = part(&mut model, stop);
            model
        });
        let mut candidates = vec![self.model.clone()];
        candidates.extend(parts);
        let mut all = self.model.clone();
        let _ = whole(&mut all);
        candidates.push(all);
        self.take_explanation(id, candidates)
    }

    /// A populate that ran out of memory: only the number of resident pages shows what it populated.
    pub(super) fn in_advance(
        &mut self,
        got: Result<(), MmError>,
        whole: impl FnOnce(&mut Family) -> Result<(), MmError>,
    ) -> Outcome {
        let lacked = self.lacked_memory(got);
        let want = whole(&mut self.model);
        if got == want || lacked { Ok(()) } else { Err(format!("answer {got:?}, want {want:?}")) }
    }

    /// After an `mremap` that ran out of memory: as on Linux, some of several mappings may have moved, the target of the
    /// next may have been unmapped, and what a shrinking source loses may be gone.
    pub(super) fn remap_in_parts(
        &mut self,
        id: SpaceId,
        addr: u64,
        old: u64,
        new: u64,
        to: Remap,
    ) -> Outcome {
        let page_up = |len: u64| len.checked_next_multiple_of(PAGE).unwrap_or(0);
        let (old, new) = (page_up(old), page_up(new));
        let mut model = self.model.clone();
        let mut candidates = vec![model.clone()];
        if let Some(dest) = to.target() {
            let parts = match old == new {
                true => model.space(id).parts(addr, addr.saturating_add(old)),
                false => vec![(addr, addr + new)],
            };
            for (start, end) in parts {
                let (target, len) = (dest + (start - addr), end - start);
                let mut cleared = model.clone();
                let _ = cleared.munmap(id, target, len);
                candidates.push(cleared);
                if old == new {
                    model.remap_at(id, start, len, len, to, target);
                    candidates.push(model.clone());
                }
            }
        }
        if new < old {
            let mut shrunk = candidates.last().cloned().unwrap_or(model);
            let _ = shrunk.munmap(id, addr + new, old - new);
            candidates.push(shrunk);
        }
        self.take_explanation(id, candidates)
    }

    /// Continues with the first model whose mappings are the subject's. If several have them, a load from a
    /// page on which they differ decides.
    fn take_explanation(&mut self, id: SpaceId, mut candidates: Vec<Family>) -> Outcome {
        let seen = self.subject.vmas(id);
        let seen = self.comparable(&seen);
        candidates.retain(|model| self.comparable(model.space(id).vmas()) == seen);
        while candidates.len() > 1 {
            let Some((addr, probe)) = disagreement(&candidates[0], &candidates[1], id) else {
                candidates.remove(1);
                continue;
            };
            let Ok(word) = self.subject.load(Actor { cpu: 0, space: id }, addr + PROBE_OFFSETS[probe]) else {
                break;
            };
            let before = candidates.len();
            candidates.retain_mut(|model| model.read(id, addr, probe).is_ok_and(|want| want.allows(word)));
            if candidates.len() == before {
                // The word is right in all of them, but may change later in some: the most permissive one
                // continues.
                let first = candidates[0].peek(id, addr, probe);
                candidates.remove(usize::from(first.is_some_and(|want| want.or_zero)));
            }
        }
        match candidates.into_iter().next() {
            Some(model) => {
                self.model = model;
                Ok(())
            }
            None => Err(format!("what running out of memory left is no part of the work: {seen:x?}")),
        }
    }
}

/// A page, and a probe in it, that holds different words in the two models.
fn disagreement(one: &Family, other: &Family, id: SpaceId) -> Option<(u64, usize)> {
    let (this, that) = (one.space(id), other.space(id));
    let mut numbers = this.pages().chain(that.pages()).map(|(number, _)| number);
    numbers.find_map(|number| {
        let addr = number * PAGE;
        let readable = this.vma_at(addr).is_some_and(|vma| vma.prot.reads());
        // The candidates are parts of one piece of work: most of their pages are the same.
        if !readable || this.page(number) == that.page(number) {
            return None;
        }
        (0..PROBES)
            .find(|&probe| one.peek(id, addr, probe) != other.peek(id, addr, probe))
            .map(|probe| (addr, probe))
    })
}
