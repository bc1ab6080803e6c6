//! The data of a sort of folios by block.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::addr::{BlockNumber, Frame, Order};
use crate::limits::{BLOCK_FRAMES, SORTER_BLOCKS};

/// A bit for each frame of a block.
pub(in crate::page_alloc) type BlockWords = [AtomicU64; BLOCK_FRAMES / 64];

/// One block, and its frames that are being sorted.
pub(in crate::page_alloc) struct SortEntry {
    /// The block's number plus one; 0 while the entry has no frames.
    key: AtomicU32,
    /// The only folio, which is in no word: one more than its index, and from bit 16 on its order. 0: see the
    /// words. In fragmented memory most blocks have one, and words that stay zero need not be looked at.
    only: AtomicU32,
    pub(in crate::page_alloc) frames: BlockWords,
}

impl SortEntry {
    /// Whether it has frames of this block.
    #[inline(always)]
    pub(in crate::page_alloc) fn is_of(&self, number: BlockNumber) -> bool {
        self.key.load(Ordering::Relaxed) == number.0 + 1
    }

    /// Whether it has no frames.
    #[inline(always)]
    pub(in crate::page_alloc) fn is_free(&self) -> bool {
        self.key.load(Ordering::Relaxed) == 0
    }

    /// From now on it has frames of this block.
    #[inline(always)]
    pub(in crate::page_alloc) fn start(&self, number: BlockNumber) {
        self.key.store(number.0 + 1, Ordering::Relaxed);
    }

    /// Frees the entry, which has frames; returns their block.
    #[inline(always)]
    pub(in crate::page_alloc) fn end(&self) -> BlockNumber {
        let number = BlockNumber(self.key.load(Ordering::Relaxed) - 1);
        self.key.store(0, Ordering::Relaxed);
        number
    }

    /// Adds the first folio.
    #[inline]
    pub(in crate::page_alloc) fn set_only(&self, index: usize, order: Order) {
        self.only.store((index + 1) as u32 | u32::from(order.get()) << 16, Ordering::Relaxed);
    }

    /// The index and the order of the only folio.
    #[inline]
    pub(in crate::page_alloc) fn only(&self) -> Option<(usize, Order)> {
        let only = self.only.load(Ordering::Relaxed);
        let index = ((only & 0xffff) as usize).checked_sub(1)?;
        Some((index, Order::new((only >> 16) as u8)?))
    }

    /// Forgets the only folio.
    #[inline]
    pub(in crate::page_alloc) fn drop_only(&self) {
        self.only.store(0, Ordering::Relaxed);
    }

    /// Adds a folio that is not the first.
    #[inline(never)]
    pub(in crate::page_alloc) fn add(&self, index: usize, order: Order) {
        FolioBits::of(order).add_to(self.words(), index);
    }

    /// The words, with the only folio if there is one.
    #[inline(always)]
    pub(in crate::page_alloc) fn words(&self) -> &BlockWords {
        if self.only.load(Ordering::Relaxed) != 0 {
            self.spread_only();
        }
        &self.frames
    }

    /// Puts the only folio into the words.
    #[inline(never)]
    fn spread_only(&self) {
        if let Some((index, order)) = self.only() {
            self.drop_only();
            FolioBits::of(order).add_to(&self.frames, index);
        }
    }
}

/// A sort under way: entries that belong to the running code alone, and which of them hold frames.
pub(in crate::page_alloc) struct Sorting<'a> {
    pub(in crate::page_alloc) entries: &'a [SortEntry],
    pub(in crate::page_alloc) pending: u64,
    pub(in crate::page_alloc) visited: usize,
    /// What the store got and has not counted yet.
    pub(in crate::page_alloc) stored: Stored,
}

/// Frames that went into blocks of one zone, and how many blocks were locked for them.
#[derive(Clone, Copy, Default)]
pub(in crate::page_alloc) struct Stored {
    pub(in crate::page_alloc) zone: usize,
    pub(in crate::page_alloc) frames: i64,
    pub(in crate::page_alloc) locks: u64,
}

const _: () = assert!(SORTER_BLOCKS == 64);

impl<'a> Sorting<'a> {
    /// Starts with empty entries. Without any, folios go to the store one by one.
    pub(in crate::page_alloc) fn new(entries: &'a [SortEntry]) -> Self {
        debug_assert!(
            entries.is_empty() || entries.len() <= SORTER_BLOCKS && entries.len().is_power_of_two()
        );
        Self { entries, pending: 0, visited: 0, stored: Stored::default() }
    }

    /// Visits of blocks, made or to be made.
    pub(in crate::page_alloc) fn visited(&self) -> usize {
        self.visited
    }

    /// The index of a block's entry.
    #[inline]
    pub(in crate::page_alloc) fn entry_of(&self, block: u32) -> usize {
        block as usize & (self.entries.len() - 1)
    }

    pub(in crate::page_alloc) fn holds(&self, frame: Frame) -> bool {
        let at = self.entry_of(frame.block().0);
        let (entry, index) = (&self.entries[at], frame.index_in_block());
        entry.is_of(frame.block())
            && entry.words()[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }
}

/// The bits of a folio below a block's size at the start of a word, or how many words it fills.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct FolioBits {
    /// 0 for a folio of whole words.
    bits: u64,
    words: usize,
}

impl FolioBits {
    #[inline(always)]
    pub(in crate::page_alloc) fn of(order: Order) -> Self {
        // A folio of up to 32 frames lies in one word.
        let bits = if order.get() < 6 { (1 << order.frames()) - 1 } else { 0 };
        Self { bits, words: order.frames() as usize / 64 }
    }

    /// Adds the folio that starts at `index`.
    #[inline(always)]
    pub(in crate::page_alloc) fn add_to(self, words: &BlockWords, index: usize) {
        if self.bits != 0 {
            let word = &words[index / 64];
            word.store(word.load(Ordering::Relaxed) | self.bits << (index % 64), Ordering::Relaxed);
        } else {
            let words = &words[index / 64..][..self.words];
            words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
    }
}
