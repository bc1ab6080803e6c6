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

/// A page of one address space that was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Its own words, when it is private and was written (or made private by a populating write).
    pub own: Option<Words>,
    /// After `MADV_FREE`: zeroes may have replaced all words of `own` whose bit is not set.
    pub lazy: Option<u8>,
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
        if let Some(kept) = &mut self.lazy {
            *kept |= 1 << probe;
        }
    }

    /// Whether it has private words that the system may not have dropped.
    pub fn is_kept(&self) -> bool {
        self.own.is_some() && self.lazy.is_none()
    }

    /// The words that loads from it would see, if it has private ones.
    pub fn seen(&self) -> Option<[Seen; PROBES]> {
        let own = self.own?;
        Some(array::from_fn(|probe| Seen { word: own[probe], or_zero: self.may_be_zero(probe) }))
    }

    /// Whether the word at `probe` may be zero instead of `own`'s.
    pub(crate) fn may_be_zero(&self, probe: usize) -> bool {
        self.lazy.is_some_and(|kept| kept >> probe & 1 == 0)
    }
}
