//! Replaces a table by one large leaf on a new folio, and copies the pages while CPUs go on using them.
//!
//! # Protocol
//!
//! Each step holds the address-space lock as it says; the caller may give it back between two steps.
//!
//! 1. *Exclusive*: [`PageTables::begin_copies`] clears the leaves' dirty bits and flushes. A leaf that is
//!    dirty later was stored through, or was mapped, since.
//! 2. *Shared*: [`PageTables::bring_pages`] shows the pages that are not yet [copied](Copied). All CPUs go on
//!    reading, storing and faulting. A leaf that a fault installs is dirty, or another kind of entry than
//!    what was copied. A store that tears a copy sets the dirty bit, so the page is copied again.
//!
//! A task that held the lock exclusive between two steps may have changed anything. The lock's number of
//! writers tells the caller, which then forgets what was copied.
//!
//! A CPU that touches the range during step 3 waits from the exchange to the end: for a flush and for the
//! copies of the pages that were stored to since step 1. As in a live migration, steps 1 and 2 may be
//! repeated until these are few.

use super::PageTables;
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level, expect_reads};
use crate::limits::TABLE_ENTRIES;
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;
use crate::tlb::words::Table;
use crate::tlb::{FlushBatch, MmuGather, Unmapped};

/// The bits that a leaf loses so that the next store is seen: the dirty bit, and the mark that depends on it.
const RECORDED: EntryFlags = EntryFlags::DIRTY.union(EntryFlags::ZEROED);

/// Bytes of the next page to prefetch while a page is copied; the processor prefetches the rest by itself.
const EXPECTED: usize = 1024;

/// What the page table has at an address that is a multiple of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survey {
    /// Nothing is mapped, in so many bytes from there on.
    Nothing(u64),
    /// A leaf of 2 MiB or more.
    Large,
    /// A marker in the place of a large leaf.
    Lost,
    /// A large leaf, or a table, that is being replaced.
    Busy,
    /// A table of 4 KiB leaves.
    Table(TableSurvey),
}

/// The entries of a lowest-level table, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableSurvey {
    /// Leaves of counted frames.
    pub present: usize,
    /// Leaves of the zero frame.
    pub zero: usize,
    /// Leaves of frames that other leaves map too; all of them in a table that other address spaces reach.
    pub shared: usize,
    /// Leaves with the accessed bit.
    pub young: usize,
    /// Leaves of which the contents may be dropped.
    pub lazy: usize,
    /// Leaves that are marked for a handler.
    pub marked: usize,
    /// Markers in the place of leaves whose memory is lost.
    pub lost: usize,
    /// Entries that another task is replacing.
    pub busy: usize,
    /// Leaves of frames that something besides leaves owns.
    pub held: usize,
    /// Leaves that are not anonymous memory.
    pub file: usize,
    /// The frame of the first leaf of a counted frame.
    pub first: Option<Frame>,
    /// Whether all leaves map one whole block in order.
    pub in_order: bool,
    /// Pages that are not copied, or were stored to since.
    pub missing: usize,
}

impl TableSurvey {
    /// Entries that map nothing or zeroes.
    pub fn holes(&self) -> usize {
        TABLE_ENTRIES - self.present - self.lost - self.busy
    }
}

/// Which pages of a new folio have the contents of the leaves that it replaces, unless stores came since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    pages: FrameMask,
    /// Zeroes for entries that map no frame.
    zeroes: FrameMask,
}

impl Copied {
    /// No page.
    pub const NOTHING: Self = Self { pages: FrameMask::EMPTY, zeroes: FrameMask::EMPTY };
    /// The folio is all zero.
    pub(crate) const ZEROES: Self = Self { pages: FrameMask::EMPTY, zeroes: FrameMask::ALL };

    /// Whether the page for this entry is there and as the entry is now.
    #[inline]
    fn has(&self, index: usize, entry: Entry) -> bool {
        if maps_frame(entry) {
            let since = EntryFlags::DIRTY.union(EntryFlags::ZEROED).union(EntryFlags::LAZY_FREE);
            self.pages.contains(index) && entry.flags().intersection(since).is_empty()
        } else {
            self.zeroes.contains(index)
        }
    }

