//! The 512-bit maps of a block: which frames are in use, where folios start, which frames are held.
//!
//! They change under the block's lock by plain loads and stores. The words are atomics so that a free can
//! check them without the lock. Stores release, loads acquire, and an allocation marks a folio's head before
//! it marks its frames used: a reader without the lock never takes a new folio for part of the one before it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER};

const WORDS: usize = BLOCK_FRAMES / 64;

/// A set of frames of one block, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameMask(pub [u64; WORDS]);

impl FrameMask {
    /// No frame.
    pub const EMPTY: Self = Self([0; WORDS]);
    /// Every frame.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// The frames `start .. start + count`.
    #[inline]
    pub fn run(start: usize, count: usize) -> Self {
        debug_assert!(start + count <= BLOCK_FRAMES);
        let mut mask = Self::EMPTY;
        for word in start / 64..(start + count).div_ceil(64) {
            mask.0[word] = run_in_word(word, start, count);
        }
        mask
    }

    /// How many frames.
    #[inline]
    pub fn count(&self) -> usize {
        // Often a block's frames are freed together. Without POPCNT, which not all processors have, the bits of
        // one word take 15 instructions to count.
        if self.is_full() {
            return BLOCK_FRAMES;
        }
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether it has all frames of a block.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.0.iter().fold(u64::MAX, |all, word| all & word) == u64::MAX
    }

    /// Whether the frame with this index is in the set.
    #[inline]
    pub fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Adds one frame.
    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// Frames in `self` and not in `other`.
    #[inline]
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        (0..WORDS).for_each(|word| self.0[word] &= !other.0[word]);
        self
    }

    /// Frames in either.
    #[inline]
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        (0..WORDS).for_each(|word| self.0[word] |= other.0[word]);
        self
    }

    /// Frames in both.
    #[inline]
    #[must_use]
    pub fn intersection(mut self, other: Self) -> Self {
        (0..WORDS).for_each(|word| self.0[word] &= other.0[word]);
        self
    }

    /// The runs of consecutive frames, as (start, count), in ascending order.
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let start = self.next_set(at)?;
            at = self.next_clear(start);
            Some((start, at - start))
        })
    }

    /// The first member at or after `from`.
    #[inline]
    pub(crate) fn next_set(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = *self.0.get(word)? & u64::MAX << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The last member at or before `from`.
    #[inline]
    pub(crate) fn previous_set(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.0[word] & u64::MAX >> (63 - from % 64);
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.0[word];
        }
        Some(word * 64 + 63 - bits.leading_zeros() as usize)
    }

    /// The first non-member at or after `from`; 512 when there is none.
    #[inline]
    pub(crate) fn next_clear(&self, from: usize) -> usize {
        let mut at = from;
        while at < BLOCK_FRAMES {
            let ones = (self.0[at / 64] >> (at % 64)).trailing_ones() as usize;
            if ones < 64 - at % 64 {
                return at + ones;
            }
            at += ones;
        }
        BLOCK_FRAMES
    }

    /// The first aligned group of `order`, below a block's, in the set.
    pub(crate) fn find_group(&self, order: Order) -> Option<usize> {
        find_group(|at| self.0[at], order)
    }

    /// How many aligned groups of each order the set consists of, if each is as large as possible.
    pub fn count_groups(&self) -> [u64; 10] {
        let mut counts = [0; 10];
        let (in_words, of_words) = counts.split_at_mut(6);
        let full = (0..WORDS).fold(0, |full, at| full | (count_groups(self.0[at], in_words) & 1) << at);
        let (of_words, all) = of_words.split_at_mut(3);
        all[0] = count_groups(full, of_words);
        counts
    }

    /// One more than the largest order of an aligned group in the set; 0 when the set is empty, 10 at most.
    pub(crate) fn largest_group(&self) -> u8 {
        let mut folded = self.0;
        if self.is_empty() {
            return 0;
        }
        // A block that becomes entirely free is not searched from the smallest group upwards.
        if self.is_full() {
            return 10;
        }
        for (order, starts) in EVEN_GROUPS.into_iter().enumerate() {
            // A group of the next order is a pair of groups of this order, the first with an even number.
            let next = folded.map(|word| word & word >> (1 << order) & starts);
            if next.iter().all(|&word| word == 0) {
                return order as u8 + 1;
            }
            folded = next;
        }
        let full =
            |from: usize, count: usize| self.0[from..from + count].iter().all(|&word| word == u64::MAX);
        let any = |count: usize| (0..WORDS).step_by(count).any(|from| full(from, count));
        if any(8) {
            10
        } else if any(4) {
            9
        } else if any(2) {
            8
        } else {
            7
        }
    }
}

