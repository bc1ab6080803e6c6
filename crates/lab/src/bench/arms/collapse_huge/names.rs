//! The names of the ways of counting, the same in `collapse` and in `mapcount`.

use quire::page_alloc::CountScheme;

/// The name of the arm with this way of counting.
pub fn name_of(counts: CountScheme) -> &'static str {
    match counts {
        CountScheme::Dense => "quire",
        CountScheme::PerFrame => "per-frame",
        CountScheme::HeadOnly => "head-only",
        CountScheme::HeadOnlyByLeaf => "head-only-by-leaf",
        CountScheme::TotalMapped => "total-mapped",
    }
}
