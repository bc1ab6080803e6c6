//! One CPU's modelled caches: translations and paging-structure entries of the address space that is loaded.
//!
//! Entries leave only by a flush, a fault, or the load of another root. A real TLB forgets more, so code that
//! works here works there.
//!
//! Entries of an address space that is not loaded must not be used again ([`TablePlatform::load_root`]), so
//! leaving drops them, unless the machine keeps translations. Then they are *parked* until the root is loaded
//! again. No flush reaches parked ones, and frames that they lead to may be freed: the entries must only not
//! be loaded after that ([`TablePlatform::load_kept_root`]). So what was freed meanwhile is noted, and is a
//! violation at that load: a processor may walk page tables right after it, even if no instruction uses an
//! address.
//!
//! [`TablePlatform::load_root`]: quire::platform::TablePlatform::load_root
//! [`TablePlatform::load_kept_root`]: quire::platform::TablePlatform::load_kept_root

use quire::addr::{Frame, FrameRange, VirtRange};
use quire::cpu::CpuId;
use quire::platform::{FlushExtent, FlushRequest};
use rustc_hash::FxHashMap;

use super::Reach;
use crate::mmu::{Rights, leaf_frames, shift};
use crate::violation::Violation;

/// A cached translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaf {
    /// The first frame.
    pub(crate) frame: u64,
    /// 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub(crate) level: u32,
    /// The rights that all levels of the walk granted.
    pub(crate) rights: Rights,
    /// Whether the dirty bit was set in memory.
    pub(crate) dirty: bool,
}

/// A cached pointer to a table, with the rights of the levels above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    /// The table's frame.
    pub(crate) frame: u64,
    /// The rights that the entries on the way to it granted.
    pub(crate) rights: Rights,
}

/// What is cached of one root.
#[derive(Default)]
struct Entries {
    /// By level (1 to 3), keyed by address divided by the leaf's extent.
    leaves: [FxHashMap<u64, Leaf>; 3],
    /// By the level of the table pointed to (1 to 4), keyed by address divided by what the table covers.
    tables: [FxHashMap<u64, Table>; 4],
}

/// What a CPU kept of a root that it has left.
struct Parked {
    entries: Entries,
    /// What a load of the root with these entries would be.
    suspect: Option<Violation>,
}

/// The caches of one CPU.
#[derive(Default)]
pub(crate) struct CpuTlb {
    root: Option<Frame>,
    /// Whether entries of roots that are left are kept.
    keeps: bool,
    /// By the number of the root; never the loaded one.
    parked: FxHashMap<u64, Parked>,
    entries: Entries,
}

impl CpuTlb {
    /// Caches of a CPU that keeps entries of roots that it leaves, or not.
    pub(crate) fn new(keeps: bool) -> Self {
        Self { keeps, ..Self::default() }
    }

    /// The page table that this CPU uses.
    pub(crate) fn root(&self) -> Option<Frame> {
        self.root
    }

    /// The cached translation of `addr`, the smallest leaf first.
    pub(crate) fn lookup(&self, addr: u64) -> Option<Leaf> {
        (1..=3)
            .find_map(|level| self.entries.leaves[level as usize - 1].get(&(addr >> shift(level))).copied())
    }

    /// The lowest table on the way to `addr` that is cached, and its level.
    pub(crate) fn deepest_table(&self, addr: u64) -> Option<(u32, Table)> {
        (1..=4).find_map(|level| {
            let table = self.entries.tables[level as usize - 1].get(&(addr >> shift(level + 1)))?;
            Some((level, *table))
        })
    }

    pub(crate) fn fill_leaf(&mut self, reach: &Reach, addr: u64, leaf: Leaf) {
        reach.add(leaf.level, leaf.frame);
        let old = self.entries.leaves[leaf.level as usize - 1].insert(addr >> shift(leaf.level), leaf);
        old.iter().for_each(|old| reach.remove(old.level, old.frame));
    }

