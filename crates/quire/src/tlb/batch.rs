//! Flushes: collected while entries change, then sent once.

use super::MmContext;
use super::secondary::bracketed;
#[cfg(debug_assertions)]
use crate::addr::Frame;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::limits::{FLUSH_PAGES_CEILING, FRAME_SIZE};
use crate::page_alloc::PageAllocator;
use crate::platform::{FlushExtent, FlushRequest, TablePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// A flush that is owed: the addresses whose translations changed, the smallest leaf among them, and whether
/// tables were removed. In debug builds, dropping one that was not flushed panics.
///
/// A secondary MMU must be told where its copies of leaves go bad. Where leaves are only split or collapsed,
/// copies stay good: `add_split` and `add_reshaped` owe a flush of the CPUs alone.
#[must_use = "a flush that is owed must be made"]
#[derive(Debug)]
pub struct FlushBatch {
    /// Empty when nothing is owed.
    range: VirtRange,
    stride: PageSize,
    tables: bool,
    /// Frames or rights changed, so copies of a secondary MMU are stale.
    copies: bool,
    /// The root of the address space that owes the flush, where that is known.
    #[cfg(debug_assertions)]
    root: Option<Frame>,
}

impl FlushBatch {
    /// Nothing is owed.
    #[inline]
    pub fn new() -> Self {
        Self {
            range: VirtRange::default(),
            stride: PageSize::Size1G,
            tables: false,
            copies: false,
            #[cfg(debug_assertions)]
            root: None,
        }
    }

    /// Notes whose flush is owed until it is made; debug builds refuse that of two address spaces in one batch.
    #[inline]
    pub(crate) fn owe_for(&mut self, _context: &MmContext) {
        #[cfg(debug_assertions)]
        {
            self.check_root(_context);
            self.root = Some(_context.root());
        }
    }

    #[cfg(debug_assertions)]
    fn check_root(&mut self, context: &MmContext) {
        assert!(
            self.is_empty() || self.root.is_none_or(|root| root == context.root()),
            "a batch owes the flush of another address space (invariant 2): flush it first, with the context of \
             the tables that filled it, or use a batch for each address space"
        );
        self.root = None;
    }

    /// Whether nothing is owed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Owes a flush of the leaves of `stride` in `range`.
    #[inline]
    pub fn add(&mut self, range: VirtRange, stride: PageSize) {
        self.add_split(range, stride);
        self.copies |= !range.is_empty();
    }

    /// Owes a flush of leaves of `stride` in `range` that were split, with the same frames and rights.
    #[inline]
    pub(crate) fn add_split(&mut self, range: VirtRange, stride: PageSize) {
        if self.range.is_empty() {
            self.range = range;
        } else if !range.is_empty() {
            self.range.start = self.range.start.min(range.start);
            self.range.end = self.range.end.max(range.end);
        }
        self.stride = self.stride.min(stride);
    }

    /// Owes a flush of everything in `range`, paging-structure caches included, for detached or moved tables.
    #[inline]
    pub(crate) fn add_tables(&mut self, range: VirtRange) {
        self.add(range, PageSize::Size4K);
        self.tables = true;
    }

    /// Owes the same flush for tables replaced by larger leaves with the same frames and rights.
    #[inline]
    pub(crate) fn add_reshaped(&mut self, range: VirtRange) {
        self.add_split(range, PageSize::Size4K);
        self.tables = true;
    }

    /// Makes the flush that is owed, if any. Afterwards no CPU uses a translation cached before the entries
    /// changed, and no secondary MMU a copy of one. Waits for other CPUs and the secondary MMU, so the caller
    /// holds no lock but that of an address space.
    pub fn flush<P: TablePlatform>(&mut self, allocator: &PageAllocator<'_, P>, context: &MmContext) {
        #[cfg(debug_assertions)]
        self.check_root(context);
        if self.is_empty() {
            return;
        }
        let request = self.request(context);
        let range = core::mem::take(&mut self.range);
        let copies = core::mem::take(&mut self.copies);
        (self.stride, self.tables) = (PageSize::Size1G, false);
        if copies && context.has_secondary() {
            bracketed(allocator.platform(), context, range, || shoot_down(allocator, context, &request));
        } else {
            shoot_down(allocator, context, &request);
        }
    }

    /// Cancels the flush: no CPU can have cached what changed, and no secondary MMU can have a copy.
    pub(crate) fn forgive(&mut self) {
        (self.range, self.stride, self.tables) = (VirtRange::default(), PageSize::Size1G, false);
        self.copies = false;
    }

    fn request(&self, context: &MmContext) -> FlushRequest {
        let pages = self.range.len() / self.stride.bytes();
        let extent = if pages > FLUSH_PAGES_CEILING {
            FlushExtent::AddressSpace
        } else {
            FlushExtent::Range { range: self.range, stride: self.stride.bytes() }
        };
        FlushRequest { root: context.root(), extent, tables: self.tables }
    }
}

impl Default for FlushBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for FlushBatch {
    fn drop(&mut self) {
        debug_assert!(
            self.is_empty(),
            "a flush of {:?} is owed and was never made (invariant 2)",
            self.range
        );
    }
}

/// Flushes the page at an address whose leaf was changed, if the running CPU alone may have it cached. It waits
/// for nothing then, so the caller may hold a page-table lock. Returns `false` otherwise, and flushes nothing.
#[inline(always)]
pub(crate) fn flush_page_here<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    context: &MmContext,
    addr: VirtAddr,
) -> bool {
    let range = VirtRange::from_len(addr.align_down(FRAME_SIZE), FRAME_SIZE);
    let extent = FlushExtent::Range { range, stride: FRAME_SIZE };
    let request = FlushRequest { root: context.root(), extent, tables: false };
    !context.has_secondary() && flush_here(allocator, context, &request)
}

