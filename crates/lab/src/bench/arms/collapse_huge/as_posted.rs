//! A collapse in the steps of the patches for Linux (Houghton, v2, 2023), by verbs of this library.

use quire::arch::Access;
use quire::platform::Platform;
use quire::vm::{Advice, Mm};

use super::ours::GIB;
use crate::bench::experiment::Skip;
use crate::bench::ours::START;
use quire::addr::{PageSize, VirtRange};

/// Inside one notifier bracket over the whole page: zaps all leaves, which flushes and counts them down, and
/// maps one leaf. Returns how many huge pages have one.
pub(super) fn collapse<P: Platform>(platform: &P, mm: &Mm<'_, P>) -> Result<u64, Skip> {
    let range = VirtRange::from_len(START, GIB);
    platform.secondary_invalidate_start(mm.root(), range);
    let zapped = mm.madvise(START, GIB, Advice::DontNeed).map_err(|error| Skip::because("the zap", error));
    let mapped =
        zapped.and_then(|_| mm.fault(START, Access::Write).map_err(|error| Skip::because("the leaf", error)));
    platform.secondary_invalidate_end(mm.root(), range);
    mapped?;
    let leaf = mm.translate(START, Access::Write);
    Ok(leaf.is_some_and(|leaf| leaf.size == PageSize::Size1G).into())
}
