//! Which pages of a range are in memory: `mincore`.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::filemap::HugePage;
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::platform::Platform;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::observe::view::Observation;

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::mincore`](crate::vm::Mm::mincore).
    pub(in crate::vm) fn mincore(self, addr: VirtAddr, resident: &mut [bool]) -> Result<(), MmError> {
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        let mut at = addr;
        for part in resident.chunks_mut(LOCK_HOLD_FRAMES) {
            let bytes = part.len() as u64 * FRAME_SIZE;
            let end = at.0.checked_add(bytes).map(VirtAddr).ok_or(MmError::NoMemory)?;
            self.mincore_some(VirtRange::new(at, end), part)?;
            at = end;
        }
        Ok(())
    }

    /// The same for as many pages as one hold of the lock may take.
    fn mincore_some(self, range: VirtRange, resident: &mut [bool]) -> Result<(), MmError> {
        let index = |addr: VirtAddr| ((addr.0 - range.start.0) / FRAME_SIZE) as usize;
        resident.fill(false);
        let space = self.space.read(self.memory.platform());
        let mut covered = range.start;
        for vma in space.tree.overlapping(range) {
            let part = vma.range.intersect(range);
            if part.start != covered {
                return Err(MmError::NoMemory);
            }
            covered = part.end;
            self.mark_cached(vma, part, &mut resident[index(part.start)..index(part.end)]);
        }
        if covered != range.end {
            return Err(MmError::NoMemory);
        }
        self.tables().runs(range, |run| {
            let end = run.addr.0 + run.count * run.size.bytes();
            let (start, end) = (run.addr.max(range.start), VirtAddr(end).min(range.end));
            resident[index(start)..index(end)].fill(true);
        });
        Ok(())
    }

    /// Marks the pages of a mapping that the page cache of its file has.
    fn mark_cached(self, vma: &Vma, part: VirtRange, resident: &mut [bool]) {
        let Backing::File { file, .. } = &vma.attributes.backing else { return };
        let (Some(first), platform) = (vma.file_page(part.start), self.memory.platform()) else { return };
        let (node, end) = (file.node(), first + part.pages());
        if let Some(order) = node.huge_order() {
            for (page, resident) in (first..end).zip(resident) {
                let present = self.memory.files().huge_page(platform, node, page / order.frames());
                *resident = matches!(present, Some(HugePage::Present { .. }));
            }
            return;
        }
        let mut at = first;
        while let Some(page) = self.memory.files().next_present(platform, node, at..end) {
            resident[(page - first) as usize] = true;
            at = page + 1;
        }
    }
}
