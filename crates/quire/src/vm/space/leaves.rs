//! Gives leaves the rights of their mappings, and moves leaves.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::pgtable::{GrantWrite, Zap};
use crate::platform::Platform;
use crate::tlb::{FlushBatch, MmuGather};
use crate::vm::mapping::vma::Backing;
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
                // While one of its pages moves, no leaf of a file may gain the right to store.
                (Backing::File { file, .. }, _)
                    if file.node().huge_order().is_some() && file.node().enter().is_none() =>
                {
                    GrantWrite::Never
                }
                (_, false) if counted(vma) != Counted::File => GrantWrite::Always,
                // The first store to a page of a file must fault, so that the page is marked dirty.
                _ => GrantWrite::Never,
            };
            let part = vma.range.intersect(range);
            self.tables().protect_cut(part, vma.attributes.protection, grant, &mut owed);
        }
        owed.flush(self.memory.pages(), &self.context);
    }

    /// Moves the leaves of one mapping to a range where nothing is mapped. On an error nothing has moved. Frees
    /// the tables without leaves that are left: at the target after an error, and else where the leaves were,
    /// which becomes a hole if the mapping `goes`. In a hole they would keep large leaves out.
    pub(in crate::vm) fn move_leaves(
        &self,
        space: &Space,
        from: VirtRange,
        to: VirtAddr,
        goes: bool,
    ) -> Result<(), MmError> {
        if from.is_empty() {
            return Ok(());
        }
        let target = VirtRange::from_len(to, from.len());
        let mut gather = MmuGather::new(self.memory.pages(), &self.context);
        let moved = self.tables().move_range(from, to, gather.owed());
        if let Err(error) = moved {
            let back = VirtRange::from_len(to, error.moved);
            let back = self.tables().move_range(back, from.start, gather.owed());
            debug_assert!(back.is_ok(), "moving back needs no memory");
        }
        let user = space.layout.user;
        let empty = match moved {
            Err(_) => Zap::tables(target, space.tree.hole_around(target, user)),
            Ok(()) if !goes => Zap::tables(from, from),
            Ok(()) => {
                // The target's mapping is not in the tree yet.
                let mut hole = space.tree.hole_around(from, user);
                match target.start < from.start {
                    true => hole.start = hole.start.max(target.end),
                    false => hole.end = hole.end.min(target.start),
                }
                Zap::tables(from, hole)
            }
        };
        self.tables().detach_unused(&empty, &mut gather);
        gather.finish();
        moved.map_err(|_| MmError::NoMemory)
    }
}
