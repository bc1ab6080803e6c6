//! The range that an operation touched, and its comparison when comparing everything takes too long.

use super::{Lockstep, Outcome};
use crate::ops::{Op, Step};
use crate::space::{Backing, PAGE, PROBES, SpaceId};
use crate::subject::{Actor, Subject};

/// Addresses from the first to the last, both on page boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The most pages that are compared one by one; a larger range is compared with all of its address space.
const MOST: u64 = 8192;

impl Extent {
    /// A whole address space.
    pub(super) const ALL: Self = Self { start: 0, end: u64::MAX };

    /// The pages that hold a byte of `len` from `addr` on.
    fn of(addr: u64, len: u64) -> Self {
        let start = addr & !(PAGE - 1);
        let end = addr.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if (end - start) / PAGE > MOST { Self::ALL } else { Self { start, end } }
    }
}

impl<S: Subject> Lockstep<S> {
    /// Does one operation and compares its range, and everything after each `all_every`-th.
    pub(super) fn step_and_compare_touched(&mut self, n: usize, step: &Step, all_every: usize) -> Outcome {
        let actor = self.actor(step);
        let (named, returned) = (self.named(actor.space, &step.op), self.returned.len());
        self.step(actor, &step.op)?;
        self.unviolated()?;
        if n % all_every == all_every - 1 {
            return self.compare_everything();
        }
        if let Op::Truncate(file, _) = step.op {
            return self.compare_file(Backing::File(file));
        }
        if !self.model.is_live(actor.space) {
            return Ok(());
        }
        self.compare_mappings(actor.space)?;
        let (old, len) = named;
        self.compare_touched(actor, Extent::of(old, len))?;
        match (step.op, self.returned.get(returned)) {
            (Op::Mmap(map), Some(&addr)) if addr != old => {
                self.compare_touched(actor, Extent::of(addr, map.len))
            }
            (Op::Mremap(_, _, len, _), Some(&addr)) => self.compare_touched(actor, Extent::of(addr, len)),
            _ => Ok(()),
        }
    }

    /// The range that an operation names, in bytes.
    fn named(&self, id: SpaceId, op: &Op) -> (u64, u64) {
        match *op {
            Op::Mmap(map) => (self.at(map.at), map.len),
            Op::Munmap(at, len)
            | Op::Mprotect(at, len, _)
            | Op::Mremap(at, len, ..)
            | Op::Madvise(at, len, _)
            | Op::Mlock(at, len, _)
            | Op::Munlock(at, len)
            | Op::Collapse(at, len, _) => (self.at(at), len),
            Op::Store(at, _) | Op::Load(at, _) | Op::Access(at, _) => (self.at(at), 1),
            Op::Touch(at, pages) => (self.at(at), u64::from(pages) * PAGE),
            Op::Brk(at) => {
                let (old, new) = (self.model.space(id).brk_end(), self.at(at));
                (old.min(new), old.abs_diff(new))
            }
            Op::Mlockall(..)
            | Op::Munlockall
            | Op::Fork
            | Op::Exit
            | Op::ClearAhead(_)
            | Op::Truncate(..) => (0, 0),
        }
    }

    fn compare_touched(&mut self, actor: Actor, extent: Extent) -> Outcome {
        self.compare_pages(actor.space, extent)?;
        // By any CPU, which may have an older translation.
        let known = self.model.space(actor.space).pages_in(extent.start, extent.end);
        let Some(number) = known.map(|(number, _)| number).next() else { return Ok(()) };
        let (cpu, probe) = (self.rng.usize(..self.cpus), self.rng.usize(..PROBES));
        self.load(Actor { cpu, ..actor }, number * PAGE, probe)
    }

    /// Compares every address space's view of a file.
    fn compare_file(&mut self, file: Backing) -> Outcome {
        for id in self.model.live().collect::<Vec<_>>() {
            let showing = self.model.space(id).vmas().iter().filter(|vma| vma.backing == file);
            let extents: Vec<Extent> = showing.map(|vma| Extent { start: vma.start, end: vma.end }).collect();
            extents.into_iter().try_for_each(|extent| self.compare_pages(id, extent))?;
        }
        Ok(())
    }

    fn compare_everything(&mut self) -> Outcome {
        for id in self.model.live().collect::<Vec<_>>() {
            self.compare_space(id)?;
            self.compare_pages(id, Extent::ALL)?;
        }
        Ok(())
    }

    /// Compares the present pages of an extent: each belongs to a mapping and has the model's contents, and
    /// every written page is present. Changes nothing. Where the subject does not show its pages, nothing is
    /// compared.
    pub(super) fn compare_pages(&mut self, id: SpaceId, extent: Extent) -> Outcome {
        let (model, scarce) = (&self.model, self.subject.is_scarce());
        let known = model.space(id).pages_in(extent.start, extent.end);
        let mut known = known.map(|(number, page)| (number * PAGE, page)).peekable();
        let (mut lost, mut wrong, mut private) = (None, None, 0);
        let shown = self.subject.present(id, extent.start, extent.end, |page| {
            while let Some((addr, absent)) = known.next_if(|(addr, _)| *addr < page.addr) {
                lost = lost.or(absent.is_kept().then_some(addr));
            }
            let own = known.next_if(|(addr, _)| *addr == page.addr).map(|(_, page)| page);
            private += u64::from(page.private);
            let right = own.and_then(|own| own.allows(&page.words)).unwrap_or_else(|| {
                let want = model.peek_page(id, page.addr);
                want.is_some_and(|want| want.iter().zip(page.words).all(|(want, word)| want.allows(word)))
            });
            if !right {
                let want = model.peek_page(id, page.addr);
                wrong.get_or_insert_with(|| format!("space {id}: {page:x?}, want {want:x?} ({own:x?})"));
            }
        });
        if !shown {
            return Ok(());
        }
        lost = lost.or(known.find(|(_, page)| page.is_kept()).map(|(addr, _)| addr)).filter(|_| !scarce);
        let lost = lost.map(|addr| format!("space {id}: the page at {addr:#x} was written and is not there"));
        wrong.or(lost).map_or(Ok(()), Err)?;
        match self.subject.resident(id) {
            Some(resident) if extent == Extent::ALL && resident.anon != private => {
                Err(format!("space {id}: {} private pages counted, {private} there", resident.anon))
            }
            _ => Ok(()),
        }
    }
}