    #[inline]
    fn forget(&mut self, index: usize) {
        self.pages.0[index / 64] &= !(1 << (index % 64));
    }

    #[inline]
    fn note(&mut self, run: &Run) {
        let mask = FrameMask::run(run.index, run.count);
        let (to, other) = if run.from.is_some() {
            (&mut self.pages, &mut self.zeroes)
        } else {
            (&mut self.zeroes, &mut self.pages)
        };
        (*to, *other) = (to.union(mask), other.without(mask));
    }
}

/// Pages to bring to a new folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first page of the folio.
    pub index: usize,
    /// How many.
    pub count: usize,
    /// The first of the frames to copy; `None`: the pages are zeroes.
    pub from: Option<Frame>,
}

impl Run {
    fn of(index: usize, entry: Entry) -> Self {
        Self { index, count: 1, from: maps_frame(entry).then(|| entry.frame()) }
    }

    /// Whether `next` continues the run.
    #[inline]
    fn goes_on_with(&self, next: &Self) -> bool {
        next.index == self.index + self.count
            && next.from == self.from.map(|from| from.add(self.count as u64))
    }
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// What is at `addr`, a multiple of 2 MiB, and which pages are not yet `copied`. Shared; the answer may
    /// be old.
    pub fn survey(&self, addr: VirtAddr, copied: &Copied) -> Survey {
        let mut table = self.root();
        let mut shared = false;
        while table.level() > Level::PTE {
            let entry = table.load(table.index(addr));
            if entry.is_leaf(table.level()) {
                return Survey::Large;
            }
            if entry.is_empty() {
                return Survey::Nothing(table.extent(addr).end.0 - addr.0);
            }
            if !entry.is_table(table.level()) {
                return if entry.is_poison() { Survey::Lost } else { Survey::Busy };
            }
            shared = entry.is_shared_table(table.level());
            table = table.child(self.platform(), entry);
        }
        Survey::Table(self.survey_table(table, shared, copied))
    }

    fn survey_table(&self, table: Table<'p>, shared: bool, copied: &Copied) -> TableSurvey {
        let mut survey = TableSurvey { in_order: true, ..TableSurvey::default() };
        // For the 64 frames around the last one looked up: which of them one leaf maps and nothing holds.
        let mut sole = (u64::MAX, 0);
        let mut index = 0;
        while index < TABLE_ENTRIES {
            if index % 8 == 0 && !shared && self.survey_eight(table, index, copied, &mut survey) {
                index += 8;
                continue;
            }
            let entry = table.load(index);
            let at = index;
            index += 1;
            survey.missing += usize::from(!copied.has(at, entry));
            // Only leaves have these bits.
            survey.young += usize::from(entry.has(EntryFlags::ACCESSED));
            survey.marked += usize::from(entry.has(EntryFlags::UFFD_WP));
            if !maps_frame(entry) {
                survey.zero += usize::from(entry.is_present());
                survey.lost += usize::from(entry.is_poison());
                survey.busy += usize::from(entry.is_busy());
                survey.in_order = false;
                continue;
            }
            let frame = entry.frame();
            survey.present += 1;
            survey.file += usize::from(!entry.has(EntryFlags::ANON));
            survey.lazy += usize::from(entry.has(EntryFlags::LAZY_FREE) && !entry.has(EntryFlags::DIRTY));
            survey.held += usize::from(self.allocator.frames().is_held(frame));
            let first = *survey.first.get_or_insert(frame);
            survey.in_order &= frame.0 == first.0 + at as u64 && first.is_aligned(PageSize::Size2M.order());
            // A leaf with the right to store is its page's only one.
            if shared {
                survey.shared += 1;
            } else if !entry.has(EntryFlags::WRITE) {
                if sole.0 != frame.0 / 64 {
                    sole = (frame.0 / 64, self.allocator.counts().mapped_once(frame));
                }
                survey.shared += usize::from(sole.1 >> (frame.0 % 64) & 1 == 0);
            }
        }
        survey
    }

