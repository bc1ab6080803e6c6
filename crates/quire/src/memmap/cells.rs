//! Map counts that have a cache line each and are changed without a lock (`CountScheme::PerFrame`).
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::lanes::Lanes;

impl Lanes<'_> {
    /// Adds one to each cell of a run by an atomic; `false` if these lanes are no cells.
    pub(super) fn count_cells_up(self, start: usize, count: usize) -> bool {
        let Self::Cells(cells) = self else { return false };
        for cell in &cells[start..start + count] {
            cell.0.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    pub(super) fn count_cells_down(self, start: usize, count: usize) {
        let Self::Cells(cells) = self else { return };
        for cell in &cells[start..start + count] {
            let before = cell.0.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0, "a frame was unmapped more often than mapped (invariant 5)");
        }
    }
}