/// Flushes the page at an address whose leaf was changed. Waits as [`FlushBatch::flush`] does.
#[inline]
pub(crate) fn flush_page<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    context: &MmContext,
    addr: VirtAddr,
) {
    if !flush_page_here(allocator, context, addr) {
        let mut owed = FlushBatch::new();
        owed.add(VirtRange::from_len(addr.align_down(FRAME_SIZE), FRAME_SIZE), PageSize::Size4K);
        owed.flush(allocator, context);
    }
}

/// Flushes every CPU that runs the address space.
#[inline]
fn shoot_down<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    context: &MmContext,
    request: &FlushRequest,
) {
    if !flush_here(allocator, context, request) {
        flush_elsewhere(allocator, context, request);
    }
}

/// Flushes the running CPU if no other one runs the address space; returns whether none does.
#[inline(always)]
fn flush_here<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    context: &MmContext,
    request: &FlushRequest,
) -> bool {
    let platform = allocator.platform();
    let _flushing = context.begin_flush(platform);
    let pinned = Pinned::new(platform);
    let (local, remote) = context.runs_here_and_elsewhere(platform, pinned.cpu());
    if remote {
        return false;
    }
    if local {
        platform.flush_local(request);
        count_local(allocator, request);
    } else {
        allocator.count(Stat::TlbFlushAvoided, 1);
    }
    true
}

/// Counts a local flush: one of an address space, or as in Linux each page of a range.
#[inline(always)]
fn count_local<P: TablePlatform>(allocator: &PageAllocator<'_, P>, request: &FlushRequest) {
    match request.extent {
        FlushExtent::AddressSpace => allocator.count(Stat::NrTlbLocalFlushAll, 1),
        FlushExtent::Range { range, stride } => {
            allocator.count(Stat::NrTlbLocalFlushOne, range.len() >> stride.trailing_zeros());
        }
    }
}

/// Flushes every CPU that runs the address space. The remote flush overlaps the local one.
#[cold]
#[inline(never)]
fn flush_elsewhere<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    context: &MmContext,
    request: &FlushRequest,
) {
    let platform = allocator.platform();
    let _flushing = context.begin_flush(platform);
    let pinned = Pinned::new(platform);
    let mut targets = context.running();
    let local = targets.remove(pinned.cpu());
    let remote = !targets.is_empty();
    if remote {
        platform.flush_remote_start(&targets, request);
        allocator.count(Stat::NrTlbRemoteFlush, 1);
        allocator.count(Stat::NrTlbRemoteFlushReceived, targets.len() as u64);
    }
    if local {
        platform.flush_local(request);
        count_local(allocator, request);
    }
    if remote {
        platform.flush_remote_wait(&targets, request);
    }
}
