//! The gather: collects what was unmapped, flushes once, and only then drops counts and frees.
//!
//! # Invariants
//!
//! G1. Each span below `span_count` was stored since the gather was created.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use super::drain::Drain;
use super::marks::carry;
use super::unmapped::{Kind, Leaves};
use super::words::words;
use super::{FlushBatch, MmContext, RssChange, Unmapped};
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, Level};
use crate::limits::{GATHER_PAGES, GATHER_SPANS, GATHER_TABLES, TABLE_ENTRIES};
use crate::page_alloc::{Contents, Gfp, PageAllocator};
use crate::platform::TablePlatform;
use crate::rank::Rank;

/// Collects what was unmapped from one address space, flushes the CPUs that run it, then drops map counts and
/// frees what no leaf maps any more. Holds at most [`GATHER_TABLES`] detached tables, and [`GATHER_SPANS`]
/// runs of leaves inline and 512 on each of up to [`GATHER_PAGES`] pages, if there is memory.
///
/// A task that holds the address-space lock for writing flushes before it releases the lock. [`Self::finish`]
/// may follow without the lock, since no CPU and no walker reaches what is detached and flushed. In debug
/// builds, dropping an unfinished gather panics.
///
/// Source: the shape of Linux's `mmu_gather` (`mm/mmu_gather.c`), with detached tables in place of entries.
#[must_use = "a gather must be finished"]
pub struct MmuGather<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    context: &'a MmContext,
    owed: FlushBatch,
    rss: RssChange,
    /// Not initialized before a span is stored: most gathers hold one.
    spans: [MaybeUninit<u64>; GATHER_SPANS],
    span_count: usize,
    /// How many of the spans are detached tables and busy entries.
    table_count: usize,
    busy_count: usize,
    /// Created for the first page.
    pages: Option<[Frame; GATHER_PAGES]>,
    page_count: usize,
    /// The first detached table that is known to map nothing before some address, and this address.
    begins: Option<(Frame, VirtAddr)>,
}

/// A run of leaves, a detached table or a busy entry, in one word. Bits 0 to 39: the frame. Bits 40 to 59:
/// the number of leaves, the table's level or the entry's index. Bits 60 and 61: the leaf size, or 3. Bit 62:
/// whether leaves are anonymous memory; with size 3, whether it is a table. Bit 63: whether they map zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span(u64);

enum Content {
    Leaves(Leaves),
    Table { frame: Frame, level: Level },
    Busy { table: Frame, index: usize },
}

const COUNT_SHIFT: u32 = 40;
const COUNT_MAX: u64 = (1 << 20) - 1;
const SIZE_SHIFT: u32 = 60;
const NO_SIZE: u64 = 3 << SIZE_SHIFT;
const ANON: u64 = 1 << 62;
const TABLE: u64 = 1 << 62;
const ZEROED: u64 = 1 << 63;

impl Span {
    #[inline]
    fn leaves(Leaves { frames, size, anon, contents }: Leaves) -> Self {
        let leaves = frames.count >> size.order().get();
        debug_assert!(leaves <= COUNT_MAX);
        let anon = if anon { ANON } else { 0 };
        let zeroed = if contents == Contents::Zeroed { ZEROED } else { 0 };
        Self(frames.start.0 | leaves << COUNT_SHIFT | (size as u64) << SIZE_SHIFT | anon | zeroed)
    }

    fn busy(table: Frame, index: usize) -> Self {
        Self(table.0 | (index as u64) << COUNT_SHIFT | NO_SIZE)
    }

    #[inline]
    fn table(frame: Frame, level: Level) -> Self {
        Self(frame.0 | u64::from(level.get()) << COUNT_SHIFT | NO_SIZE | TABLE)
    }

    #[inline]
    fn frame(self) -> Frame {
        Frame(self.0 & ((1 << COUNT_SHIFT) - 1))
    }

    #[inline]
    fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT & COUNT_MAX
    }

    /// The leaf size; `None` for a table or a busy entry.
    #[inline]
    fn size(self) -> Option<PageSize> {
        match self.0 >> SIZE_SHIFT & 3 {
            0 => Some(PageSize::Size4K),
            1 => Some(PageSize::Size2M),
            2 => Some(PageSize::Size1G),
            _ => None,
        }
    }

    #[inline]
    fn content(self) -> Content {
        let frame = self.frame();
        match self.size() {
            Some(size) => Content::Leaves(Leaves {
                frames: FrameRange::new(frame, self.count() * size.frames()),
                size,
                anon: self.0 & ANON != 0,
                contents: if self.0 & ZEROED != 0 { Contents::Zeroed } else { Contents::Unknown },
            }),
            None if self.0 & TABLE != 0 => Content::Table { frame, level: level_from(self.count()) },
            None => Content::Busy { table: frame, index: self.count() as usize },
        }
    }

    /// Both runs as one, if `next` continues `self`.
    fn merged(self, next: Self) -> Option<Self> {
        let size = self.size()?;
        let follows = self.frame().add(self.count() * size.frames()) == next.frame();
        let alike = self.0 >> SIZE_SHIFT == next.0 >> SIZE_SHIFT;
        (follows && alike && self.count() + next.count() <= COUNT_MAX)
            .then(|| Self(self.0 + (next.count() << COUNT_SHIFT)))
    }
}

