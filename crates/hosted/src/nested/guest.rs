//! A guest's memory as its virtual CPUs use it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quire::addr::{Frame, VirtAddr};
use quire::error::FaultError;
use quire::limits::FRAME_SIZE;
use quire::platform::{FramePlatform, Platform};
use quire::vm::{Access, Mm, Translated};

use super::radix::Leaf;
use super::tables::{NestedStats, Put, Tables, lock};
use crate::machine::Hosted;

/// Second-stage tables for a part of one address space: guest-physical address 0 is `base` there.
///
/// The address space has its secondary MMU registered ([`Mm::register_secondary`]) for as long as copies are made. [Virtual CPUs](Self::cpu) are
/// threads that are CPUs of the machine. The address space need not be loaded on any of them. Dropping the value drops all copies.
pub struct Nested<'m> {
    pub(super) machine: &'m Hosted,
    pub(super) tables: Arc<Tables>,
}

/// The result of a page-table walk for an access, not kept yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    at: u64,
    leaf: Translated,
    begun: u64,
}

/// A copy of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NestedLeaf {
    /// The first guest-physical address.
    pub at: u64,
    /// The extent in bytes: 4 KiB, 2 MiB or 1 GiB.
    pub bytes: u64,
    /// The first frame.
    pub frame: Frame,
    /// Whether stores go through it.
    pub write: bool,
}

impl From<Leaf> for NestedLeaf {
    fn from(leaf: Leaf) -> Self {
        Self { at: leaf.at, bytes: leaf.bytes(), frame: Frame(leaf.frame), write: leaf.write }
    }
}

impl<'m> Nested<'m> {
    /// Empty tables for `bytes` bytes from `base` on, both multiples of 4 KiB, and so many virtual CPUs.
    ///
    /// # Panics
    /// When `base` or `bytes` is no multiple of 4 KiB.
    pub fn new<P: Platform>(
        machine: &'m Hosted,
        mm: &Mm<'_, P>,
        base: VirtAddr,
        bytes: u64,
        cpus: usize,
    ) -> Self {
        assert!(base.is_aligned(FRAME_SIZE) && bytes.is_multiple_of(FRAME_SIZE), "guests have whole pages");
        let reach = Arc::clone(&machine.nested.reach);
        let tables = Arc::new(Tables::new(mm.root(), base, bytes, cpus, reach));
        machine.nested.add(Arc::clone(&tables));
        Self { machine, tables }
    }

    /// The first half of a fault: waits until no bracket covers the page, and finds its leaf in the page
    /// table; if the leaf does not allow the access, faults it in. An access does both halves; a test may act
    /// in between.
    ///
    /// # Errors
    /// As [`VirtualCpu::read`](crate::VirtualCpu::read).
    pub fn look_up<P: Platform>(&self, mm: &Mm<'_, P>, at: u64, access: Access) -> Result<Found, FaultError> {
        let addr = VirtAddr(self.tables.base + at);
        loop {
            let Some(begun) = self.tables.begun(at) else {
                self.retry();
                continue;
            };
            match mm.translate(addr, access) {
                Some(leaf) => return Ok(Found { at, leaf, begun }),
                None => mm.fault(addr, access).map(drop)?,
            }
        }
    }

    /// The second half: keeps a copy, unless a bracket came between; returns whether it did.
    pub fn keep(&self, found: Found) -> bool {
        let (put, stale) = self.tables.install(found.at, &found.leaf, found.begun);
        self.machine.all_violated(stale);
        match put {
            Put::Kept => true,
            Put::Again => {
                self.retry();
                false
            }
        }
    }

    fn retry(&self) {
        self.tables.counts.retries.fetch_add(1, Ordering::Relaxed);
        self.machine.relax();
    }

    /// The copy that decides about an address now.
    pub fn copy_at(&self, at: u64) -> Option<NestedLeaf> {
        self.tables.radix.walk(at).map(NestedLeaf::from)
    }

    /// Every copy that reaches into a range, in ascending order; each as it was at some moment.
    pub fn copies(&self, range: Range<u64>) -> Vec<NestedLeaf> {
        let mut found = Vec::new();
        let range = range.start..range.end.min(self.tables.radix.bytes);
        self.tables.radix.each(range, &mut |leaf| found.push(NestedLeaf::from(leaf)));
        found
    }

    /// The statistics since [`Self::forget_stats`].
    pub fn stats(&self) -> NestedStats {
        self.tables.stats()
    }

    /// Keeps the length of each bracket from now on ([`Self::bracket_times`]): 16 bytes for each.
    pub fn keep_bracket_times(&self) {
        lock(&self.tables.brackets).value.keep_times();
    }

    /// The duration of each bracket since [`Self::forget_stats`], by verb as in [`NestedStats::brackets`], in
    /// the order of their ends. Empty unless [they are kept](Self::keep_bracket_times).
    pub fn bracket_times(&self) -> BTreeMap<&'static str, Vec<Duration>> {
        lock(&self.tables.brackets).value.times()
    }

    /// Puts all counts to zero.
    pub fn forget_stats(&self) {
        self.tables.forget_stats();
    }

    /// Compares every copy with the page table, which must not change meanwhile. A copy of another frame, or
    /// with a right to store that the page table lacks, is a violation. Returns the number of copies.
    pub fn check(&self) -> usize {
        let mut stale = Vec::new();
        let mut count = 0;
        self.tables.radix.each(0..self.tables.radix.bytes, &mut |leaf| {
            count += 1;
            let pages = (leaf.at..leaf.at + leaf.bytes()).step_by(FRAME_SIZE as usize);
            let wrong = pages.map(|at| (at, self.primary(at))).find(|&(at, there)| {
                let right =
                    |(frame, write): (u64, bool)| frame == leaf.frame_of(at) && (write || !leaf.write);
                !there.is_some_and(right)
            });
            if let Some((_, there)) = wrong {
                stale.push(self.tables.stale(&leaf, there.map(|(frame, _)| Frame(frame))));
            }
        });
        self.machine.all_violated(stale);
        count
    }

    /// The page table's frame for an address, and whether its leaf allows stores without a further fault.
    fn primary(&self, at: u64) -> Option<(u64, bool)> {
        let addr = VirtAddr(self.tables.base + at);
        let leaf = self.machine.probe(self.tables.root, addr).filter(|leaf| leaf.user)?;
        Some((leaf.frame.0 + ((addr.0 - leaf.addr.0) >> 12), leaf.write && leaf.dirty))
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        self.machine.nested.remove(&self.tables);
    }
}