    pub(crate) fn fill_table(&mut self, reach: &Reach, addr: u64, level: u32, table: Table) {
        reach.add(1, table.frame);
        let old = self.entries.tables[level as usize - 1].insert(addr >> shift(level + 1), table);
        old.iter().for_each(|old| reach.remove(1, old.frame));
    }

    /// Drops all cached entries for one address, as a fault does.
    pub(crate) fn forget(&mut self, reach: &Reach, addr: u64) {
        self.invalidate_page(reach, addr);
        for (map, level) in self.entries.tables.iter_mut().zip(1..) {
            map.remove(&(addr >> shift(level + 1))).iter().for_each(|table| reach.remove(1, table.frame));
        }
    }

    /// Drops the translations of one address, of whatever size: `INVLPG` without its effect on paging structures.
    fn invalidate_page(&mut self, reach: &Reach, addr: u64) {
        for (map, level) in self.entries.leaves.iter_mut().zip(1..) {
            map.remove(&(addr >> shift(level))).iter().for_each(|leaf| reach.remove(leaf.level, leaf.frame));
        }
    }

    pub(crate) fn load_root(&mut self, reach: &Reach, root: Option<Frame>) {
        if self.root != root {
            self.leave(reach);
            root.iter().for_each(|root| reach.add(1, root.0));
            self.root = root;
            root.and_then(|root| self.parked.remove(&root.0)).inspect(|parked| {
                parked.entries.forget_all(reach);
                reach.remove(1, root.unwrap_or_default().0);
            });
        }
    }

    /// Loads a root with what was kept of it. Returns the violation that this is, if that is not good.
    pub(crate) fn load_kept_root(&mut self, reach: &Reach, root: Frame) -> Option<Violation> {
        if self.root == Some(root) {
            return None;
        }
        self.leave(reach);
        self.root = Some(root);
        match self.parked.remove(&root.0) {
            Some(kept) => {
                self.entries = kept.entries;
                kept.suspect
            }
            None => {
                reach.add(1, root.0);
                None
            }
        }
    }

    /// Drops the entries of the loaded root, or parks them.
    fn leave(&mut self, reach: &Reach) {
        match self.root.take() {
            Some(root) if self.keeps => {
                let entries = core::mem::take(&mut self.entries);
                self.parked.insert(root.0, Parked { entries, suspect: None });
            }
            root => {
                self.drop_all(reach);
                root.iter().for_each(|root| reach.remove(1, root.0));
            }
        }
    }

    /// Carries out a flush. One for an address space that is not loaded finds nothing to do.
    pub(crate) fn flush(&mut self, reach: &Reach, request: &FlushRequest) {
        if self.root != Some(request.root) {
            return;
        }
        match request.extent {
            FlushExtent::AddressSpace => self.drop_all(reach),
            FlushExtent::Range { range, stride } => {
                self.drop_leaves(reach, range, stride);
                if request.tables {
                    self.drop_tables(reach, range);
                }
            }
        }
    }

    fn drop_all(&mut self, reach: &Reach) {
        self.entries.forget_all(reach);
        self.entries.leaves.iter_mut().for_each(FxHashMap::clear);
        self.entries.tables.iter_mut().for_each(FxHashMap::clear);
    }

    /// One `INVLPG` every `stride` bytes. Entries between two of them stay, unless a large leaf covers one.
    fn drop_leaves(&mut self, reach: &Reach, range: VirtRange, stride: u64) {
        assert!(
            stride.is_power_of_two() && stride >= 1 << shift(1),
            "a flush cannot have a stride of {stride} bytes"
        );
        let (start, end) = (range.start.0, range.end.0);
        let steps = range.len().div_ceil(stride);
        let cached = self.entries.leaves.iter().map(FxHashMap::len).sum::<usize>() as u64;
        if steps <= cached {
            (0..steps).for_each(|step| self.invalidate_page(reach, start + step * stride));
            return;
        }
        // The same from the side of the cached entries: a leaf goes if one of the addresses lies in it.
        for (map, level) in self.entries.leaves.iter_mut().zip(1..) {
            map.retain(|&key, leaf| {
                let (from, to) =
                    (key << shift(level), (key << shift(level)).wrapping_add((1 << shift(level)) - 1));
                let first = start.max(from);
                let hit = start + (first - start).next_multiple_of(stride);
                let goes = from < end && to >= start && hit <= to && hit < end;
                if goes {
                    reach.remove(leaf.level, leaf.frame);
                }
                !goes
            });
        }
    }

