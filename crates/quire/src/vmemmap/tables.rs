//! The window's page tables: mapped once, walked to write descriptors, and split to free single frames.

use core::sync::atomic::Ordering;

use super::Window;
use super::descriptor::descriptor_addr;
use crate::addr::{BlockNumber, Frame, Order, PageSize, VirtAddr};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::AllocError;
use crate::limits::{BLOCK_FRAMES, FRAME_SIZE, ROWS_FRAMES, TABLE_ENTRIES};
use crate::memmap::BlockState;
use crate::page_alloc::{Contents, Gfp, PageAllocator};
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::{Table, clear_table};

/// Blocks that one leaf of 2 MiB describes: 128 MiB of memory.
const BLOCKS_PER_LEAF: u32 = (Order::BLOCK.bytes() / 64 / BLOCK_FRAMES as u64) as u32;

/// A leaf that allows stores. It has every bit that hardware could set, so a plain store can replace it.
pub(super) const WRITABLE: EntryFlags = EntryFlags::KERNEL_DATA;
pub(super) const READ_ONLY: EntryFlags = WRITABLE.without(EntryFlags::WRITE).without(EntryFlags::DIRTY);
/// Our own bit, in a leaf of 2 MiB: a task is splitting it.
const SPLITTING: EntryFlags = EntryFlags::SPECIAL;

/// An entry of the window's tables that is a leaf.
#[derive(Clone, Copy)]
pub(super) struct WindowLeaf<'a> {
    pub(super) table: Table<'a>,
    pub(super) index: usize,
}

impl WindowLeaf<'_> {
    pub(super) fn load(self) -> Entry {
        self.table.load(self.index)
    }

    pub(super) fn store(self, entry: Entry) {
        self.table.store(self.index, entry);
    }
}

impl Window {
    /// The leaf for an address of the window.
    pub(super) fn slot<'a, P: TablePlatform>(&self, platform: &'a P, addr: VirtAddr) -> WindowLeaf<'a> {
        let mut table = Table::at(platform, self.root, Level::P4D);
        loop {
            let index = table.index(addr);
            let entry = table.load(index);
            if !entry.is_table(table.level()) {
                assert!(entry.is_present(), "the window is mapped for all memory");
                return WindowLeaf { table, index };
            }
            table = table.child(platform, entry);
        }
    }

    /// The frame that holds a frame's descriptor.
    pub fn frame_behind_descriptor<P: TablePlatform>(&self, platform: &P, frame: Frame) -> Frame {
        self.frame_behind(platform, descriptor_addr(frame).align_down(FRAME_SIZE))
    }

    /// The frame behind an address of the window.
    pub(super) fn frame_behind<P: TablePlatform>(&self, platform: &P, addr: VirtAddr) -> Frame {
        let slot = self.slot(platform, addr);
        let within = addr.page() % (slot.table.level().entry_bytes() / FRAME_SIZE);
        slot.load().frame().add(within)
    }

    pub(super) fn new_table<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
    ) -> Result<Frame, AllocError> {
        let frame = pages.alloc(Gfp::KERNEL, Order::FRAME)?.into_raw();
        clear_table(pages.platform(), frame);
        self.frames.fetch_add(1, Ordering::Relaxed);
        Ok(frame)
    }

    /// Maps the descriptors of all memory by leaves of 2 MiB, each on the node whose memory it describes. So
    /// too for memory that may come later: its pages may join a pool.
    pub(super) fn map_all<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>) -> Result<(), AllocError> {
        let mut next = 0;
        for (number, block) in pages.memmap().blocks() {
            if number.0 < next {
                continue;
            }
            let node = pages.store().node_of_block(number);
            if node.is_none() && block.state() == BlockState::Absent {
                continue;
            }
            let start = number.0 / BLOCKS_PER_LEAF * BLOCKS_PER_LEAF;
            next = start + BLOCKS_PER_LEAF;
            let gfp = Gfp::KERNEL.on_node(node.unwrap_or(0));
            let (backing, contents) = pages.alloc_maybe_zeroed(gfp, Order::BLOCK)?;
            let backing = backing.into_raw();
            if contents == Contents::Unknown {
                // `FramePlatform::clear` will not do: on a machine for measurements it may only count.
                (0..BLOCK_FRAMES as u64).for_each(|at| clear_table(pages.platform(), backing.add(at)));
            }
            self.frames.fetch_add(BLOCK_FRAMES as u64, Ordering::Relaxed);
            self.map_leaf(pages, descriptor_addr(BlockNumber(start).first_frame()), backing)?;
        }
        Ok(())
    }

    fn map_leaf<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        addr: VirtAddr,
        backing: Frame,
    ) -> Result<(), AllocError> {
        let mut table = Table::at(pages.platform(), self.root, Level::P4D);
        while table.level() > Level::PMD {
            let index = table.index(addr);
            if table.load(index).is_empty() {
                table.store(index, kernel_table(self.new_table(pages)?));
            }
            table = table.child(pages.platform(), table.load(index));
        }
        table.store(table.index(addr), Entry::leaf(backing, PageSize::Size2M, WRITABLE));
        Ok(())
    }

    /// Splits the leaf of 2 MiB for an address, if there is one, into a table of the same translations, and
    /// the folio behind it into 512 frames, so that each can be freed by itself. Returns whether this call
    /// did. Several tasks may try at once.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], for the table or the frames' descriptors; the leaf is as before then.
    pub(super) fn split<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        addr: VirtAddr,
    ) -> Result<bool, AllocError> {
        loop {
            let slot = self.slot(pages.platform(), addr);
            if slot.table.level() == Level::PTE {
                return Ok(false);
            }
            // Mark it first: a task that came second could find the folio's frames freed already.
            let leaf = slot.load();
            let marked = !leaf.has(SPLITTING) && leaf.is_leaf(Level::PMD);
            if marked && slot.table.compare_exchange(slot.index, leaf, leaf.with(SPLITTING)).is_ok() {
                let table = self.table_for(pages, leaf);
                slot.table.store(slot.index, table.map_or(leaf, kernel_table));
                table?;
                pages.count(Stat::VmemmapSplit, 1);
                pages.count(Stat::VmemmapEntry, 1);
                return Ok(true);
            }
            pages.platform().relax();
        }
    }

    /// Makes the table for a leaf of 2 MiB, and splits its folio.
    fn table_for<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        leaf: Entry,
    ) -> Result<Frame, AllocError> {
        // SAFETY: invariant 1: the window owns the folio, no frame of which is counted as mapped.
        unsafe { pages.split_folio(leaf.frame(), Order::FRAME) }.map_err(|_| AllocError::OutOfMemory)?;
        // Frames that are freed wait in a chain through their descriptors.
        for at in (0..BLOCK_FRAMES).step_by(ROWS_FRAMES) {
            pages.describe(leaf.frame().add(at as u64))?;
        }
        let frame = pages.alloc(Gfp::KERNEL, Order::FRAME)?.into_raw();
        let table = Table::at(pages.platform(), frame, Level::PTE);
        for at in 0..TABLE_ENTRIES {
            table.store(at, Entry::leaf(leaf.frame().add(at as u64), PageSize::Size4K, WRITABLE));
        }
        self.frames.fetch_add(1, Ordering::Relaxed);
        pages.count(Stat::VmemmapAlloc, 1);
        Ok(frame)
    }
}

/// A pointer to a table that maps nothing for user mode.
fn kernel_table(frame: Frame) -> Entry {
    Entry::table(frame).without(EntryFlags::USER).with(EntryFlags::ACCESSED)
}
