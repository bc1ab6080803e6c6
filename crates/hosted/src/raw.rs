//! Frames by number, for tests and measurements that own a machine's memory as a whole.
//!
//! The library's own interface takes memory over, frees and writes only what its caller owns. A test frees
//! frames twice, frees mapped frames and names frames by number, on purpose. That is sound where the memory
//! holds no value of the process ([`IsolatedMemory`]): a frame that is freed too early confuses only the
//! machine in it, which the test watches. No other code has a use for these traits.
//!
//! A kernel's own memory has none of these calls:
//!
//! ```compile_fail,E0277
//! # use hosted::raw::RawPages;
//! # use quire::{addr::{Frame, Order}, page_alloc::PageAllocator, platform::FramePlatform};
//! fn free_any<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
//!     let freed = RawPages::free_raw(pages, Frame(42), Order::FRAME);
//! }
//! ```
#![allow(unsafe_code)]

mod memory;
mod pools;
mod tables;

pub use memory::{memory_manager, memory_manager_with_later, page_allocator, page_allocator_with_later};
pub use pools::RawPools;
pub use tables::{RawTables, page_tables};

use std::sync::atomic::{AtomicU64, Ordering};

use quire::addr::{BlockNumber, Frame, FrameRange, Order, PageSize};
use quire::arch::{ClearKernel, CopyKernel, Entry, ReadyClear, ReadyCopy};
use quire::clear::{Clearer, Cost, Extent};
use quire::error::{AllocError, Cancelled, FreeError, HotplugError, KernelError, SplitError};
use quire::limits::TABLE_ENTRIES;
use quire::memmap::FrameMask;
use quire::page_alloc::{Contents, Counter, Folio, Gfp, PageAllocator};
use quire::platform::{FramePlatform, TouchHint};

use crate::bare::Bare;
use crate::machine::Hosted;

/// A platform whose memory was set aside for one machine.
///
/// # Safety
/// The process keeps no value of its own in the frames (H1). So a frame that is written, freed or mapped by its
/// number concerns only the machine, and the test that owns it. [`Self::holds`] is true of no other memory.
pub unsafe trait IsolatedMemory: FramePlatform {
    /// Whether all of these frames are memory of the machine.
    fn holds(&self, frames: FrameRange) -> bool;
}

// SAFETY: H1: no other part of the process knows the arena.
unsafe impl IsolatedMemory for Hosted {
    fn holds(&self, frames: FrameRange) -> bool {
        self.arena().holds(frames)
    }
}

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl IsolatedMemory for Bare {
    fn holds(&self, frames: FrameRange) -> bool {
        self.hosted().holds(frames)
    }
}

/// Panics if a frame is no memory of the machine: the process may have anything at its address.
#[inline]
fn check<P: IsolatedMemory + ?Sized>(platform: &P, frames: FrameRange) {
    assert!(platform.holds(frames), "{frames:?} is no memory of this machine");
}

/// The same for the source and the target of a copy.
#[inline]
fn check_both<P: IsolatedMemory + ?Sized>(platform: &P, from: FrameRange, to: Frame) {
    check(platform, from);
    check(platform, FrameRange::new(to, from.count));
}

/// A page allocator whose folios are numbers.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait RawPages {
    fn alloc_raw(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError>;
    fn alloc_maybe_zeroed_raw(&self, gfp: Gfp, order: Order) -> Result<(Frame, Contents), AllocError>;
    fn alloc_bulk_raw(&self, gfp: Gfp, order: Order, out: &mut [Frame]) -> usize;
    fn fill_bulk_raw(&self, gfp: Gfp, order: Order, slots: &mut [Option<Frame>]) -> usize;
    fn alloc_contig_raw(&self, gfp: Gfp, blocks: u32, align_blocks: u32) -> Result<Frame, AllocError>;
    fn free_raw(&self, frame: Frame, order: Order) -> Result<(), FreeError>;
    fn free_zeroed_raw(&self, frame: Frame, order: Order) -> Result<(), FreeError>;
    fn free_bulk_raw(&self, order: Order, frames: &[Frame]) -> Result<(), (usize, FreeError)>;
    fn free_range_raw(&self, frames: FrameRange) -> Result<(), (usize, FreeError)>;
    fn free_contig_raw(&self, frame: Frame, blocks: u32) -> Result<(), FreeError>;
    fn clear_raw(&self, frames: FrameRange, hint: TouchHint);
    fn clear_extent_raw(&self, extent: &Extent) -> Result<(), Cancelled>;
    fn copy_raw(&self, from: FrameRange, to: Frame, hint: TouchHint);
    fn copy_extent_raw(&self, from: FrameRange, to: Frame, hint: TouchHint) -> Result<(), Cancelled>;
    fn take_dirty_raw(&self, frame: Frame) -> bool;
    fn take_accessed_raw(&self, frame: Frame) -> bool;
    fn release_raw(&self, frames: FrameRange) -> u64;
    fn split_raw(&self, frame: Frame, to: Order) -> Result<u64, SplitError>;
    fn split_mapped_raw(&self, frame: Frame, to: Order) -> Result<u64, SplitError>;
    fn add_memory_raw(&self, range: FrameRange, zeroed: bool) -> Result<(), HotplugError>;
}

