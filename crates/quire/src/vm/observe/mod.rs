//! Reports about address spaces: mappings, leaves, shares, flags, counts, translations, and tracked stores.

pub(super) mod folio_sharers;
pub(super) mod info;
pub(super) mod large_leaves;
pub(super) mod mapped;
mod mincore;
pub(super) mod page_counts;
pub(super) mod page_flags;
pub(super) mod pagemap;
pub(super) mod smaps;
pub(super) mod track;
pub(super) mod translate;
pub(super) mod view;
