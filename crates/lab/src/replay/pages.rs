//! Sets of pages: a bitmap for each 2 MiB that has a member.

use std::collections::BTreeMap;

/// Pages in one bitmap.
const CHUNK: u64 = 512;
const WORDS: usize = CHUNK as usize / 64;

/// A set of page numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSet {
    chunks: BTreeMap<u64, [u64; WORDS]>,
}

impl PageSet {
    /// Adds a page; whether it was new.
    pub(super) fn insert(&mut self, page: u64) -> bool {
        let word = &mut self.chunks.entry(page / CHUNK).or_default()[(page % CHUNK / 64) as usize];
        let before = *word;
        *word |= 1 << (page % 64);
        *word != before
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        self.chunks
            .get(&(page / CHUNK))
            .is_some_and(|words| words[(page % CHUNK / 64) as usize] >> (page % 64) & 1 == 1)
    }

    /// Adds the pages `first..end`.
    pub(super) fn insert_range(&mut self, first: u64, end: u64) {
        for page in first..end {
            self.insert(page);
        }
    }

    /// Takes the pages `first..end` out.
    pub(super) fn remove_range(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let touched: Vec<u64> =
            self.chunks.range(first / CHUNK..end.div_ceil(CHUNK)).map(|(&chunk, _)| chunk).collect();
        for chunk in touched {
            let base = chunk * CHUNK;
            if first <= base && base + CHUNK <= end {
                self.chunks.remove(&chunk);
                continue;
            }
            let Some(words) = self.chunks.get_mut(&chunk) else { continue };
            for page in first.max(base)..end.min(base + CHUNK) {
                words[(page % CHUNK / 64) as usize] &= !(1 << (page % 64));
            }
            if words.iter().all(|word| *word == 0) {
                self.chunks.remove(&chunk);
            }
        }
    }

    /// Takes the pages `first..end` out and adds as many at `to`.
    pub(super) fn move_range(&mut self, first: u64, end: u64, to: u64) {
        let moved: Vec<u64> = self.pages_in(first, end).collect();
        self.remove_range(first, end);
        for page in moved {
            self.insert(page - first + to);
        }
    }

    /// The members among `first..end`, ascending.
    pub(super) fn pages_in(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let chunks = self.chunks.range(first / CHUNK..end.div_ceil(CHUNK).max(first / CHUNK));
        chunks
            .flat_map(|(chunk, words)| {
                words.iter().zip(0u64..).flat_map(move |(word, index)| {
                    (0..64u64)
                        .filter(move |bit| word >> bit & 1 == 1)
                        .map(move |bit| chunk * CHUNK + index * 64 + bit)
                })
            })
            .filter(move |page| (first..end).contains(page))
    }

    /// The members as runs `(first, count)`, ascending.
    pub(super) fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in self.pages_in(0, u64::MAX / CHUNK * CHUNK) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => runs.push((page, 1)),
            }
        }
        runs
    }

    /// How many members there are.
    pub(super) fn len(&self) -> u64 {
        self.chunks.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    /// How many aligned ranges of 2 MiB have a member.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }
}

#[cfg(test)]
mod tests;