#[inline]
fn find_group(word: impl Fn(usize) -> u64, order: Order) -> Option<usize> {
    let order = usize::from(order.get());
    if order < 6 {
        return (0..WORDS).find_map(|at| {
            let groups = groups_in_word(word(at), order);
            (groups != 0).then(|| at * 64 + groups.trailing_zeros() as usize)
        });
    }
    let words = 1 << (order - 6);
    let full = |from: &usize| (*from..*from + words).all(|at| word(at) == u64::MAX);
    (0..WORDS).step_by(words).find(full).map(|at| at * 64)
}

/// The positions in a word at which an aligned group of `order`, below 6, lies wholly in it.
#[inline]
fn groups_in_word(word: u64, order: usize) -> u64 {
    (0..order).fold(word, |folded, o| folded & folded >> (1 << o) & EVEN_GROUPS[o])
}

/// Counts the groups of each order that are part of no larger one; returns the starts of those.
fn count_groups(bits: u64, counts: &mut [u64]) -> u64 {
    counts.iter_mut().enumerate().fold(bits, |groups, (order, count)| {
        let pairs = groups & groups >> (1 << order) & EVEN_GROUPS[order];
        *count += u64::from((groups & !(pairs | pairs << (1 << order))).count_ones());
        pairs
    })
}

/// Bit positions at which a group of order `index + 1` may start.
const EVEN_GROUPS: [u64; 6] = [
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    0x0000_0000_0000_0001,
];

/// The bits of `start .. start + count` that fall into word `word`.
#[inline]
fn run_in_word(word: usize, start: usize, count: usize) -> u64 {
    let from = start.saturating_sub(word * 64);
    let to = (start + count - word * 64).min(64);
    (u64::MAX << from) & (u64::MAX >> (64 - to))
}

/// A set of frames of one block, in a block's record.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Bitmap([AtomicU64; WORDS]);

impl Bitmap {
    /// No frame.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// The set as it is now.
    #[inline]
    pub fn load(&self) -> FrameMask {
        FrameMask(core::array::from_fn(|word| self.word(word)))
    }

    /// Replaces the set. Under the block's lock.
    #[inline]
    pub(crate) fn store(&self, mask: FrameMask) {
        (0..WORDS).for_each(|word| self.set_word(word, mask.0[word]));
    }

