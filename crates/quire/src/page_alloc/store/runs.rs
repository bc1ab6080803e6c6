//! Finds runs of free blocks in a pool's bits in one pass: it looks at each word of 64 blocks at most once,
//! and skips words without a free block 64 at a time.

use core::sync::atomic::{AtomicU64, Ordering};

/// The bits of a pool.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct PoolBits<'a> {
    /// One bit a block: 1 taken or not memory.
    pub(in crate::page_alloc) taken: &'a [AtomicU64],
    /// One bit a word of `taken`: 1 when the word is all ones or does not exist.
    pub(in crate::page_alloc) full: &'a [AtomicU64],
    /// One bit a block: 1 when the block does not fit although it is free. Empty when all fit.
    pub(in crate::page_alloc) stale: &'a [AtomicU64],
}

/// The run to find.
#[derive(Clone, Copy, Debug)]
pub(in crate::page_alloc) struct Run {
    /// Blocks in a row; at least one.
    pub(in crate::page_alloc) blocks: usize,
    /// The first block's number is a multiple of this power of two.
    pub(in crate::page_alloc) align: usize,
    /// The number of the block of bit 0, a multiple of 64.
    pub(in crate::page_alloc) origin: usize,
}

impl Run {
    /// The first bit at or after `bit` at which the run may start.
    fn start_from(self, bit: usize) -> usize {
        (self.origin + bit).next_multiple_of(self.align) - self.origin
    }

    /// The lowest bit of a word from which the run lies wholly in the word.
    fn in_word(self, free: u64, base: usize) -> Option<usize> {
        if self.blocks > 64 {
            return None;
        }
        let starts = match self.align {
            align if align < 64 => u64::MAX / ((1 << align) - 1),
            align => u64::from((self.origin + base).is_multiple_of(align)),
        };
        // After each turn, a set bit means that `length` bits from it on are free.
        let (mut runs, mut length) = (free, 1);
        while length < self.blocks {
            let step = length.min(self.blocks - length);
            runs &= runs >> step;
            length += step;
        }
        let found = runs & starts;
        (found != 0).then(|| base + found.trailing_zeros() as usize)
    }
}

impl PoolBits<'_> {
    /// The first word at or after `from` that is not full.
    pub(in crate::page_alloc) fn next_with_room(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut room = !self.full.get(at)?.load(Ordering::Relaxed) & u64::MAX << (from % 64);
        while room == 0 {
            at += 1;
            room = !self.full.get(at)?.load(Ordering::Relaxed);
        }
        Some(at * 64 + room.trailing_zeros() as usize)
    }

    fn fitting(&self, word: usize) -> u64 {
        let stale = self.stale.get(word).map_or(0, |word| word.load(Ordering::Relaxed));
        !self.taken[word].load(Ordering::Relaxed) & !stale
    }

    /// The lowest run of free bits in the words from `from` on, and how many words were looked at.
    pub(in crate::page_alloc) fn find_run(&self, from: usize, run: Run) -> (Option<usize>, usize) {
        let mut looked = 0;
        // Start of the free bits that reach up to the next word.
        let mut reaching: Option<usize> = None;
        let mut next = self.next_with_room(from);
        while let Some(word) = next {
            looked += 1;
            let (free, base) = (self.fitting(word), word * 64);
            let start = run.start_from(reaching.unwrap_or(base));
            if start + run.blocks <= base + free.trailing_ones() as usize {
                return (Some(start), looked);
            }
            if free == u64::MAX {
                reaching = reaching.or(Some(base));
            } else if let Some(bit) = run.in_word(free, base) {
                return (Some(bit), looked);
            } else {
                let tail = free.leading_ones() as usize;
                reaching = (tail > 0).then(|| base + 64 - tail);
            }
            next = match reaching {
                Some(_) => Some(word + 1).filter(|&word| word < self.taken.len()),
                None => self.next_with_room(word + 1),
            };
        }
        (None, looked)
    }
}

#[cfg(test)]
mod tests;
