//! Gives leaves the rights of their mappings, and moves leaves.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::pgtable::GrantWrite;
use crate::platform::Platform;
use crate::tlb::FlushBatch;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::{Counted, counted};
use crate::vm::space::state::Space;

impl<P: Platform> AddressSpace<'_, P> {
    /// Gives the leaves of a range, whose ends were [`Self::cut`], the rights of their mappings.
    pub(in crate::vm) fn protect_leaves(&self, space: &Space, range: VirtRange) {
        let mut owed = FlushBatch::new();
        for vma in space.tree.overlapping(range) {
            let grant = match (&vma.attributes.backing, vma.attributes.is_private()) {
                (_, true) => GrantWrite::Exclusive,
                (_, false) if counted(vma) != Counted::File => GrantWrite::Always,
                // The first store to a page of a file must fault, so that the page is marked dirty.
                _ => GrantWrite::Never,
            };
            let part = vma.range.intersect(range);
            self.tables().protect_cut(part, vma.attributes.protection, grant, &mut owed);
        }
        owed.flush(self.memory.pages(), &self.context);
    }

    /// Moves leaves to a range where nothing is mapped. On an error nothing has moved.
    pub(in crate::vm) fn move_leaves(&self, from: VirtAddr, to: VirtAddr, len: u64) -> Result<(), MmError> {
        let mut owed = FlushBatch::new();
        let moved = self.tables().move_range(VirtRange::from_len(from, len), to, &mut owed);
        if let Err(error) = moved {
            let back = self.tables().move_range(VirtRange::from_len(to, error.moved), from, &mut owed);
            debug_assert!(back.is_ok(), "moving back needs no memory");
        }
        owed.flush(self.memory.pages(), &self.context);
        moved.map_err(|_| MmError::NoMemory)
    }
}
