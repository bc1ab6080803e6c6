//! Page tables: walk, map, unmap, protect, split, collapse, copy and move, a run of entries at a time.
//!
//! # Protocol
//!
//! A page-table page is a frame of order 0. Its [`Descriptor`](crate::memmap::Descriptor) holds its lock, its
//! level, its number of non-empty entries (`population`), and the place of its parent's entry (`word`). A
//! task *adds* a table under its parent's lock while it holds the address-space lock at least for reading. It
//! *removes* one only while it holds that lock for writing, and admits no reader that could reach it
//! (`vm/space/beside.rs`). So a reader walks the upper levels without a lock, and changes leaves under their
//! table's lock (a second one, in `copy` and `move`, has its own rank).
//!
//! Under a table's lock no task allocates, clears or waits for a flush: preallocate, lock, recheck, commit,
//! unlock. Map counts rise under it, before the leaf appears; they fall after the flush.
//!
//! A task that replaces a leaf by one of another size or frame first stores
//! `Entry::BUSY`, then flushes, then fills: no two CPUs ever use different frames
//! or sizes for an address. (As in Linux, one exception: where a 4 KiB leaf is unmapped under the shared hold, a
//! fault may map another frame before the flush.) All other tasks wait at a busy entry, those that only look
//! too, and then walk again. A task that has a busy entry of its own waits for no other.
//!
//! Plain stores change leaves in which hardware has nothing left to set
//! ([`Entry::is_settled`](crate::arch::Entry::is_settled)), atomic exchanges all others (invariant 3).
//! Callers that set the accessed bit of what they map, and the dirty bit of what they map writable, save a
//! locked operation per entry later on.
//!
//! Each method says which hold of the address-space lock it needs: *shared* or *exclusive*. The caller of
//! [`PageTables::new`] promises it (W6).

mod collapse;
mod collapse_copy;
mod copy;
mod destroy;
mod drop_zeroes;
mod fresh;
mod harvest;
mod leaves;
mod lock;
mod map;
mod move_range;
mod poison;
mod prepare;
mod protect;
mod relocate;
mod replace;
mod share;
mod split;
mod track;
mod unmap;
mod update;
mod validate;
mod walk;

pub use collapse::Obstacle;
pub use collapse_copy::{Copied, Run, Survey, TableSurvey};
pub use copy::CopyMode;
pub use leaves::Leaf;
pub use move_range::MoveError;
pub use protect::GrantWrite;
pub use relocate::Relocation;
pub(crate) use unmap::RangeEnds;
pub use unmap::Zap;
pub use validate::{TableCensus, TableViolation};
pub(crate) use walk::Walked;
pub use walk::{LeafRun, Lookup};

use crate::addr::{Frame, VirtRange};
use crate::arch::PagingMode;
use crate::error::MapError;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::tlb::MmContext;
use crate::tlb::words::Table;

use fresh::FreshTable;

/// The page tables of one address space, as a handle for the verbs.
pub struct PageTables<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    context: &'a MmContext,
}

impl<P: TablePlatform> Clone for PageTables<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: TablePlatform> Copy for PageTables<'_, '_, P> {}

impl<'a, 'p, P: TablePlatform> PageTables<'a, 'p, P> {
    /// A handle on the tables of `context`, whose frames are those of `allocator`.
    ///
    /// # Safety
    /// W6, for every call by this handle and its copies:
    ///
    /// - `context` was created with `allocator`.
    /// - The caller holds the lock of the address space as the method says. A call that says nothing is *shared*.
    /// - A gather or a flush batch that it passes is for the same address space, and is flushed before an exclusive
    ///   hold ends.
    /// - A leaf gains rights only over frames that may be accessed so: all owners of the frame allow it.
    ///
    /// A handle is made in `unsafe` code only:
    ///
    /// ```compile_fail,E0133
    /// # use quire::{page_alloc::PageAllocator, pgtable::PageTables, platform::TablePlatform, tlb::MmContext};
    /// # fn example<P: TablePlatform>(pages: &PageAllocator<'_, P>, context: &MmContext) {
    /// PageTables::new(pages, context);
    /// # }
    /// ```
    #[inline]
    pub unsafe fn new(allocator: &'a PageAllocator<'p, P>, context: &'a MmContext) -> Self {
        Self { allocator, context }
    }

    /// An empty address space, whose root has the kernel's half ([`TablePlatform::kernel_root`]).
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`].
    pub fn create(allocator: &PageAllocator<'p, P>, mode: PagingMode) -> Result<MmContext, MapError> {
        Ok(MmContext::new(FreshTable::new(allocator, mode.top())?.into_root(), mode))
    }

    /// The address space's identity.
    #[inline]
    pub fn context(&self) -> &'a MmContext {
        self.context
    }

    #[inline]
    fn platform(&self) -> &'p P {
        self.allocator.platform()
    }

    #[inline]
    fn root(&self) -> Table<'p> {
        Table::at(self.platform(), self.context.root(), self.context.mode().top())
    }

    /// Refuses ranges that are not made of user pages.
    #[inline]
    fn check(&self, range: VirtRange) -> Result<(), MapError> {
        if self.context.mode().user_range().covers(range) && range.start <= range.end {
            Ok(())
        } else {
            Err(MapError::BadAddress)
        }
    }
}

/// The place of a table: its parent's frame and the index of the parent's entry, in one word.
#[inline]
fn place_of(parent: Frame, index: usize) -> u64 {
    parent.0 << 9 | index as u64
}
