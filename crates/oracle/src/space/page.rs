//! What the model knows of a page's contents: a few words of it, by value.

/// Words of each page that the model follows.
pub const PROBES: usize = 4;
/// Where in the page they are: both ends and two places between, in different cache lines.
pub const PROBE_OFFSETS: [u64; PROBES] = [0, 1024, 2744, 4088];

/// The words at [`PROBE_OFFSETS`].
pub type Words = [u64; PROBES];

/// What a file holds at first: the word at `offset` (a multiple of 8) of page `page` of file `file`. Never zero, and
/// different for different arguments.
pub fn file_word(file: u64, page: u64, offset: u64) -> u64 {
    let mut x =
        file.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ (offset + 1);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) | 1
}

/// A page of one address space that was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Its own words, when it is private and was written (or made private by a populating write).
    pub own: Option<Words>,
    /// After `MADV_FREE`: zeroes may have taken the place of `own` in all words whose bit is not set.
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

    /// Whether the word at `probe` may be zero in place of what `own` says.
    pub(crate) fn may_be_zero(&self, probe: usize) -> bool {
        self.lazy.is_some_and(|kept| kept >> probe & 1 == 0)
    }
}
