//! Model of a family of address spaces (related by `fork`) with the semantics of Linux 6.18 on x86-64.
//!
//! Mappings are a sorted vector, split where an operation needs an edge and never merged: the library's list and the
//! model's are both merged as far as possible before they are compared ([`normalise`]). Contents are values: a page
//! holds [`PROBES`] words, copied by value at `fork`, so that copy on write, folios and page tables do not exist
//! here. Shared mappings name an object whose pages all mappings see.
//!
//! Where the library may choose (the address of a mapping without a fixed one), the model decides what is
//! legal ([`Place`]) and adopts the library's answer. Every verb checks first and then acts: an error leaves
//! the model as Linux leaves a process.
//!
//! `tests/linux` steps this model against the Linux of the machine it runs on.

mod access;
mod advise;
mod brk;
mod family;
mod lock;
mod map;
mod page;
mod protect;
mod remap;
mod resident;
mod vma;

pub use access::{Kind, Seen};
pub use advise::Advice;
pub use family::{Family, Rules, SpaceId};
pub use map::{Map, Place, Placement};
pub use page::{Lazy, PROBE_OFFSETS, PROBES, Page, Words, file_word};
pub use remap::Remap;
pub use resident::Bounds;
pub use vma::{Backing, Huge, Locked, PAGE, Prot, Vma, normalise};

use std::collections::BTreeMap;

/// One address space.
#[derive(Clone, Debug)]
pub struct Space {
    /// Sorted, disjoint, never merged.
    vmas: Vec<Vma>,
    /// The known state of touched pages, by page number.
    pages: BTreeMap<u64, Page>,
    /// The start and the end of the heap (a byte, not rounded).
    brk: (u64, u64),
    /// How later mappings are locked (`mlockall(MCL_FUTURE)`).
    lock_future: Locked,
}

impl Space {
    fn new() -> Self {
        Self { vmas: Vec::new(), pages: BTreeMap::new(), brk: (0, 0), lock_future: Locked::No }
    }

    /// The mappings, sorted and disjoint, not merged.
    pub fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// The pages that were touched or have private contents, by page number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(&number, page)| (number, page))
    }

    /// The known state of one page.
    pub fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number)
    }

    /// The same of `start..end`, both on page boundaries.
    pub fn pages_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.range(start / PAGE..end / PAGE).map(|(&number, page)| (number, page))
    }

    /// Bytes of mappings that are locked.
    pub fn locked_bytes(&self) -> u64 {
        self.vmas.iter().filter(|vma| vma.locked != Locked::No).map(Vma::len).sum()
    }

    /// Bytes of mappings.
    pub fn mapped_bytes(&self) -> u64 {
        self.vmas.iter().map(Vma::len).sum()
    }

    /// The index of the first mapping that ends above `addr` (Linux's `find_vma`).
    fn index_above(&self, addr: u64) -> usize {
        self.vmas.partition_point(|vma| vma.end <= addr)
    }

    /// The mapping that holds `addr`.
    pub fn vma_at(&self, addr: u64) -> Option<&Vma> {
        self.vmas.get(self.index_above(addr)).filter(|vma| vma.start <= addr)
    }

    /// The mapping that holds `addr`, merged with its neighbours as far as possible.
    fn merged_at(&self, addr: u64) -> Option<Vma> {
        let (mut first, mut last) = (self.index_above(addr), self.index_above(addr));
        self.vma_at(addr)?;
        while first > 0 && self.vmas[first - 1].continues(&self.vmas[first]) {
            first -= 1;
        }
        while last + 1 < self.vmas.len() && self.vmas[last].continues(&self.vmas[last + 1]) {
            last += 1;
        }
        Some(Vma { end: self.vmas[last].end, ..self.vmas[first] })
    }

    /// Whether an edge between mappings, which a manager may have merged away or not, lies strictly inside
    /// `start..end`.
    pub fn has_edge_inside(&self, start: u64, end: u64) -> bool {
        self.vma_at(start).is_some_and(|vma| vma.end < end)
    }

    /// Whether any mapping shares a byte with `start..end`.
    fn any_in(&self, start: u64, end: u64) -> bool {
        self.vmas.get(self.index_above(start)).is_some_and(|vma| vma.start < end)
    }

    /// Makes `addr` an edge.
    fn split_at(&mut self, addr: u64) {
        let index = self.index_above(addr);
        if let Some(vma) = self.vmas.get_mut(index)
            && vma.start < addr
        {
            let upper = vma.split(addr);
            self.vmas.insert(index + 1, upper);
        }
    }

    /// The mappings inside `start..end`, after making both ends edges.
    fn inside(&mut self, start: u64, end: u64) -> &mut [Vma] {
        self.split_at(start);
        self.split_at(end);
        let (from, to) = (self.index_above(start), self.vmas.partition_point(|vma| vma.end <= end));
        &mut self.vmas[from..to.max(from)]
    }

    /// The mapped parts of `start..end`, each as large as possible.
    pub fn parts(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        normalise(self.clipped(start, end)).iter().map(|part| (part.start, part.end)).collect()
    }

    /// Removes the mappings inside `start..end`, and their pages' contents.
    fn remove(&mut self, start: u64, end: u64) -> Vec<Vma> {
        self.inside(start, end);
        let (from, to) = (self.index_above(start), self.vmas.partition_point(|vma| vma.end <= end));
        let gone = self.vmas.drain(from..to.max(from)).collect();
        self.forget(start, end);
        gone
    }

    /// Drops the contents of the pages of `start..end`; returns them.
    fn forget(&mut self, start: u64, end: u64) -> Vec<(u64, Page)> {
        page::take_out(&mut self.pages, start / PAGE..end.div_ceil(PAGE))
    }

    /// Adds a mapping where nothing is mapped.
    fn insert(&mut self, vma: Vma) {
        debug_assert!(!self.any_in(vma.start, vma.end));
        let index = self.index_above(vma.start);
        self.vmas.insert(index, vma);
    }
}
