//! Allocates and frees ranges of whole free blocks, for gigantic pages or any number of blocks in a row.

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::error::{AllocError, FreeError};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::BlockState;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::owned::FrameRun;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::request::placement::ZoneOrder;
use crate::page_alloc::store::zone::Wanted;
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Allocates `blocks` blocks of 2 MiB in a row, the first at a multiple of `align_blocks` blocks, a power
    /// of two. Each is a folio of order 9, to be freed by itself through [`Self::free`] or with its
    /// neighbours through [`Self::free_contig`]. The range lies in one zone and in one of the ranges that the
    /// machine was given. It must be free already: nothing is moved, unlike in Linux's `alloc_contig_pages`.
    ///
    /// The search looks at a word of 64 blocks at most once. If it fails, it drains the lists and runs again.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when no allowed zone has such a range above its mark;
    /// [`AllocError::BadNode`]; [`AllocError::BadOrder`] for no blocks or an alignment that is no power of
    /// two.
    pub fn alloc_contig(&self, gfp: Gfp, blocks: u32, align_blocks: u32) -> Result<FrameRun, AllocError> {
        if blocks == 0 || !align_blocks.is_power_of_two() {
            return Err(AllocError::BadOrder);
        }
        if self.platform().fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let zones = self.requests().zones_for(Pinned::new(self.platform()).cpu(), gfp)?;
        let wait = self.platform().context() == Context::Task;
        // Not pinned while all lists are drained.
        let search = || {
            let pinned = Pinned::new(self.platform());
            let shape = (blocks, align_blocks);
            self.frames().in_store(|| self.contig_from(zones, pinned.cpu(), gfp, shape, wait))
        };
        let found = search().or_else(|| {
            if !wait {
                return None;
            }
            self.lists().drain_all();
            search()
        });
        if found.is_none() {
            self.count(Stat::AllocFailed, 1);
        }
        let frames = |start| FrameRange::new(start, u64::from(blocks) * BLOCK_FRAMES as u64);
        found.map(|start| self.frames().run(frames(start))).ok_or(AllocError::OutOfMemory)
    }

    /// Searches the zones in turn for a run of this many blocks with this alignment.
    fn contig_from(
        &self,
        zones: ZoneOrder<'_>,
        cpu: CpuId,
        gfp: Gfp,
        (blocks, align): (u32, u32),
        wait: bool,
    ) -> Option<Frame> {
        let frames = u64::from(blocks) * BLOCK_FRAMES as u64;
        zones.iter().find_map(|&number| {
            let zone = &self.store().zones[usize::from(number)];
            if zone.allowance(gfp.urgency, gfp.zone) < frames {
                return None;
            }
            let contents = gfp.contents;
            let (first, zeroed) = self.store().take_run(zone, Wanted { blocks, align, contents, wait })?;
            for at in 0..blocks {
                let (block, marked) =
                    (self.frames().memmap.block(first.add(at)), zeroed && contents == Contents::Zeroed);
                self.store().claim(zone, block, Order::BLOCK, BlockState::Folio, marked);
            }
            zone.add_free(-(frames as i64));
            self.store().count_alloc(cpu, usize::from(number), frames);
            self.requests().count_placed(cpu, gfp, zones, number.into(), frames);
            Some(first.first_frame())
        })
    }

    /// Frees folios of order 9 in a row, all or none. It waits for locks: not from an interrupt.
    ///
    /// # Errors
    /// [`FreeError`], of the first refused block. All stay in use for good then, as with [`Self::free`].
    pub fn free_contig(&self, run: FrameRun) -> Result<(), FreeError> {
        let FrameRange { start: frame, count } = self.frames().take_back_run(run)?;
        if frame.index_in_block() != 0 || count % BLOCK_FRAMES as u64 != 0 {
            return Err(FreeError::WrongOrder);
        }
        let (first, blocks) = (frame.block(), (count / BLOCK_FRAMES as u64) as u32);
        first.0.checked_add(blocks).ok_or(FreeError::NotMemory)?;
        for at in 0..blocks {
            if let Err(error) = self.retire(first.add(at)) {
                // No other free has taken the blocks before: every free refuses a listed block.
                (0..at).for_each(|at| self.set_folio_state(first.add(at), BlockState::Folio));
                return Err(error);
            }
        }
        self.frames().note_freed(FrameRange::new(frame, u64::from(blocks) * BLOCK_FRAMES as u64));
        let (mut at, end) = (first, first.add(blocks));
        while at < end {
            let zone = &self.store().zones[self.frames().memmap.block(at).zone()];
            let here = zone.region_from(self.platform(), at).min(end.0 - at.0);
            self.store().put_run(zone, at, here, false);
            at = at.add(here);
        }
        self.count(Stat::Pgfree, u64::from(blocks) * BLOCK_FRAMES as u64);
        Ok(())
    }

    /// Takes a folio of order 9 out of use: every other free of it is refused from now on.
    fn retire(&self, number: BlockNumber) -> Result<(), FreeError> {
        let block = self.frames().memmap.get(number).ok_or(FreeError::NotMemory)?;
        block.lock(self.platform());
        let checked = self.frames().check_whole(block, number.first_frame(), Order::BLOCK);
        if checked.is_ok() {
            block.set_state(BlockState::Listed);
        }
        block.unlock(self.platform());
        checked
    }

    fn set_folio_state(&self, number: BlockNumber, state: BlockState) {
        let block = self.frames().memmap.block(number);
        block.lock(self.platform());
        block.set_state(state);
        block.unlock(self.platform());
    }
}