impl<'a, 'p, P: TablePlatform> MmuGather<'a, 'p, P> {
    /// An empty gather for one address space.
    #[inline]
    pub fn new(allocator: &'a PageAllocator<'p, P>, context: &'a MmContext) -> Self {
        Self {
            allocator,
            context,
            owed: FlushBatch::new(),
            rss: RssChange::default(),
            spans: [const { MaybeUninit::uninit() }; GATHER_SPANS],
            span_count: 0,
            table_count: 0,
            busy_count: 0,
            pages: None,
            page_count: 0,
            begins: None,
        }
    }

    /// How many more spans fit.
    #[inline]
    pub(crate) fn span_room(&self) -> usize {
        GATHER_SPANS + self.page_count * TABLE_ENTRIES - self.span_count
    }

    /// Makes room for two spans of this address space, one of them a table, by a page or a flush. Under no
    /// page-table lock.
    #[inline]
    pub(crate) fn reserve(&mut self, context: &MmContext) {
        debug_assert!(
            self.context.root() == context.root(),
            "a gather was created with the context of another address space, whose CPUs it flushes \
             (invariant 2): create it with the context of the tables that it is given to"
        );
        if self.span_room() < 2 || self.table_count == GATHER_TABLES {
            self.reserve_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn reserve_slow(&mut self) {
        if self.table_count < GATHER_TABLES
            && self.page_count < GATHER_PAGES
            && let Ok(page) = self.allocator.alloc(Gfp::KERNEL, Order::FRAME)
        {
            self.pages.get_or_insert([Frame(0); GATHER_PAGES])[self.page_count] = page.into_raw();
            self.page_count += 1;
            return;
        }
        self.flush_and_drain();
    }

    /// Flushes and empties this gather's busy entries, if any. The caller does so before it looks at entries
    /// that another task may have marked busy, since a task that others wait on must not wait itself.
    #[inline]
    pub(crate) fn finish_busy(&mut self) {
        if self.busy_count > 0 {
            self.flush();
        }
    }

    /// A reschedule point, unless a task may wait for an entry of this gather. Under no page-table lock.
    #[inline]
    pub(crate) fn reschedule(&self) {
        if self.busy_count == 0 {
            self.allocator.platform().reschedule_point();
        }
    }

    /// Takes what was unmapped. Marks pages of files at once, while they still count as mapped.
    ///
    /// # Panics
    /// When there is no room; the caller checks before it changes the entry.
    #[inline]
    pub(crate) fn add(&mut self, unmapped: Unmapped) {
        match unmapped.into_kind() {
            Kind::Leaves { leaves, recorded } => {
                carry(self.allocator, leaves.frames, leaves.size, recorded);
                self.push(Span::leaves(leaves));
            }
            Kind::Busy { table, index } => {
                self.push(Span::busy(table, index));
                self.busy_count += 1;
            }
            Kind::Table { frame, level } => {
                self.push(Span::table(frame, level));
                self.table_count += 1;
            }
        }
    }

    /// Records that the detached table in `table` maps nothing before `first`, where the drain then starts.
    #[inline]
    pub(crate) fn note_begin(&mut self, table: Frame, first: VirtAddr) {
        self.begins.get_or_insert((table, first));
    }

    /// The flush that is owed, for code that takes a batch.
    pub(crate) fn owed(&mut self) -> &mut FlushBatch {
        &mut self.owed
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

    /// Owes the same flush where only tables or leaf sizes changed, but neither frames nor rights.
    #[inline]
    pub(crate) fn owe_reshaped(&mut self, range: VirtRange) {
        self.owed.add_reshaped(range);
    }

    fn push(&mut self, span: Span) {
        if self.context.zap().is_by_table()
            && let Some(last) = self.span_count.checked_sub(1)
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
        assert!(at < self.span_count, "a gather holds no such span");
        match at.checked_sub(GATHER_SPANS) {
            // SAFETY: G1: `at` is below `span_count`.
            None => Span(unsafe { self.spans[at].assume_init() }),
            Some(at) => {
                let page = words(self.allocator.platform(), self.page(at / TABLE_ENTRIES));
                Span(page[at % TABLE_ENTRIES].load(Ordering::Relaxed))
            }
        }
    }

    #[cold]
    fn page(&self, number: usize) -> Frame {
        match &self.pages {
            Some(pages) => pages[number],
            None => unreachable!("a span beyond the inline ones has a page"),
        }
    }

    #[inline]
    fn set_span(&mut self, at: usize, span: Span) {
        match at.checked_sub(GATHER_SPANS) {
            None => _ = self.spans[at].write(span.0),
            Some(at) => {
                let page = words(self.allocator.platform(), self.page(at / TABLE_ENTRIES));
                page[at % TABLE_ENTRIES].store(span.0, Ordering::Relaxed);
            }
        }
    }

    /// Flushes what was unmapped so far. After that no CPU reaches it, and the caller may release the
    /// address-space lock. It holds no page-table lock.
    pub fn flush(&mut self) {
        self.owed.flush(self.allocator, self.context);
        if self.busy_count > 0 {
            self.release_busy();
        }
    }

    /// Flushes, then drops counts and frees what no leaf maps any more.
    pub(crate) fn flush_and_drain(&mut self) {
        self.flush();
        if self.span_count == 1
            && self.context.zap().is_by_table()
            && let Content::Leaves(Leaves { frames, size: PageSize::Size4K, anon, .. }) =
                self.span(0).content()
            && frames.count == 1
        {
            self.span_count = 0;
            // SAFETY: invariants 2 and 5: the verb that cleared the leaf gave it once, and it is flushed.
            unsafe { self.allocator.counts().unmap_page(frames.start) };
            self.rss += if anon { RssChange { anon: -1, file: 0 } } else { RssChange { anon: 0, file: -1 } };
        } else if self.span_count > 0 {
            self.drain();
        }
    }

    /// Drops counts and frees what no leaf maps any more, after the flush.
    #[inline(never)]
    fn drain(&mut self) {
        let begins = self.begins.take();
        let mut drain = Drain::new(self.allocator, self.context);
        let mut next = 0;
        while next < self.span_count {
            let at = next;
            next += 1;
            match self.span(at).content() {
                #[cfg(feature = "published")]
                Content::Leaves(leaves) if !self.context.zap().is_by_table() => {
                    next = self.drain_folio(&mut drain, leaves, next);
                }
                Content::Leaves(leaves) => drain.leaves(leaves),
                Content::Table { frame, level } => {
                    let first =
                        begins.filter(|&(table, _)| table == frame).map_or(VirtAddr(0), |(_, first)| first);
                    drain.subtree(frame, level, first);
                }
                Content::Busy { .. } => {}
            }
        }
        (self.span_count, self.table_count) = (0, 0);
        self.rss += drain.finish();
    }

    /// Empties the entries that were busy until the flush, so that faults may fill them again.
    #[cold]
    fn release_busy(&mut self) {
        let platform = self.allocator.platform();
        let mut kept = 0;
        for at in 0..self.span_count {
            let span = self.span(at);
            let Content::Busy { table, index } = span.content() else {
                self.set_span(kept, span);
                kept += 1;
                continue;
            };
            let descriptor = self.allocator.frames().descriptor(table);
            descriptor.lock_table(platform, Rank::PageTable);
            words(platform, table)[index].store(Entry::EMPTY.bits(), Ordering::Release);
            let population = descriptor.population.load(Ordering::Relaxed);
            descriptor.population.store(population - 1, Ordering::Relaxed);
            descriptor.unlock_table(platform, Rank::PageTable);
        }
        (self.span_count, self.busy_count) = (kept, 0);
    }

    /// Flushes, drains, and returns the change of resident memory, which is never positive.
    #[inline]
    pub fn finish(mut self) -> RssChange {
        self.end()
    }

    /// [`Self::finish`] without a move of the gather. Nothing may be added afterwards.
    #[inline]
    pub(crate) fn end(&mut self) -> RssChange {
        self.flush_and_drain();
        if self.page_count > 0 {
            self.free_pages();
        }
        self.rss
    }

    #[cold]
    fn free_pages(&mut self) {
        for page in self.pages.iter().flatten().take(core::mem::take(&mut self.page_count)) {
            // SAFETY: invariant 1: the gather allocated the page for its spans, which are drained.
            let folio = unsafe { self.allocator.frames().folio_from_raw(*page, Order::FRAME) };
            let freed = self.allocator.free(folio);
            debug_assert_eq!(freed, Ok(()));
        }
    }
}

impl<P: TablePlatform> Drop for MmuGather<'_, '_, P> {
    fn drop(&mut self) {
        debug_assert!(
            self.span_count == 0 && self.page_count == 0,
            "a gather was not finished (invariant 2)"
        );
    }
}

fn level_from(number: u64) -> Level {
    match number {
        0 => Level::PTE,
        1 => Level::PMD,
        2 => Level::PUD,
        3 => Level::P4D,
        _ => Level::PGD,
    }
}

#[cfg(feature = "published")]
mod folio;
#[cfg(test)]
mod tests;