impl<P: IsolatedMemory> RawPages for PageAllocator<'_, P> {
    #[inline(always)]
    fn alloc_raw(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        Ok(self.alloc(gfp, order)?.into_raw())
    }

    #[inline(always)]
    fn alloc_maybe_zeroed_raw(&self, gfp: Gfp, order: Order) -> Result<(Frame, Contents), AllocError> {
        let (folio, contents) = self.alloc_maybe_zeroed(gfp, order)?;
        Ok((folio.into_raw(), contents))
    }

    fn alloc_bulk_raw(&self, gfp: Gfp, order: Order, out: &mut [Frame]) -> usize {
        self.alloc_bulk(gfp, order, out).into_raw().len()
    }

    fn fill_bulk_raw(&self, gfp: Gfp, order: Order, slots: &mut [Option<Frame>]) -> usize {
        // SAFETY: invariant 1: the test owns the machine's memory.
        let folio = |frame| unsafe { self.frames().folio_from_raw(frame, order) };
        let mut folios: Vec<_> = slots.iter().map(|slot| slot.map(folio)).collect();
        let filled = self.requests().fill_bulk(gfp, order, &mut folios);
        slots.iter_mut().zip(folios).for_each(|(slot, folio)| *slot = folio.map(Folio::into_raw));
        filled
    }

    fn alloc_contig_raw(&self, gfp: Gfp, blocks: u32, align_blocks: u32) -> Result<Frame, AllocError> {
        Ok(self.alloc_contig(gfp, blocks, align_blocks)?.into_raw().start)
    }

    #[inline(always)]
    fn free_raw(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        self.free(unsafe { self.frames().folio_from_raw(frame, order) })
    }

    fn free_zeroed_raw(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        self.requests().free_zeroed(unsafe { self.frames().folio_from_raw(frame, order) })
    }

    fn free_bulk_raw(&self, order: Order, frames: &[Frame]) -> Result<(), (usize, FreeError)> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        self.free_bulk(unsafe { self.frames().folios_from_raw(order, frames) })
    }

    fn free_range_raw(&self, frames: FrameRange) -> Result<(), (usize, FreeError)> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        let freed = self.free_range(unsafe { self.frames().run_from_raw(frames) });
        freed.map_err(|(rest, error)| ((frames.count - rest.into_raw().count) as usize, error))
    }

    fn free_contig_raw(&self, frame: Frame, blocks: u32) -> Result<(), FreeError> {
        let frames = FrameRange::new(frame, u64::from(blocks) * Order::BLOCK.frames());
        // SAFETY: invariant 1: the test owns the machine's memory.
        self.free_contig(unsafe { self.frames().run_from_raw(frames) })
    }

    fn clear_raw(&self, frames: FrameRange, hint: TouchHint) {
        check(self.platform(), frames);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.frames().clear_frames(frames, hint) }
    }

    fn clear_extent_raw(&self, extent: &Extent) -> Result<(), Cancelled> {
        check(self.platform(), extent.frames);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.frames().clear_frames_in_stretches(extent) }
    }

    fn copy_raw(&self, from: FrameRange, to: Frame, hint: TouchHint) {
        check_both(self.platform(), from, to);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.frames().copy_frames(from, to, hint) }
    }

    fn copy_extent_raw(&self, from: FrameRange, to: Frame, hint: TouchHint) -> Result<(), Cancelled> {
        check_both(self.platform(), from, to);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.frames().copy_frames_in_stretches(from, to, hint) }
    }

    fn take_dirty_raw(&self, frame: Frame) -> bool {
        // SAFETY: invariant 3: the test is the page cache of the machine's frames.
        unsafe { self.frames().take_dirty(frame) }
    }

    fn take_accessed_raw(&self, frame: Frame) -> bool {
        // SAFETY: invariant 3: the test is the page cache of the machine's frames.
        unsafe { self.frames().take_accessed(frame) }
    }

    fn release_raw(&self, frames: FrameRange) -> u64 {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.counts().release(frames) }
    }

    fn split_raw(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.split_folio(frame, to) }
    }

    fn split_mapped_raw(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.split_mapped(frame, to) }
    }

    fn add_memory_raw(&self, range: FrameRange, zeroed: bool) -> Result<(), HotplugError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.add_memory(range, zeroed) }
    }
}

/// A counter of leaves that only the test uses.
#[allow(missing_docs)]
pub trait RawCounts {
    fn unmap_raw(&mut self, run: FrameRange) -> u64;
    fn unmap_each_raw(&mut self, block: BlockNumber, frames: FrameMask) -> u64;
    fn unmap_large_raw(&mut self, frame: Frame, size: PageSize, contents: Contents) -> u64;
}

impl<P: IsolatedMemory> RawCounts for Counter<'_, '_, P> {
    #[inline(always)]
    fn unmap_raw(&mut self, run: FrameRange) -> u64 {
        // SAFETY: invariant 5: a count that was not counted up panics, and the test owns the machine's memory.
        unsafe { self.unmap(run) }
    }