    /// Surveys eight entries at once if all map private pages, alone and consecutively, with the right to
    /// store and nothing unusual, and are either all copied or all not. Returns whether it did.
    #[inline]
    fn survey_eight(
        &self,
        table: Table<'p>,
        index: usize,
        copied: &Copied,
        survey: &mut TableSurvey,
    ) -> bool {
        const USUAL: EntryFlags =
            EntryFlags::PRESENT.union(EntryFlags::ANON).union(EntryFlags::WRITE).union(EntryFlags::ACCESSED);
        const UNUSUAL: EntryFlags =
            EntryFlags::SPECIAL.union(EntryFlags::UFFD_WP).union(EntryFlags::LAZY_FREE);
        let first = table.load(index);
        let frame = first.frame();
        let (mut all, mut any, mut follow) = (first.bits(), first.bits(), 0);
        for at in 1..8 {
            let entry = table.load(index + at);
            (all, any) = (all & entry.bits(), any | entry.bits());
            follow |= entry.frame().0 ^ (frame.0 + at as u64);
        }
        let (all, any) = (Entry::from_bits(all), Entry::from_bits(any).flags());
        let there = copied.pages.0[index / 64] >> (index % 64) & 0xff;
        let stale = any.intersection(EntryFlags::DIRTY.union(EntryFlags::ZEROED)) != EntryFlags::NONE;
        let is_uniform = all.has(USUAL)
            && any.intersection(UNUSUAL) == EntryFlags::NONE
            && follow == 0
            && frame.index_in_block() % 64 <= 56
            && all.has(EntryFlags::ACCESSED) == any.contains(EntryFlags::ACCESSED)
            && (there == 0 || there == 0xff && !stale);
        let Some(block) = self.allocator.frames().memmap().get(frame.block()).filter(|_| is_uniform) else {
            return false;
        };
        let held = block.held.word(frame.index_in_block() / 64) >> (frame.index_in_block() % 64) & 0xff;
        survey.missing += if there == 0 { 8 } else { 0 };
        survey.young += if all.has(EntryFlags::ACCESSED) { 8 } else { 0 };
        survey.present += 8;
        survey.held += held.count_ones() as usize;
        let start = *survey.first.get_or_insert(frame);
        survey.in_order &= frame.0 == start.0 + index as u64 && start.is_aligned(PageSize::Size2M.order());
        true
    }

    /// Whether other address spaces may reach the table at `addr`. Exclusive, or the answer may be old.
    pub(crate) fn is_shared(&self, addr: VirtAddr) -> bool {
        self.step(VirtRange::from_len(addr, PageSize::Size4K.bytes())).shared
    }

    /// Clears the leaves' dirty bits and marks that contents may be dropped. Pages of leaves that were dirty
    /// or are new no longer count as copied. Flushes. Exclusive, and no other address space reaches the
    /// table.
    pub fn begin_copies(&self, addr: VirtAddr, copied: &mut Copied) {
        let Some(table) = self.find(addr, Level::PTE) else { return };
        let mut owed = FlushBatch::new();
        let locked = self.lock(table);
        for index in 0..TABLE_ENTRIES {
            let seen = locked.load(index);
            if !maps_frame(seen) {
                continue;
            }
            let before =
                locked.update(index, seen, |leaf| leaf.without(RECORDED).without(EntryFlags::LAZY_FREE));
            if !copied.has(index, before) {
                copied.forget(index);
            }
            if before.has(EntryFlags::DIRTY) {
                let page = addr.add(index as u64 * PageSize::Size4K.bytes());
                owed.add(VirtRange::from_len(page, PageSize::Size4K.bytes()), PageSize::Size4K);
            }
        }
        drop(locked);
        owed.flush(self.allocator, self.context);
    }

    /// Shows, as runs in ascending order, the pages that are neither copied nor stored to since
    /// [`Self::begin_copies`]; those that were would have to be copied again. Returns how many pages. Shared.
    pub fn bring_pages(&self, addr: VirtAddr, copied: &mut Copied, show: impl FnMut(Run)) -> u64 {
        let Some(table) = self.find(addr, Level::PTE) else { return 0 };
        let entries = (0..TABLE_ENTRIES).map(|index| (index, table.load(index)));
        let clean = entries.filter(|(_, entry)| !(maps_frame(*entry) && entry.has(EntryFlags::DIRTY)));
        show_missing(clean, copied, |next| self.expect(next), show)
    }

