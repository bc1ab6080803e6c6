//! Replaces leaves of zero pages by leaves of the zero frame. The protocol is in `vm/collapse/underused.rs`.

use super::PageTables;
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::{BLOCK_SIZE, TABLE_ENTRIES};
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;
use crate::tlb::{FlushBatch, MmuGather, Unmapped};

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Clears the dirty bit of every leaf in the range, and the marks that depend on it: what was stored to
    /// since it was freed lazily must not be dropped. Until the caller makes the flush that it owes, a store
    /// may go unnoticed. Shared.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing has changed then.
    pub(crate) fn clear_dirty(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<(), MapError> {
        let marks = EntryFlags::DIRTY.union(EntryFlags::ZEROED).union(EntryFlags::LAZY_FREE);
        let clear = |leaf: Entry| if leaf.has(EntryFlags::DIRTY) { leaf.without(marks) } else { leaf };
        self.update_leaves(range, owed, clear, |before, _| before.has(EntryFlags::DIRTY))
    }

    /// The end of the hole at `addr`, a multiple of 2 MiB; `None` if a leaf or a table is there. Shared; the
    /// answer may be old.
    pub fn end_of_nothing(&self, addr: VirtAddr) -> Option<VirtAddr> {
        let step = self.step(VirtRange::from_len(addr, BLOCK_SIZE));
        let nothing = !step.is_lowest() && step.table.load(step.table.index(addr)).is_empty();
        nothing.then(|| step.table.extent(addr).end)
    }

    /// Maps the zero frame, by leaves with these flags, in the place of those `candidates` among the 512
    /// leaves at `addr` that map anonymous pages of zeroes. A clean candidate was found to be zero after its
    /// dirty bit was cleared; the page of a dirty one is read, once no leaf allows stores to it. Returns how
    /// many it replaced; their leaves go to the gather. No table is shared. Exclusive until the gather has
    /// flushed.
    ///
    /// # Safety
    /// As for [`Self::map_special`], for the zero frame.
    pub unsafe fn drop_zeroes(
        &self,
        addr: VirtAddr,
        candidates: FrameMask,
        zero: (Frame, EntryFlags),
        gather: &mut MmuGather<'_, '_, P>,
    ) -> u64 {
        let Some(table) = self.find(addr, Level::PTE) else { return 0 };
        let could_store = self.stop_stores(addr, candidates);
        let (mut dropped, mut at) = (0, 0);
        while at < TABLE_ENTRIES {
            gather.reserve(self.context);
            let locked = self.lock(table);
            let Some(start) = candidates.next_set(at) else { break };
            let mut run: Option<(Entry, u64)> = None;
            at = start;
            // Take as many as are one run of frames.
            while at < TABLE_ENTRIES && candidates.contains(at) {
                let leaf = locked.load(at);
                let next = run.is_none_or(|(first, count)| first.frame().add(count) == leaf.frame());
                if !next
                    || !is_own(leaf)
                    || leaf.has(EntryFlags::DIRTY) && !self.allocator.frames().is_zero(leaf.frame())
                {
                    break;
                }
                let history = leaf.flags().intersection(EntryFlags::SOFT_DIRTY);
                let flags = zero.1.union(EntryFlags::SPECIAL).union(history);
                let zeroes = Entry::leaf(zero.0, PageSize::Size4K, flags);
                locked.exchange(at, zeroes);
                locked.note_kind(zeroes);
                run = Some(run.map_or((leaf, 1), |(first, count)| (first, count + 1)));
                at += 1;
            }
            match run {
                Some((first, count)) => {
                    let bytes = PageSize::Size4K.bytes();
                    gather.add(Unmapped::leaves(first, PageSize::Size4K, count));
                    gather.owe(
                        VirtRange::from_len(addr.add(start as u64 * bytes), count * bytes),
                        PageSize::Size4K,
                    );
                    dropped += count;
                }
                None => {
                    // No longer a page of zeroes.
                    let leaf = locked.load(at);
                    if could_store.contains(at) && leaf.is_present() && !leaf.has(EntryFlags::SPECIAL) {
                        locked.update(at, leaf, |leaf| leaf.with(EntryFlags::WRITE));
                    }
                    at += 1;
                }
            }
        }
        gather.flush();
        dropped
    }

    /// Takes the right to store from the candidates, and flushes; returns which of them had it. The exclusive
    /// hold of the address-space lock keeps other tasks from giving it back.
    fn stop_stores(&self, addr: VirtAddr, candidates: FrameMask) -> FrameMask {
        let mut could_store = FrameMask::EMPTY;
        let Some(table) = self.find(addr, Level::PTE) else { return could_store };
        let mut owed = FlushBatch::new();
        let locked = self.lock(table);
        for index in (0..TABLE_ENTRIES).filter(|&index| candidates.contains(index)) {
            let seen = locked.load(index);
            if is_own(seen) && seen.has(EntryFlags::WRITE) {
                locked.update(index, seen, |leaf| leaf.without(EntryFlags::WRITE));
                could_store = could_store.union(FrameMask::run(index, 1));
                owed.add(VirtRange::from_len(addr, BLOCK_SIZE), PageSize::Size4K);
            }
        }
        drop(locked);
        owed.flush(self.allocator, self.context);
        could_store
    }
}

/// Whether a leaf maps a counted anonymous frame.
fn is_own(leaf: Entry) -> bool {
    leaf.is_present() && leaf.has(EntryFlags::ANON) && !leaf.has(EntryFlags::SPECIAL)
}
