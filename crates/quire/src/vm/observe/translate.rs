//! The walk of a secondary MMU: which leaf decides about an address.
#![forbid(unsafe_code)]

use crate::addr::{Frame, PageSize, VirtAddr};
use crate::arch::EntryFlags;
use crate::platform::Platform;
use crate::vm::fault::Access;
use crate::vm::space::mm::Mm;

/// A leaf, as a secondary MMU may copy it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translated {
    /// Its first address.
    pub addr: VirtAddr,
    /// The first frame that it maps.
    pub frame: Frame,
    /// Its size.
    pub size: PageSize,
    /// Whether stores may go through the copy. They leave no trace in the leaf, so it counts as stored through already.
    pub writable: bool,
}

impl<P: Platform> Mm<'_, P> {
    /// The leaf that makes an access at `addr` good, marked as hardware would mark it: accessed, and dirty for a store.
    /// `None` where there is none, or it does not allow the access: [`Self::fault`] makes it good, or says why not. A leaf that
    /// allows stores and was not stored through yet is not `writable` to a load, so that the first store is noticed.
    ///
    /// For a secondary MMU that is [registered](Self::register_secondary). The answer is as old as its return, so it counts its
    /// brackets ([`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start)): it reads their number before the call, when none is open that
    /// covers the address, and keeps a copy only if, under a lock that the start of a bracket takes too, that number is the same.
    ///
    /// Takes the address-space lock for reading; waits where a leaf is being replaced. The caller holds no lock, and none that the start
    /// of a bracket waits for.
    pub fn translate(&self, addr: VirtAddr, access: Access) -> Option<Translated> {
        let _space = self.space.read(self.memory.platform());
        if !self.context().mode().user_range().contains(addr) {
            return None;
        }
        loop {
            let found = self.tables().lookup(addr);
            let (size, leaf) = (found.leaf_size()?, found.entry);
            let stores = access == Access::Write;
            // Nothing is stored through a table that others reach.
            if !access.is_good_for(leaf) || stores && found.shared {
                return None;
            }
            let wanted = if stores {
                EntryFlags::ACCESSED | EntryFlags::DIRTY
            } else if found.shared {
                // It is not ours alone to mark.
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