    /// Prefetches the start of the next run: the processor cannot predict where its frames are.
    fn expect(&self, next: Option<Run>) {
        if let Some(from) = next.and_then(|run| run.from) {
            expect_reads(self.platform().direct_map(from.addr()), EXPECTED);
        }
    }

    /// Takes the table at `addr` out, flushes, shows the pages that are not copied as they are now, and puts
    /// one leaf of 2 MiB on the folio `to` in the table's place. Returns how many pages it showed. The leaf
    /// has `flags`, but the right to store only if a leaf that it replaces is soft-dirty: otherwise the first
    /// store faults. The table goes to the gather. Exclusive, and no other address space reaches the table.
    ///
    /// # Errors
    /// `None` when there is no such table; nothing has changed then.
    ///
    /// # Safety
    /// As for [`Self::map`], for the folio.
    pub unsafe fn put_leaf(
        &self,
        addr: VirtAddr,
        to: Frame,
        flags: EntryFlags,
        copied: &mut Copied,
        gather: &mut MmuGather<'_, '_, P>,
        show: impl FnMut(Run),
    ) -> Option<u64> {
        gather.reserve(self.context);
        let parent = self.find(addr, Level::PMD)?;
        let index = parent.index(addr);
        let pointer = parent.load(index);
        if !pointer.is_table(Level::PMD) || pointer.is_shared_table(Level::PMD) {
            return None;
        }
        self.allocator.counts().counter().map_large(to, PageSize::Size2M);
        self.lock(parent).exchange(index, Entry::BUSY);
        gather.add(Unmapped::table(pointer, Level::PMD));
        gather.owe_tables(parent.extent(addr));
        gather.flush();
        let table = parent.child(self.platform(), pointer);
        let entries = (0..TABLE_ENTRIES).map(|index| (index, table.load_private(index)));
        let shown = show_missing(entries.clone(), copied, |next| self.expect(next), show);
        let leaf = Entry::leaf(to, PageSize::Size2M, with_history(flags, entries.map(|(_, entry)| entry)));
        self.lock(parent).fill(index, leaf);
        Some(shown)
    }
}

/// The flags of a leaf that replaces these entries.
fn with_history(flags: EntryFlags, entries: impl Iterator<Item = Entry>) -> EntryFlags {
    let history = entries
        .filter(|entry| entry.is_present())
        .fold(EntryFlags::NONE, |all, entry| all.union(entry.flags()))
        .intersection(EntryFlags::ACCESSED | EntryFlags::SOFT_DIRTY);
    let flags = flags.without(EntryFlags::ACCESSED | EntryFlags::SOFT_DIRTY).union(history);
    // A store through a leaf that allows stores would not fault, so such a leaf must be soft-dirty.
    let flags =
        if history.contains(EntryFlags::SOFT_DIRTY) { flags } else { flags.without(EntryFlags::WRITE) };
    // The copies exist nowhere else, and zeroes among them are not known to be zero.
    flags.union(EntryFlags::DIRTY)
}

/// Shows the missing pages among these entries and notes that they are there; returns how many.
fn show_missing(
    entries: impl Iterator<Item = (usize, Entry)>,
    copied: &mut Copied,
    expect: impl Fn(Option<Run>),
    mut show: impl FnMut(Run),
) -> u64 {
    let (mut open, mut shown): (Option<Run>, u64) = (None, 0);
    let mut close = |run: Option<Run>, next: Option<Run>, copied: &mut Copied| {
        if let Some(run) = run {
            expect(next);
            show(run);
            copied.note(&run);
            shown += run.count as u64;
        }
    };
    for (index, entry) in entries {
        if copied.has(index, entry) {
            continue;
        }
        let next = Run::of(index, entry);
        match &mut open {
            Some(run) if run.goes_on_with(&next) => run.count += 1,
            _ => close(open.replace(next), Some(next), copied),
        }
    }
    close(open, None, copied);
    shown
}

/// Whether an entry of a lowest-level table maps a counted frame.
#[inline]
fn maps_frame(entry: Entry) -> bool {
    entry.is_present() && !entry.has(EntryFlags::SPECIAL)
}