    fn drop_tables(&mut self, reach: &Reach, range: VirtRange) {
        for (map, level) in self.entries.tables.iter_mut().zip(1..) {
            let cover = shift(level + 1);
            map.retain(|&key, table| {
                let from = key << cover;
                let goes = from < range.end.0 && from.wrapping_add((1 << cover) - 1) >= range.start.0;
                if goes {
                    reach.remove(1, table.frame);
                }
                !goes
            });
        }
    }

    /// The cached entries, with the first address of each.
    pub(crate) fn cached(
        &self,
    ) -> (impl Iterator<Item = (u64, Leaf)>, impl Iterator<Item = (u64, u32, Table)>) {
        let leaves = self
            .entries
            .leaves
            .iter()
            .zip(1..)
            .flat_map(|(map, level)| map.iter().map(move |(&key, &leaf)| (key << shift(level), leaf)));
        let tables = self.entries.tables.iter().zip(1..).flat_map(|(map, level)| {
            map.iter().map(move |(&key, &table)| (key << shift(level + 1), level, table))
        });
        (leaves, tables)
    }

    /// Adds every cached entry of this CPU that leads to one of `frames`, and remembers those that are kept.
    pub(crate) fn reaching(
        &mut self,
        reach: &Reach,
        cpu: CpuId,
        frames: FrameRange,
        found: &mut Vec<Violation>,
    ) {
        for (&root, parked) in self.parked.iter_mut().filter(|(_, parked)| parked.suspect.is_none()) {
            let mut stale = Vec::new();
            parked.entries.reaching((cpu, Frame(root)), frames, &mut stale);
            parked.suspect = stale.pop();
            if parked.suspect.is_some() {
                // They are no good, and no search needs to find them again.
                parked.entries.forget_all(reach);
                parked.entries = Entries::default();
            }
        }
        let Some(root) = self.root else { return };
        self.entries.reaching((cpu, root), frames, found);
    }
}

impl Entries {
    /// Tells `reach` that none of them is cached any more.
    fn forget_all(&self, reach: &Reach) {
        let leaves = self.leaves.iter().flat_map(|map| map.values());
        leaves.for_each(|leaf| reach.remove(leaf.level, leaf.frame));
        let tables = self.tables.iter().flat_map(|map| map.values());
        tables.for_each(|table| reach.remove(1, table.frame));
    }

    /// Adds every entry of a root that leads to one of `frames`.
    fn reaching(&self, (cpu, root): (CpuId, Frame), frames: FrameRange, found: &mut Vec<Violation>) {
        let overlaps = |frame: u64, count: u64| frame < frames.end().0 && frames.start.0 < frame + count;
        if overlaps(root.0, 1) {
            found.push(Violation::FreedRoot { cpu, root });
        }
        for (map, level) in self.leaves.iter().zip(1..) {
            for (&key, leaf) in map.iter().filter(|(_, leaf)| overlaps(leaf.frame, leaf_frames(level))) {
                let (addr, first) = (key << shift(level), Frame(leaf.frame));
                let size = 1 << shift(level);
                found.push(Violation::FreedFrame { cpu, root, addr, first, size, freed: frames });
            }
        }
        for (map, level) in self.tables.iter().zip(1..) {
            for (&key, table) in map.iter().filter(|(_, table)| overlaps(table.frame, 1)) {
                let (addr, table) = (key << shift(level + 1), Frame(table.frame));
                found.push(Violation::FreedTable { cpu, root, addr, level, table });
            }
        }
    }
}

#[cfg(all(test, not(miri)))] // Safe code: nothing for Miri to find, and too many steps for it.
mod tests;
