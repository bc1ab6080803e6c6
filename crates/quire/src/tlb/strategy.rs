//! How mapped memory is taken apart.

/// How entries are taken out of page tables and what they map is given back. [`Self::Tables`] is this
/// library's way. The feature `published` adds published ways to measure it against, which do the same work
/// and keep the same invariants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "published", repr(u8))]
#[cfg_attr(not(feature = "published"), allow(unreachable_pub))]
pub enum ZapStrategy {
    /// Every entry on its own: one exchange, one span of the gather, one hold of the block's lock to count
    /// down and free it. What Linux did until 6.8.
    #[cfg(feature = "published")]
    PerPage,
    /// Runs of consecutive entries of one folio: an exchange for each entry, one span and one hold of the
    /// lock for each run. A folio of a single frame goes as with [`Self::PerPage`]. What Linux has done since
    /// 6.9 (Hildenbrand, "mm/memory: optimize unmap/zap with PTE-mapped THP", 2024).
    #[cfg(feature = "published")]
    Runs,
    /// Tables of which nothing is kept are detached by one exchange and read after the flush; what is left
    /// goes by runs of consecutive frames, whatever folios they belong to.
    #[default]
    Tables,
}

impl ZapStrategy {
    /// Whether tables of which nothing is kept are detached whole. Without published ways, always.
    #[inline]
    pub(crate) const fn is_by_table(self) -> bool {
        matches!(self, Self::Tables)
    }

    /// All of them, from the dearest to the cheapest.
    #[cfg(feature = "published")]
    pub const ALL: [Self; 3] = [Self::PerPage, Self::Runs, Self::Tables];
}