    /// One word of the set.
    #[inline]
    pub fn word(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Acquire)
    }

    /// Replaces one word. Under the block's lock.
    #[inline]
    pub(crate) fn set_word(&self, word: usize, bits: u64) {
        self.0[word].store(bits, Ordering::Release);
    }

    /// Whether the frame with this index is in the set.
    #[inline]
    pub fn contains(&self, index: usize) -> bool {
        self.word(index / 64) >> (index % 64) & 1 == 1
    }

    /// The first aligned group of `order`, below a block's, wholly outside the set.
    #[inline]
    pub(crate) fn find_outside(&self, order: Order) -> Option<usize> {
        find_group(|at| !self.word(at), order)
    }

    /// One more than the largest order of a group outside the set, at most `known`: fast if that or one less.
    #[inline]
    pub(crate) fn shrunk_group(&self, known: u8) -> u8 {
        let fits = |answer: &u8| {
            let order = Order::new(answer - 1).filter(|&order| order < Order::BLOCK);
            order.is_some_and(|order| self.find_outside(order).is_some())
        };
        let near = (known.saturating_sub(1).max(1)..=known).rev().find(fits);
        near.unwrap_or_else(|| FrameMask::ALL.without(self.load()).largest_group())
    }

    /// Whether the set holds any of `start .. start + count`.
    #[inline]
    pub(crate) fn meets_run(&self, start: usize, count: usize) -> bool {
        let mut words = start / 64..(start + count).div_ceil(64);
        words.any(|word| self.word(word) & run_in_word(word, start, count) != 0)
    }

    /// Adds the frames `start .. start + count`. Under the block's lock.
    #[inline]
    pub(crate) fn insert_run(&self, start: usize, count: usize) {
        for word in start / 64..(start + count).div_ceil(64) {
            self.set_word(word, self.word(word) | run_in_word(word, start, count));
        }
    }

    /// Removes one frame. Under the block's lock.
    #[inline]
    pub(crate) fn remove(&self, index: usize) {
        self.set_word(index / 64, self.word(index / 64) & !(1 << (index % 64)));
    }

    /// Removes the frames `start .. start + count`. Under the block's lock.
    #[inline]
    pub(crate) fn remove_run(&self, start: usize, count: usize) {
        for word in start / 64..(start + count).div_ceil(64) {
            self.set_word(word, self.word(word) & !run_in_word(word, start, count));
        }
    }

    /// Adds the frames of the aligned group of `order`, below a block's, at `start`. Under the block's lock.
    #[inline]
    pub(crate) fn insert_group(&self, start: usize, order: Order) {
        self.change_group(start, order, |word, group| word | group);
    }

    /// Removes the aligned group of `order`, below a block's, at `start`. Under the block's lock.
    #[inline(never)]
    pub(crate) fn remove_group(&self, start: usize, order: Order) {
        self.change_group(start, order, |word, group| word & !group);
    }

    #[inline(always)]
    fn change_group(&self, start: usize, order: Order, change: impl Fn(u64, u64) -> u64) {
        let at = start / 64;
        match order.frames() {
            frames @ ..64 => {
                let group = ((1 << frames) - 1) << (start % 64);
                self.set_word(at, change(self.word(at), group));
            }
            frames => {
                (at..at + frames as usize / 64).for_each(|word| self.set_word(word, change(0, u64::MAX)))
            }
        }
    }

    /// Whether the set holds all of `start .. start + count`.
    #[inline]
    pub(crate) fn contains_run(&self, start: usize, count: usize) -> bool {
        (start / 64..(start + count).div_ceil(64)).all(|word| {
            let run = run_in_word(word, start, count);
            self.word(word) & run == run
        })
    }

    /// Whether the set holds none of `start .. start + count`.
    #[inline]
    pub(crate) fn misses_run(&self, start: usize, count: usize) -> bool {
        (start / 64..(start + count).div_ceil(64))
            .all(|word| self.word(word) & run_in_word(word, start, count) == 0)
    }

    /// One more than the largest order, from `known` on, of the aligned group around `index` that is wholly
    /// outside the set. Stops at the first failure, since a larger group would contain it.
    #[inline]
    pub(crate) fn grown_group(&self, index: usize, known: u8) -> u8 {
        let word = self.word(index / 64);
        let mut answer = known;
        // A group of up to 32 frames lies in one word, and most stop there.
        while answer < 6 {
            let count = 1u32 << answer;
            let group = ((1u64 << count) - 1) << ((index as u32 % 64) & !(count - 1));
            if word & group != 0 {
                return answer;
            }
            answer += 1;
        }
        self.grown_over_words(index, answer)
    }

    /// As [`Self::grown_group`], from a word's size on.
    #[inline(never)]
    fn grown_over_words(&self, index: usize, known: u8) -> u8 {
        let mut answer = known;
        while answer <= BLOCK_ORDER {
            let count = 1usize << answer;
            if !self.misses_run(index & !(count - 1), count) {
                break;
            }
            answer += 1;
        }
        answer
    }
}
