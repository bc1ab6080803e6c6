//! Markers in the places of leaves whose memory is lost.
//!
//! A marker ([`Entry::POISON`]) is not present and not empty: an access faults, nothing is mapped over it, and it stays
//! until its address is unmapped. `fork` gives it to the child, `mremap` moves it. It counts as an entry of its table, and
//! as nothing else. There are markers for 4 KiB leaves only: larger ones are split first.
#![forbid(unsafe_code)]

use super::PageTables;
use super::lock::same_leaf;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::platform::Platform;
use crate::tlb::{MmuGather, Unmapped};

impl<P: Platform> PageTables<'_, '_, P> {
    /// Puts a marker in the place of the 4 KiB leaf at `addr`, if it is still `expected` (bits that only record history apart);
    /// whether it was. The leaf goes to the gather. Shared, and nobody else reaches the table.
    pub fn poison(&self, addr: VirtAddr, expected: Entry, gather: &mut MmuGather<'_, '_, P>) -> bool {
        gather.make_room();
        let Some((table, index)) = self.slot(addr, PageSize::Size4K) else { return false };
        let locked = self.lock(table);
        if !same_leaf(locked.load(index), expected) {
            return false;
        }
        let old = locked.mark_lost(index);
        drop(locked);
        gather.owe(VirtRange::from_len(addr, PageSize::Size4K.bytes()), PageSize::Size4K);
        if !old.has(EntryFlags::SPECIAL) {
            gather.add(Unmapped::leaves(old, PageSize::Size4K, 1, false));
        }
        true
    }
}
