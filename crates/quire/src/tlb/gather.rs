//! The gather: collects what was unmapped, flushes once, and only then takes it apart.

use core::sync::atomic::Ordering;

use super::drain::Drain;
use super::unmapped::Kind;
use super::words::words;
use super::{FlushBatch, MmContext, RssChange, Unmapped};
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtRange};
use crate::arch::{Entry, Level};
use crate::limits::{GATHER_PAGES, GATHER_SPANS, GATHER_TABLES, TABLE_ENTRIES};
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::Platform;
use crate::rank::Rank;

/// Collects what was unmapped from one address space, flushes the CPUs that run it, and then drops map counts and frees
/// what nobody maps any more. Bounded: [`GATHER_TABLES`] detached tables; [`GATHER_SPANS`] runs of leaves inline and 512
/// more on each of up to [`GATHER_PAGES`] pages, taken as needed and done without when memory is out.
///
/// Whoever holds the address-space lock for writing flushes before giving it back; [`Self::finish`] may follow without
/// the lock, since what is detached and flushed can be reached by nobody. In debug builds dropping a gather that is not
/// finished panics.
///
/// Source: the shape of Linux's `mmu_gather` (`mm/mmu_gather.c`), with detached tables in place of entries.
#[must_use = "a gather must be finished"]
pub struct MmuGather<'a, 'p, P: Platform> {
    allocator: &'a PageAllocator<'p, P>,
    context: &'a MmContext,
    owed: FlushBatch,
    rss: RssChange,
    tables: [u64; GATHER_TABLES],
    table_count: usize,
    spans: [u64; GATHER_SPANS],
    span_count: usize,
    pages: [Frame; GATHER_PAGES],
    page_count: usize,
}

/// A run of leaves, or a busy entry, in one word: frame in bits 0 to 39, number of leaves or index of the entry in bits
/// 40 to 59, what it is in 60 to 61, anonymous in 62.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span(u64);

const COUNT_SHIFT: u32 = 40;
const COUNT_MAX: u64 = (1 << 20) - 1;
const KIND_SHIFT: u32 = 60;
const KIND_BUSY: u64 = 3;
const ANON: u64 = 1 << 62;

impl Span {
    fn leaves(frame: Frame, leaves: u64, size: PageSize, anon: bool) -> Self {
        debug_assert!(leaves <= COUNT_MAX);
        let anon = if anon { ANON } else { 0 };
        Self(frame.0 | leaves << COUNT_SHIFT | (size as u64) << KIND_SHIFT | anon)
    }

    fn busy(table: Frame, index: usize) -> Self {
        Self(table.0 | (index as u64) << COUNT_SHIFT | KIND_BUSY << KIND_SHIFT)
    }

    fn frame(self) -> Frame {
        Frame(self.0 & ((1 << COUNT_SHIFT) - 1))
    }

    fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT & COUNT_MAX
    }

    /// The leaf size, or `None` for a busy entry.
    fn size(self) -> Option<PageSize> {
        match self.0 >> KIND_SHIFT & 3 {
            0 => Some(PageSize::Size4K),
            1 => Some(PageSize::Size2M),
            2 => Some(PageSize::Size1G),
            _ => None,
        }
    }

    fn is_anon(self) -> bool {
        self.0 & ANON != 0
    }

    /// The two runs as one, if `next` goes on where `self` ends.
    fn merged(self, next: Self) -> Option<Self> {
        let size = self.size()?;
        let follows = self.frame().add(self.count() * size.frames()) == next.frame();
        let alike = self.0 >> KIND_SHIFT == next.0 >> KIND_SHIFT;
        (follows && alike && self.count() + next.count() <= COUNT_MAX)
            .then(|| Self(self.0 + (next.count() << COUNT_SHIFT)))
    }
}

impl<'a, 'p, P: Platform> MmuGather<'a, 'p, P> {
    /// A gather for one address space, empty.
    pub fn new(allocator: &'a PageAllocator<'p, P>, context: &'a MmContext) -> Self {
        Self {
            allocator,
            context,
            owed: FlushBatch::new(),
            rss: RssChange::default(),
            tables: [0; GATHER_TABLES],
            table_count: 0,
            spans: [0; GATHER_SPANS],
            span_count: 0,
            pages: [Frame(0); GATHER_PAGES],
            page_count: 0,
        }
    }

    /// How many more runs it can take.
    #[inline]
    pub(crate) fn span_room(&self) -> usize {
        GATHER_SPANS + self.page_count * TABLE_ENTRIES - self.span_count
    }

    /// How many more detached tables it can take.
    #[inline]
    pub(crate) fn table_room(&self) -> usize {
        GATHER_TABLES - self.table_count
    }

    /// Makes room for at least two runs and one table: by a page for more runs, or by flushing. No page-table lock may
    /// be held.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        if self.span_room() < 2 || self.table_room() == 0 {
            self.make_room_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room_slow(&mut self) {
        if self.table_room() > 0
            && self.page_count < GATHER_PAGES
            && let Ok(page) = self.allocator.alloc(Gfp::KERNEL, Order::FRAME)
        {
            self.pages[self.page_count] = page;
            self.page_count += 1;
            return;
        }
        self.flush_and_drain();
    }

