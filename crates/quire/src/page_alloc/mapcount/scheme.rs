//! The ways to count leaves that map folios of whole blocks.
#![forbid(unsafe_code)]

/// How leaves of a folio of whole blocks are counted. Chosen at start-up. The published ways are there to be measured: without a lock,
/// whoever takes the last leaf of a pool's page away may look at the page after its file has given it to somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum CountScheme {
    /// Exactly, for each frame, a table at a time ([`crate::memmap::SmallMaps`]).
    #[default]
    Dense = 0,
    /// Exactly, by an atomic number for each frame that is 64 bytes from the next, as page descriptors are: 16 MiB for a
    /// page of 1 GiB. A leaf of 2 MiB changes 512 of them, one of the whole folio one more. The "THP-like" mapcount of
    /// Houghton, "hugetlb: introduce HugeTLB high-granularity mapping" v2 (2023).
    PerFrame = 1,
    /// One number for the folio: how many leaves of any size map it, changed once for each run of leaves. Nobody can say how often a frame is
    /// mapped: what asks for it is told of the folio, and a folio that is mapped in pieces is not split. The
    /// "head-only" mapcount of the same discussion, done a table at a time.
    HeadOnly = 2,
    /// The same, one atomic change for each leaf, as it was posted.
    HeadOnlyByLeaf = 3,
}

impl CountScheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dense, Self::PerFrame, Self::HeadOnly, Self::HeadOnlyByLeaf];

    /// Whether one number counts all of a folio.
    #[inline]
    pub(in crate::page_alloc) const fn is_head_only(self) -> bool {
        matches!(self, Self::HeadOnly | Self::HeadOnlyByLeaf)
    }
}
