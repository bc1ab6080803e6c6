//! How memory is unmapped.

/// How entries are removed from page tables and their memory is freed. [`Self::Tables`] is this library's
/// way. The feature `published` adds published ways to compare with, under the same invariants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "published", repr(u8))]
#[cfg_attr(not(feature = "published"), allow(unreachable_pub))]
pub enum ZapStrategy {
    /// Every entry by itself: one exchange, one span of the gather, one count, under one hold of the block's
    /// lock for each folio. Linux did so until 6.8.
    #[cfg(feature = "published")]
    PerPage,
    /// Runs of consecutive entries of one folio: one exchange for each entry, one span and one hold of the
    /// lock for each run. A folio of a single frame as in [`Self::PerPage`]. Linux has done so since 6.9
    /// (Hildenbrand, "mm/memory: optimize unmap/zap with PTE-mapped THP", 2024).
    #[cfg(feature = "published")]
    Runs,
    /// A table of which nothing is kept is detached by one exchange and read after the flush. Other leaves
    /// are unmapped by runs of consecutive frames, whatever folios these belong to.
    #[default]
    Tables,
}

impl ZapStrategy {
    /// Whether tables of which nothing is kept are detached whole; always, without published ways.
    #[inline]
    pub(crate) const fn is_by_table(self) -> bool {
        matches!(self, Self::Tables)
    }

    /// All strategies, the most expensive first.
    #[cfg(feature = "published")]
    pub const ALL: [Self; 3] = [Self::PerPage, Self::Runs, Self::Tables];
}
