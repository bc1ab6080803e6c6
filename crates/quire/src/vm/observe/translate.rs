//! The walk of a secondary MMU: the leaf that maps an address.
#![forbid(unsafe_code)]

use crate::addr::{Frame, PageSize, VirtAddr};
use crate::arch::Access;
use crate::arch::EntryFlags;
use crate::platform::Platform;
use crate::vm::observe::view::Observation;

/// A leaf, as a secondary MMU may copy it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translated {
    /// Its first address.
    pub addr: VirtAddr,
    /// The first frame that it maps.
    pub frame: Frame,
    /// Its size.
    pub size: PageSize,
    /// Whether the secondary MMU may store through its copy. The leaf is dirty already, as such stores do not
    /// mark it.
    pub writable: bool,
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::translate`](crate::vm::Mm::translate).
    pub(in crate::vm) fn translate(self, addr: VirtAddr, access: Access) -> Option<Translated> {
        let _space = self.space.read(self.memory.platform());
        if !self.context().mode().user_range().contains(addr) {
            return None;
        }
        loop {
            let found = self.tables().lookup(addr);
            let (size, leaf) = (found.leaf_size()?, found.entry);
            let stores = access == Access::Write;
            // No store goes through a table that other address spaces reach.
            if !access.is_good_for(leaf) || stores && found.shared {
                return None;
            }
            let wanted = if stores {
                EntryFlags::ACCESSED | EntryFlags::DIRTY
            } else if found.shared {
                // The leaf belongs to other address spaces too: do not mark it.
                EntryFlags::NONE
            } else {
                EntryFlags::ACCESSED
            };
            if !leaf.has(wanted) && !self.tables().upgrade(addr, size, leaf, wanted) {
                self.memory.platform().relax();
                continue;
            }
            let stored = leaf.with(wanted).has(EntryFlags::WRITE | EntryFlags::DIRTY);
            let addr = addr.align_down(size.bytes());
            return Some(Translated { addr, frame: leaf.frame(), size, writable: stored && !found.shared });
        }
    }
}
