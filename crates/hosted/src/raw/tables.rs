//! Page tables that map any frames.
#![allow(unsafe_code)]

use quire::addr::{Frame, FrameRange, PageSize, VirtAddr};
use quire::arch::{Entry, EntryFlags};
use quire::error::MapError;
use quire::memmap::FrameMask;
use quire::page_alloc::PageAllocator;
use quire::pgtable::{Copied, PageTables, Relocation, Run};
use quire::platform::TablePlatform;
use quire::tlb::{MmContext, MmuGather};

use super::IsolatedMemory;

/// The page tables of `context`, which the test uses as it pleases.
#[inline(always)]
pub fn page_tables<'a, 'p, P: TablePlatform + IsolatedMemory>(
    allocator: &'a PageAllocator<'p, P>,
    context: &'a MmContext,
) -> PageTables<'a, 'p, P> {
    // SAFETY: W6: the test holds the locks that it needs; no value of the process depends on what a leaf maps.
    unsafe { PageTables::new(allocator, context) }
}

/// Page tables that map any frames that the test names.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait RawTables<'p, P: TablePlatform> {
    fn map_raw(&self, addr: VirtAddr, run: FrameRange, flags: EntryFlags) -> Result<(), MapError>;
    fn map_where_empty_raw(
        &self,
        addr: VirtAddr,
        run: FrameRange,
        flags: EntryFlags,
    ) -> Result<u64, MapError>;
    fn map_large_raw(
        &self,
        addr: VirtAddr,
        frame: Frame,
        size: PageSize,
        flags: EntryFlags,
    ) -> Result<(), MapError>;
    fn map_special_raw(&self, addr: VirtAddr, frame: Frame, flags: EntryFlags) -> Result<(), MapError>;
    fn replace_raw(
        &self,
        addr: VirtAddr,
        size: PageSize,
        expected: Entry,
        new: Entry,
        gather: &mut MmuGather<'_, 'p, P>,
    ) -> Result<bool, MapError>;
    fn relocate_raw(
        &self,
        leaves: &mut [Option<Relocation>],
        size: PageSize,
        gather: &mut MmuGather<'_, 'p, P>,
        copy: impl FnMut(&Relocation),
    ) -> Result<usize, MapError>;
    fn drop_zeroes_raw(
        &self,
        addr: VirtAddr,
        candidates: FrameMask,
        zero: (Frame, EntryFlags),
        gather: &mut MmuGather<'_, 'p, P>,
    ) -> u64;
    fn put_leaf_raw(
        &self,
        addr: VirtAddr,
        to: Frame,
        flags: EntryFlags,
        copied: &mut Copied,
        gather: &mut MmuGather<'_, 'p, P>,
        show: impl FnMut(Run),
    ) -> Option<u64>;
}

impl<'p, P: TablePlatform + IsolatedMemory> RawTables<'p, P> for PageTables<'_, 'p, P> {
    #[inline(always)]
    fn map_raw(&self, addr: VirtAddr, run: FrameRange, flags: EntryFlags) -> Result<(), MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.map(addr, run, flags) }
    }

    fn map_where_empty_raw(
        &self,
        addr: VirtAddr,
        run: FrameRange,
        flags: EntryFlags,
    ) -> Result<u64, MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.map_where_empty(addr, run, flags) }
    }

    fn map_large_raw(
        &self,
        addr: VirtAddr,
        frame: Frame,
        size: PageSize,
        flags: EntryFlags,
    ) -> Result<(), MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.map_large(addr, frame, size, flags) }
    }

    fn map_special_raw(&self, addr: VirtAddr, frame: Frame, flags: EntryFlags) -> Result<(), MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.map_special(addr, frame, flags) }
    }

    fn replace_raw(
        &self,
        addr: VirtAddr,
        size: PageSize,
        expected: Entry,
        new: Entry,
        gather: &mut MmuGather<'_, 'p, P>,
    ) -> Result<bool, MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.replace(addr, size, expected, new, gather) }
    }

    fn relocate_raw(
        &self,
        leaves: &mut [Option<Relocation>],
        size: PageSize,
        gather: &mut MmuGather<'_, 'p, P>,
        copy: impl FnMut(&Relocation),
    ) -> Result<usize, MapError> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.relocate(leaves, size, gather, copy) }
    }

    fn drop_zeroes_raw(
        &self,
        addr: VirtAddr,
        candidates: FrameMask,
        zero: (Frame, EntryFlags),
        gather: &mut MmuGather<'_, 'p, P>,
    ) -> u64 {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.drop_zeroes(addr, candidates, zero, gather) }
    }

    fn put_leaf_raw(
        &self,
        addr: VirtAddr,
        to: Frame,
        flags: EntryFlags,
        copied: &mut Copied,
        gather: &mut MmuGather<'_, 'p, P>,
        show: impl FnMut(Run),
    ) -> Option<u64> {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.put_leaf(addr, to, flags, copied, gather, show) }
    }
}