    #[inline(always)]
    fn unmap_each_raw(&mut self, block: BlockNumber, frames: FrameMask) -> u64 {
        // SAFETY: invariant 5: a count that was not counted up panics, and the test owns the machine's memory.
        unsafe { self.unmap_each(block, frames) }
    }

    #[inline(always)]
    fn unmap_large_raw(&mut self, frame: Frame, size: PageSize, contents: Contents) -> u64 {
        // SAFETY: invariant 5: a count that was not counted up panics, and the test owns the machine's memory.
        unsafe { self.unmap_large(frame, size, contents) }
    }
}

/// A machine that clears and copies any of its frames.
#[allow(missing_docs)]
pub trait RawMachine: IsolatedMemory {
    fn clear_raw(&self, frames: FrameRange, kernel: ReadyClear) {
        check(self, frames);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are; a process's vector registers
        // may be used.
        unsafe { self.clear(frames, kernel) }
    }

    fn copy_raw(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        check_both(self, from, to);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are; a process's vector registers
        // may be used.
        unsafe { self.copy(from, to, kernel) }
    }

    /// Entry `index` of the page table in `table`.
    fn load_entry_raw(&self, table: Frame, index: usize) -> Entry {
        Entry::from_bits(entry_word(self, table, index).load(Ordering::Acquire))
    }

    /// Writes entry `index` of a page table that the test built.
    fn store_entry_raw(&self, table: Frame, index: usize, entry: Entry) {
        entry_word(self, table, index).store(entry.bits(), Ordering::Release);
    }
}

/// The word at `index` of a page table.
fn entry_word<P: IsolatedMemory + ?Sized>(platform: &P, table: Frame, index: usize) -> &AtomicU64 {
    assert!(index < TABLE_ENTRIES, "a table has {TABLE_ENTRIES} entries");
    check(platform, FrameRange::new(table, 1));
    let words = platform.direct_map(table.addr()).cast::<u64>();
    // SAFETY: H1: the frame is memory of the machine (`check`) for as long as that lives, aligned to 4 KiB, and the index lies in
    // it. Page tables are reached by atomics alone (W1).
    unsafe { AtomicU64::from_ptr(words.add(index)) }
}

impl<P: IsolatedMemory> RawMachine for P {}

/// A clearer that clears and copies any frames of a machine.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait RawClearer {
    fn clear_raw<P: IsolatedMemory>(&self, platform: &P, frames: FrameRange, hint: TouchHint);
    fn clear_extent_raw<P: IsolatedMemory>(
        &self,
        platform: &P,
        extent: &Extent,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled>;
    fn copy_raw<P: IsolatedMemory>(&self, platform: &P, from: FrameRange, to: Frame, hint: TouchHint);
    fn copy_extent_raw<P: IsolatedMemory>(
        &self,
        platform: &P,
        from: FrameRange,
        to: Frame,
        hint: TouchHint,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled>;
}

impl RawClearer for Clearer {
    fn clear_raw<P: IsolatedMemory>(&self, platform: &P, frames: FrameRange, hint: TouchHint) {
        check(platform, frames);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.clear(platform, frames, hint) }
    }

    fn clear_extent_raw<P: IsolatedMemory>(
        &self,
        platform: &P,
        extent: &Extent,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled> {
        check(platform, extent.frames);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.clear_extent(platform, extent, cancel) }
    }

    fn copy_raw<P: IsolatedMemory>(&self, platform: &P, from: FrameRange, to: Frame, hint: TouchHint) {
        check_both(platform, from, to);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.copy(platform, from, to, hint) }
    }

    fn copy_extent_raw<P: IsolatedMemory>(
        &self,
        platform: &P,
        from: FrameRange,
        to: Frame,
        hint: TouchHint,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled> {
        check_both(platform, from, to);
        // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
        unsafe { self.copy_extent(platform, from, to, hint, cancel) }
    }
}

/// [`quire::clear::measure_clear`] on any frames of a machine.
///
/// # Errors
/// As there.
pub fn measure_clear<P: IsolatedMemory>(
    platform: &P,
    clearer: &Clearer,
    kernel: ClearKernel,
    class: usize,
    scratch: FrameRange,
    budget_ns: u64,
) -> Result<Cost, KernelError> {
    check(platform, scratch);
    // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
    unsafe { quire::clear::measure_clear(platform, clearer, kernel, class, scratch, budget_ns) }
}

/// [`quire::clear::measure_copy`] on any frames of a machine.
///
/// # Errors
/// As there.
pub fn measure_copy<P: IsolatedMemory>(
    platform: &P,
    clearer: &Clearer,
    kernel: CopyKernel,
    class: usize,
    scratch: FrameRange,
    budget_ns: u64,
) -> Result<Cost, KernelError> {
    check(platform, scratch);
    // SAFETY: invariant 1: the test owns the machine's memory, which the frames are.
    unsafe { quire::clear::measure_copy(platform, clearer, kernel, class, scratch, budget_ns) }
}
