//! Sets of pages: a bitmap for each 2 MiB that has a member.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages in one bitmap.
const CHUNK: u64 = 512;
const WORDS: usize = CHUNK as usize / 64;

/// The orders of groups that are counted: single pages up to 2 MiB.
pub(super) const ORDERS: usize = 10;
/// Pages of one word, as an order.
const WORD_ORDER: usize = 6;

/// A set of page numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSet {
    chunks: BTreeMap<u64, [u64; WORDS]>,
    /// By order: how many aligned groups of so many pages have a member.
    groups: [u64; ORDERS],
}

impl PageSet {
    /// Adds a page; true if it was new.
    pub(super) fn insert(&mut self, page: u64) -> bool {
        let words = self.chunks.entry(page / CHUNK).or_default();
        let index = (page % CHUNK) as usize;
        for order in (0..ORDERS).take_while(|&order| is_empty(words, index, order)) {
            self.groups[order] += 1;
        }
        let word = &mut words[index / 64];
        let before = *word;
        *word |= 1 << (index % 64);
        *word != before
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        self.lookup().contains(page)
    }

    /// Looks for many pages.
    pub(super) const fn lookup(&self) -> Lookup<'_> {
        Lookup { set: self, chunk: u64::MAX, words: None }
    }

    /// Adds the pages `first..end`.
    pub(super) fn insert_range(&mut self, first: u64, end: u64) {
        // As a fault of 4 KiB: no count of the whole bitmap, before and after.
        if end == first + 1 {
            self.insert(first);
            return;
        }
        for chunk in first / CHUNK..end.div_ceil(CHUNK) {
            let within = span(chunk, first, end);
            self.change(chunk, |index, word| *word |= bits(index, &within));
        }
    }

    /// Removes the pages `first..end`.
    pub(super) fn remove_range(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let touched: Vec<u64> =
            self.chunks.range(first / CHUNK..end.div_ceil(CHUNK)).map(|(&chunk, _)| chunk).collect();
        for chunk in touched {
            let within = span(chunk, first, end);
            self.change(chunk, |index, word| *word &= !bits(index, &within));
        }
    }

    /// Changes the words of a chunk, each by its index.
    fn change(&mut self, chunk: u64, mut change: impl FnMut(usize, &mut u64)) {
        let words = self.chunks.entry(chunk).or_default();
        let before = groups(words);
        words.iter_mut().enumerate().for_each(|(index, word)| change(index, word));
        let after = groups(words);
        if after[0] == 0 {
            self.chunks.remove(&chunk);
        }
        for (order, count) in self.groups.iter_mut().enumerate() {
            *count = *count + after[order] - before[order];
        }
    }

    /// Adds the members of another set.
    pub(super) fn extend(&mut self, other: &Self) {
        for (&chunk, words) in &other.chunks {
            self.change(chunk, |index, word| *word |= words[index]);
        }
    }

    /// The set of the members among `first..end`.
    pub(super) fn within(&self, first: u64, end: u64) -> Self {
        let mut part = Self::default();
        if first < end {
            for (&chunk, words) in self.chunks.range(first / CHUNK..end.div_ceil(CHUNK)) {
                let within = span(chunk, first, end);
                part.change(chunk, |index, word| *word = words[index] & bits(index, &within));
            }
        }
        part
    }

    /// Removes the members that both sets have from both; returns them.
    pub(super) fn take_common(&mut self, other: &mut Self) -> Self {
        let (fewer, more) = match self.chunks.len() < other.chunks.len() {
            true => (&*self, &*other),
            false => (&*other, &*self),
        };
        let mut common = Self::default();
        for (&chunk, words) in &fewer.chunks {
            if let Some(others) = more.chunks.get(&chunk) {
                common.change(chunk, |index, word| *word = words[index] & others[index]);
            }
        }
        for (&chunk, words) in &common.chunks {
            self.change(chunk, |index, word| *word &= !words[index]);
            other.change(chunk, |index, word| *word &= !words[index]);
        }
        common
    }

    /// Removes the pages `first..end` and adds as many at `to`.
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
        chunks.flat_map(move |(&chunk, words)| {
            let within = span(chunk, first, end);
            words.iter().enumerate().flat_map(move |(index, word)| {
                let base = chunk * CHUNK + index as u64 * 64;
                members(word & bits(index, &within)).map(move |bit| base + u64::from(bit))
            })
        })
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
    pub(super) const fn len(&self) -> u64 {
        self.groups[0]
    }

    /// By order: how many aligned groups of so many pages have a member.
    pub(super) const fn groups(&self) -> &[u64; ORDERS] {
        &self.groups
    }

    /// How many aligned ranges of 2 MiB have a member.
    pub(super) const fn chunks(&self) -> u64 {
        self.groups[ORDERS - 1]
    }
}