    /// Takes what was unmapped. File frames that were stored through are marked dirty at once, while they are still
    /// counted as mapped.
    ///
    /// # Panics
    /// When there is no room; the caller has asked before it changed the entry.
    #[inline]
    pub(crate) fn add(&mut self, unmapped: Unmapped) {
        match unmapped.into_kind() {
            Kind::Leaves { frames, size, anon, dirty } => {
                if dirty && !anon {
                    super::drain::mark_dirty(self.allocator, frames, size);
                }
                self.push(Span::leaves(frames.start, frames.count >> size.order().get(), size, anon));
            }
            Kind::Busy { table, index } => self.push(Span::busy(table, index)),
            Kind::Table { frame, level } => {
                self.tables[self.table_count] = frame.0 | u64::from(level.get()) << COUNT_SHIFT;
                self.table_count += 1;
            }
        }
    }

    /// Owes a flush of the leaves of `stride` in `range`.
    #[inline]
    pub(crate) fn owe(&mut self, range: VirtRange, stride: PageSize) {
        self.owed.add(range, stride);
    }

    /// Owes a flush of everything in `range`, paging-structure caches included.
    #[inline]
    pub(crate) fn owe_tables(&mut self, range: VirtRange) {
        self.owed.add_tables(range);
    }

    fn push(&mut self, span: Span) {
        if let Some(last) = self.span_count.checked_sub(1)
            && let Some(merged) = self.span(last).merged(span)
        {
            return self.set_span(last, merged);
        }
        assert!(self.span_room() > 0, "a gather was given more than it has room for");
        self.set_span(self.span_count, span);
        self.span_count += 1;
    }

    #[inline]
    fn span(&self, at: usize) -> Span {
        match at.checked_sub(GATHER_SPANS) {
            None => Span(self.spans[at]),
            Some(at) => {
                let page = words(self.allocator.platform(), self.pages[at / TABLE_ENTRIES]);
                Span(page[at % TABLE_ENTRIES].load(Ordering::Relaxed))
            }
        }
    }

    #[inline]
    fn set_span(&mut self, at: usize, span: Span) {
        match at.checked_sub(GATHER_SPANS) {
            None => self.spans[at] = span.0,
            Some(at) => {
                let page = words(self.allocator.platform(), self.pages[at / TABLE_ENTRIES]);
                page[at % TABLE_ENTRIES].store(span.0, Ordering::Relaxed);
            }
        }
    }

    /// Flushes what was unmapped so far. Afterwards no CPU reaches it, and the address-space lock may be given back. No
    /// page-table lock may be held.
    pub fn flush(&mut self) {
        self.owed.flush(self.allocator, self.context);
        if (0..self.span_count).any(|at| self.span(at).size().is_none()) {
            self.release_busy();
        }
    }

    /// Flushes, then drops the counts of what was unmapped so far and frees what nobody maps any more.
    pub(crate) fn flush_and_drain(&mut self) {
        self.flush();
        let mut drain = Drain::new(self.allocator, self.context);
        for at in 0..self.span_count {
            let span = self.span(at);
            let Some(size) = span.size() else { continue };
            let frames = FrameRange::new(span.frame(), span.count() * size.frames());
            drain.leaves(frames, size, span.is_anon());
        }
        self.span_count = 0;
        for &table in &self.tables[..self.table_count] {
            let level = level_from((table >> COUNT_SHIFT) as u8);
            drain.subtree(Frame(table & ((1 << COUNT_SHIFT) - 1)), level);
        }
        self.table_count = 0;
        self.rss += drain.finish();
    }

    /// Empties the entries that were marked busy until the flush, so that faults may fill them again.
    #[cold]
    fn release_busy(&mut self) {
        let platform = self.allocator.platform();
        let mut kept = 0;
        for at in 0..self.span_count {
            let span = self.span(at);
            if span.size().is_some() {
                self.set_span(kept, span);
                kept += 1;
                continue;
            }
            let descriptor = self.allocator.descriptor(span.frame());
            descriptor.lock_table(platform, Rank::PageTable);
            words(platform, span.frame())[span.count() as usize]
                .store(Entry::EMPTY.bits(), Ordering::Release);
            let population = descriptor.population.load(Ordering::Relaxed);
            descriptor.population.store(population - 1, Ordering::Relaxed);
            descriptor.unlock_table(platform, Rank::PageTable);
        }
        self.span_count = kept;
    }

    /// Flushes what is still owed, frees what nobody maps any more, and says by how much resident memory changed (never
    /// upwards).
    pub fn finish(mut self) -> RssChange {
        self.flush_and_drain();
        for page in self.pages.iter().take(core::mem::take(&mut self.page_count)) {
            let freed = self.allocator.free(*page, Order::FRAME);
            debug_assert_eq!(freed, Ok(()));
        }
        self.rss
    }
}

impl<P: Platform> Drop for MmuGather<'_, '_, P> {
    fn drop(&mut self) {
        debug_assert!(
            self.span_count == 0 && self.table_count == 0 && self.page_count == 0,
            "a gather was not finished (invariant 2)"
        );
    }
}

/// The level with this number.
fn level_from(number: u8) -> Level {
    match number {
        0 => Level::PTE,
        1 => Level::PMD,
        2 => Level::PUD,
        3 => Level::P4D,
        _ => Level::PGD,
    }
}
