//! The pages of one file, under its lock.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::radix::{NodeMemory, RadixTree};
use crate::addr::Frame;
use crate::limits::{FRAME_SHIFT, MAX_HUGE_GROUPS};

/// The bit at which the number of a group begins: frames have 40 bits.
const GROUP_SHIFT: u32 = 52;
const _: () = assert!(MAX_HUGE_GROUPS < 1 << (u64::BITS - GROUP_SHIFT));

/// A page of the cache: a frame and its marks, in one word that is never zero. In a file of huge pages it may
/// be a reservation instead. The uppermost bits name the group that pays for a reservation, also a redeemed
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CachedPage(u64);

impl CachedPage {
    const PRESENT: u64 = 1;
    const BUSY: u64 = 2;
    const DIRTY: u64 = 4;
    const RESERVED: u64 = 8;
    const FRESH: u64 = 16;
    const REDEEMED: u64 = 32;
    const LOST: u64 = 64;
    const FRAME: u64 = ((1 << GROUP_SHIFT) - 1) & !((1 << FRAME_SHIFT) - 1);

    /// A fresh reservation for which this group pays.
    pub(super) const fn reserved(group: u16) -> Self {
        Self((group as u64) << GROUP_SHIFT | Self::PRESENT | Self::RESERVED | Self::FRESH)
    }

    /// A present page in the place of a reservation, or of nothing.
    pub(super) const fn filled(frame: Frame, before: Option<Self>) -> Self {
        let reservation = match before {
            Some(reservation) => reservation.0 >> GROUP_SHIFT << GROUP_SHIFT | Self::REDEEMED,
            None => 0,
        };
        Self(reservation | frame.0 << FRAME_SHIFT | Self::PRESENT)
    }

    /// Whether a present page was reserved before.
    pub(super) const fn was_reserved(self) -> bool {
        self.0 & Self::REDEEMED != 0
    }

    /// Whether this is a reservation.
    pub(super) const fn is_reserved(self) -> bool {
        self.0 & Self::RESERVED != 0
    }

    /// Whether the task that may now change the file's size made this reservation, and may yet take it back.
    pub(super) const fn is_fresh(self) -> bool {
        self.0 & Self::FRESH != 0
    }

    /// The group that pays for the reservation; 0 is none.
    pub(super) const fn group(self) -> u16 {
        (self.0 >> GROUP_SHIFT) as u16
    }

    /// A frame that is being filled.
    pub(super) const fn busy(frame: Frame) -> Self {
        Self(frame.0 << FRAME_SHIFT | Self::PRESENT | Self::BUSY)
    }

    #[inline]
    pub(super) const fn frame(self) -> Frame {
        Frame((self.0 & Self::FRAME) >> FRAME_SHIFT)
    }

    /// Whether the page is being read or written: no other task may use its contents.
    #[inline]
    pub(super) const fn is_busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }

    /// Whether the page's contents are lost: no task gets it.
    #[inline]
    pub(super) const fn is_lost(self) -> bool {
        self.0 & Self::LOST != 0
    }

    /// Whether the page is newer than the file.
    #[inline]
    pub(super) const fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }
}

/// The pages of a file that are in memory.
pub(super) struct FilePages {
    tree: RadixTree,
    count: u64,
    dirty: u64,
}

impl FilePages {
    pub(super) const fn new() -> Self {
        Self { tree: RadixTree::new(), count: 0, dirty: 0 }
    }

    /// How many pages are in memory.
    pub(super) const fn len(&self) -> u64 {
        self.count
    }

    pub(super) const fn dirty(&self) -> u64 {
        self.dirty
    }

    /// The page with this index, if it is in memory.
    #[inline]
    pub(super) fn get(&self, index: u64) -> Option<CachedPage> {
        match self.tree.get(index) {
            0 => None,
            word => Some(CachedPage(word)),
        }
    }

    /// Shows each page of a short range that is in memory.
    pub(super) fn for_each(&self, range: Range<u64>, mut show: impl FnMut(u64, CachedPage)) {
        self.tree.for_each(range, |index, word| show(index, CachedPage(word)));
    }

    /// The first page at or after `from`.
    pub(super) fn next(&self, from: u64) -> Option<(u64, CachedPage)> {
        self.tree.next(from).map(|(index, word)| (index, CachedPage(word)))
    }

    /// Adds a page where there is none. Returns whether there was memory for it.
    pub(super) fn insert(
        &mut self,
        index: u64,
        page: CachedPage,
        allocate: impl FnMut() -> Option<NodeMemory>,
        free: impl FnMut(NodeMemory),
    ) -> bool {
        let inserted = self.tree.insert(index, page.0, allocate, free);
        self.count += u64::from(inserted);
        inserted
    }

    pub(super) fn remove(&mut self, index: u64, free: impl FnMut(NodeMemory)) -> Option<CachedPage> {
        let page = CachedPage(self.tree.remove(index, free));
        if page.0 == 0 {
            return None;
        }
        self.count -= 1;
        self.dirty -= u64::from(page.is_dirty());
        Some(page)
    }

    pub(super) fn set_busy(&mut self, index: u64, busy: bool) {
        self.mark(index, CachedPage::BUSY, busy);
    }

    /// Marks a page dirty or clean. Returns whether the page is there.
    pub(super) fn set_dirty(&mut self, index: u64, dirty: bool) -> bool {
        let Some(page) = self.get(index) else { return false };
        self.dirty = self.dirty - u64::from(page.is_dirty()) + u64::from(dirty);
        self.mark(index, CachedPage::DIRTY, dirty);
        true
    }

    /// Replaces the entry of a page or reservation. Returns whether there was one.
    pub(super) fn replace(&mut self, index: u64, page: CachedPage) -> bool {
        self.tree.set(index, page.0)
    }

    /// Makes a reservation permanent.
    pub(super) fn settle(&mut self, index: u64) {
        self.mark(index, CachedPage::FRESH, false);
    }

    pub(super) fn set_frame(&mut self, index: u64, frame: Frame) {
        if let Some(page) = self.get(index) {
            self.tree.set(index, frame.0 << FRAME_SHIFT | page.0 & !CachedPage::FRAME);
        }
    }

    /// Marks a page's contents as lost.
    pub(super) fn set_lost(&mut self, index: u64) {
        self.mark(index, CachedPage::LOST, true);
    }

    fn mark(&mut self, index: u64, bit: u64, on: bool) {
        if let Some(page) = self.get(index) {
            self.tree.set(index, if on { page.0 | bit } else { page.0 & !bit });
        }
    }
}
