//! The model's knowledge of a page's contents: a few words of it, by value.

use std::array;
use std::collections::BTreeMap;
use std::ops::Range;

use hosted::SyntheticFiles;
use quire::platform::FileId;

use super::access::Seen;
use super::vma::PAGE;

/// Words of each page that the model follows.
pub const PROBES: usize = 4;
/// Their offsets in the page: both ends and two places between, in different cache lines.
pub const PROBE_OFFSETS: [u64; PROBES] = [0, 1024, 2744, 4088];

/// The words at [`PROBE_OFFSETS`].
pub type Words = [u64; PROBES];

/// Removes the pages of `range`. (`BTreeMap::extract_if` needs a newer compiler than the rest.)
pub(super) fn take_out(pages: &mut BTreeMap<u64, Page>, range: Range<u64>) -> Vec<(u64, Page)> {
    let numbers: Vec<u64> = pages.range(range).map(|(&number, _)| number).collect();
    numbers.into_iter().filter_map(|number| pages.remove_entry(&number)).collect()
}

/// The first contents of a hosted machine's file: the word at `offset` (a multiple of 8) of page `page`.
pub fn file_word(file: u64, page: u64, offset: u64) -> u64 {
    let at = page * PAGE + offset;
    u64::from_le_bytes(std::array::from_fn(|byte| {
        SyntheticFiles::pristine_byte(FileId(file), at + byte as u64)
    }))
}

/// In which ways a page may have been dropped since `MADV_FREE`. The system drops it as a whole, once, and not after a
/// store; so the words that were not stored to since are zero together or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lazy {
    /// Sets of words, each a number with a bit for each word: bit `n` is set if exactly the words of set `n` may be
    /// zero, and the others as in [`Page::own`].
    zeroed: u16,
    /// Nothing was stored since, so the page may still be dropped.
    open: bool,
}

/// No word is zero.
const KEPT: u16 = 1;
/// All are.
const DROPPED: u16 = 1 << ((1 << PROBES) - 1);

impl Lazy {
    fn sets(self) -> impl Iterator<Item = u8> {
        (0..1 << PROBES).filter(move |set| self.zeroed >> set & 1 == 1)
    }
}

/// The word at `probe` if exactly the words of `set` are zero.
fn word_if(own: &Words, set: u8, probe: usize) -> u64 {
    if set >> probe & 1 == 1 { 0 } else { own[probe] }
}

/// A page of one address space that was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Its own words, when it is private and was written (or made private by a populating write).
    pub own: Option<Words>,
    /// After `MADV_FREE`: zeroes may have replaced words of `own`.
    pub(super) lazy: Option<Lazy>,
}

impl Page {
    /// A page that was only read.
    pub const TOUCHED: Self = Self { own: None, lazy: None };

    /// A private page with these words.
    pub fn owned(words: Words) -> Self {
        Self { own: Some(words), lazy: None }
    }

    /// Stores one word.
    pub(crate) fn store(&mut self, probe: usize, value: u64) {
        if let Some(words) = &mut self.own {
            words[probe] = value;
        }
        if let Some(lazy) = self.lazy {
            let zeroed = lazy.sets().fold(0, |sets, set| sets | 1 << (set & !(1 << probe)));
            self.lazy = Some(Lazy { zeroed, open: false });
            self.settle();
        }
    }

    /// `MADV_FREE`.
    pub(super) fn free_lazily(&mut self) {
        let before = self.lazy.map_or(KEPT, |lazy| lazy.zeroed);
        self.lazy = self.own.map(|_| Lazy { zeroed: before | DROPPED, open: true });
    }

    /// A load has seen `word`, which it may.
    pub(crate) fn saw(&mut self, probe: usize, word: u64) {
        let (Some(own), Some(lazy)) = (self.own, self.lazy) else { return };
        let seen = lazy.sets().filter(|&set| word_if(&own, set, probe) == word);
        let zeroed = seen.fold(if lazy.open { DROPPED } else { 0 }, |sets, set| sets | 1 << set);
        self.lazy = Some(Lazy { zeroed, ..lazy });
        self.settle();
    }

    /// Forgets that the page was freed lazily if only one way is left.
    fn settle(&mut self) {
        let (Some(own), Some(lazy)) = (self.own, self.lazy) else { return };
        match (lazy.open, lazy.zeroed) {
            (true, DROPPED) => *self = Self::TOUCHED,
            (false, sets) if sets.is_power_of_two() => {
                let set = sets.trailing_zeros() as u8;
                *self = Self::owned(array::from_fn(|probe| word_if(&own, set, probe)));
            }
            _ => {}
        }
    }

    /// Whether it has private words that the system may not have dropped.
    pub fn is_kept(&self) -> bool {
        self.own.is_some() && self.lazy.is_none_or(|lazy| !lazy.open)
    }

    /// The words that loads from it would see, if it has private ones.
    pub fn seen(&self) -> Option<[Seen; PROBES]> {
        let own = self.own?;
        let one = |probe| {
            let zero = |set: u8| set >> probe & 1 == 1;
            let (kept, or_zero) = self
                .lazy
                .map_or((true, false), |lazy| (lazy.sets().any(|set| !zero(set)), lazy.sets().any(zero)));
            if kept { Seen { word: own[probe], or_zero } } else { Seen { word: 0, or_zero: false } }
        };
        Some(array::from_fn(one))
    }

    /// Whether it may hold all of these words at once; `None` if it has no private ones.
    pub fn allows(&self, words: &Words) -> Option<bool> {
        let own = self.own?;
        let as_in = |set| (0..PROBES).all(|probe| word_if(&own, set, probe) == words[probe]);
        Some(self.lazy.map_or(own == *words, |lazy| lazy.sets().any(as_in)))
    }
}
