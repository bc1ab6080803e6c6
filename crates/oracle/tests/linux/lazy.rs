//! Pages that were given back with `MADV_FREE`: each side may have dropped one, or not.

use std::collections::BTreeMap;

use oracle::ops::{At, Op};
use oracle::space::{Advice, PAGE, SpaceId};

/// The pages of all address spaces that were given back.
#[derive(Default)]
pub(crate) struct Lazy {
    /// By address space and number of the page: the probes that were stored to since, a bit for each.
    stored: BTreeMap<(SpaceId, u64), u8>,
}

fn number(at: At) -> u64 {
    at.resolve(&[]) / PAGE
}

impl Lazy {
    /// Whether the word at a probe may be zero on one side and not on the other. A page is dropped as it was given back:
    /// a word that was stored since is there.
    pub(crate) fn may_differ(&self, space: SpaceId, at: At, probe: usize) -> bool {
        self.stored.get(&(space, number(at))).is_some_and(|stored| stored >> probe & 1 == 0)
    }

    /// Keeps what a call that both did tells; `known` are pages that were stored to, and the heap can reach `heap_end`.
    pub(crate) fn note(&mut self, space: SpaceId, op: &Op, answer: u64, known: &[u64], heap_end: u64) {
        let here = answer / PAGE;
        match *op {
            Op::Store(at, probe) => {
                self.stored.entry((space, number(at))).and_modify(|stored| *stored |= 1 << probe);
            }
            Op::Madvise(at, len, Advice::Free) => {
                let (first, end) = (number(at), number(at) + len.div_ceil(PAGE));
                let pages = known.iter().map(|page| page / PAGE).filter(|page| (first..end).contains(page));
                self.stored.extend(pages.map(|page| ((space, page), 0)));
            }
            Op::Madvise(at, len, Advice::DontNeed) | Op::Munmap(at, len) => {
                self.take(space, number(at), len);
            }
            Op::Mmap(map) => _ = self.take(space, here, map.len),
            Op::Mremap(at, old, new, _) if here == number(at) => {
                self.take(space, here + new.div_ceil(PAGE), old.saturating_sub(new));
            }
            Op::Mremap(at, old, new, _) => {
                let moved = self.take(space, number(at), old);
                self.take(space, here, new);
                let shifted =
                    moved.into_iter().map(|(page, stored)| ((space, page - number(at) + here), stored));
                self.stored.extend(shifted.filter(|((_, page), _)| page - here < new.div_ceil(PAGE)));
            }
            Op::Brk(_) => _ = self.take(space, answer.div_ceil(PAGE), heap_end.saturating_sub(answer)),
            _ => {}
        }
    }

    /// A child has the pages of its parent.
    pub(crate) fn fork(&mut self, parent: SpaceId, child: SpaceId) {
        let pages: Vec<_> = self.within(parent, 0, u64::MAX).collect();
        self.stored.extend(pages.into_iter().map(|(page, stored)| ((child, page), stored)));
    }

    fn within(&self, space: SpaceId, first: u64, end: u64) -> impl Iterator<Item = (u64, u8)> {
        self.stored.range((space, first)..(space, end)).map(|(&(_, page), &stored)| (page, stored))
    }

    /// Removes the pages of a range, whose contents are gone on both sides.
    fn take(&mut self, space: SpaceId, first: u64, len: u64) -> Vec<(u64, u8)> {
        let gone: Vec<_> = self.within(space, first, first.saturating_add(len.div_ceil(PAGE))).collect();
        gone.iter().for_each(|&(page, _)| _ = self.stored.remove(&(space, page)));
        gone
    }
}