/// Looks for pages of a set. It searches the tree once for neighbours that follow each other.
pub(super) struct Lookup<'s> {
    set: &'s PageSet,
    /// The chunk of the last page, and its bitmap. No page has the number with which it begins.
    chunk: u64,
    words: Option<&'s [u64; WORDS]>,
}

impl Lookup<'_> {
    pub(super) fn contains(&mut self, page: u64) -> bool {
        let chunk = page / CHUNK;
        if chunk != self.chunk {
            (self.chunk, self.words) = (chunk, self.set.chunks.get(&chunk));
        }
        self.words.is_some_and(|words| words[(page % CHUNK / 64) as usize] >> (page % 64) & 1 == 1)
    }
}

/// The bits that are set in a word, ascending.
fn members(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(lowest)
    })
}

/// Whether the group of this order around the page `index` of a chunk has no member.
fn is_empty(words: &[u64; WORDS], index: usize, order: usize) -> bool {
    match order.checked_sub(WORD_ORDER) {
        Some(wide) => {
            let first = (index / 64) >> wide << wide;
            words[first..first + (1 << wide)].iter().all(|word| *word == 0)
        }
        None => words[index / 64] & ((1 << (1 << order)) - 1) << ((index % 64) >> order << order) == 0,
    }
}

/// How many groups of each order have a member in a chunk.
fn groups(words: &[u64; WORDS]) -> [u64; ORDERS] {
    let mut counts = [0; ORDERS];
    let mut folded = *words;
    for (order, count) in counts.iter_mut().enumerate() {
        *count = folded.iter().map(|word| u64::from(word.count_ones())).sum();
        match order.checked_sub(WORD_ORDER) {
            // Each group keeps its lowest bit; two groups become one.
            None => folded.iter_mut().for_each(|word| {
                let step = 1 << order;
                let kept = if order + 1 == WORD_ORDER { 1 } else { u64::MAX / ((1 << (2 * step)) - 1) };
                *word = (*word | *word >> step) & kept;
            }),
            Some(wide) => (0..WORDS >> (wide + 1)).for_each(|pair| {
                let (even, odd) = (pair << (wide + 1), pair << (wide + 1) | 1 << wide);
                folded[even] |= std::mem::take(&mut folded[odd]);
            }),
        }
    }
    counts
}

/// The part of `first..end` in a chunk, by the pages' places in it.
fn span(chunk: u64, first: u64, end: u64) -> Range<usize> {
    let base = chunk * CHUNK;
    (first.max(base) - base) as usize..(end.min(base + CHUNK) - base) as usize
}

/// The bits of word `index` that are in a part of a chunk.
fn bits(index: usize, within: &Range<usize>) -> u64 {
    let bit = |at: usize| at.clamp(index * 64, index * 64 + 64) - index * 64;
    let below = |count: usize| if count == 64 { u64::MAX } else { (1 << count) - 1 };
    below(bit(within.end)) & !below(bit(within.start))
}

#[cfg(test)]
mod tests;
