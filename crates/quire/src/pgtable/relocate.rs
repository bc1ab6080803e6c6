//! Gives leaves other frames with the same contents, several with one flush.

use super::PageTables;
use super::lock::same_leaf;
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::Entry;
use crate::error::MapError;
use crate::page_alloc::CountError;
use crate::platform::TablePlatform;
use crate::tlb::{MmuGather, Unmapped};

/// A leaf that is to get another frame.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// Its first address.
    pub addr: VirtAddr,
    /// The leaf, as it was seen.
    pub leaf: Entry,
    /// The first frame that it is to map.
    pub to: Frame,
    taken: bool,
}

impl Relocation {
    /// A relocation of `leaf`, seen at `addr`, to the frames from `to` on.
    pub fn new(addr: VirtAddr, leaf: Entry, to: Frame) -> Self {
        Self { addr, leaf, to, taken: false }
    }

    /// Whether the leaf was still there, and has its new frame.
    pub fn is_taken(&self) -> bool {
        self.taken
    }
}

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Gives leaves of one size other frames. It makes them busy and flushes every CPU. Then, while no CPU
    /// can store through them, it calls `copy` for each leaf that it took out, and stores new leaves with the
    /// same bits. A leaf that has changed since it was seen (apart from history) stays. Returns how many were
    /// relocated; the old leaves go to the gather. Exclusive, and no table among them is shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`], for map counts; the leaves before the first that lacks them are relocated.
    ///
    /// # Safety
    /// As for [`Self::map`], for the frames that the leaves get.
    pub unsafe fn relocate(
        &self,
        leaves: &mut [Option<Relocation>],
        size: PageSize,
        gather: &mut MmuGather<'_, '_, P>,
        mut copy: impl FnMut(&Relocation),
    ) -> Result<usize, MapError> {
        let mut taken = 0;
        let done = leaves.iter_mut().flatten().try_for_each(|one| {
            gather.reserve(self.context);
            self.take_busy(one, size, gather)?;
            taken += usize::from(one.taken);
            Ok(())
        });
        gather.flush();
        for one in leaves.iter().flatten().filter(|one| one.taken) {
            copy(one);
            if let Some((table, index)) = self.slot(one.addr, size) {
                self.lock(table).fill(index, Entry::leaf(one.to, size, one.leaf.flags()));
            }
        }
        done.map(|()| taken)
    }

    /// Counts the new leaf and makes the old one busy, if it is still there.
    fn take_busy(
        &self,
        one: &mut Relocation,
        size: PageSize,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<(), MapError> {
        let Some((table, index)) = self.slot(one.addr, size) else { return Ok(()) };
        let old = loop {
            let locked = self.lock(table);
            if !same_leaf(locked.load(index), one.leaf) {
                return Ok(());
            }
            match self.count_leaf(Entry::leaf(one.to, size, one.leaf.flags()), size) {
                Ok(()) => break locked.exchange(index, Entry::BUSY),
                Err(CountError::Prepare { at, .. }) => {
                    drop(locked);
                    self.allocator.counts().prepare_counts(at)?;
                }
            }
        };
        // The old leaf has all that hardware recorded until now.
        (one.leaf, one.taken) = (old, true);
        gather.owe(VirtRange::from_len(one.addr, size.bytes()), size);
        gather.add(Unmapped::leaves(old, size, 1));
        Ok(())
    }
}
