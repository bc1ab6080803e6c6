//! Page tables that several address spaces reach: what can be said of one without changing it, and giving one
//! up.

use core::sync::atomic::Ordering;

use super::RssChange;
use super::words::Table;
use crate::addr::PageSize;
use crate::arch::Level;
use crate::limits::TABLE_ENTRIES;
use crate::memmap::{Descriptor, DescriptorFlags};

/// How much resident memory a table of 4 KiB leaves stands for. Reads no leaf unless some were not anonymous
/// memory.
pub(crate) fn resident(table: Table<'_>, descriptor: &Descriptor) -> RssChange {
    debug_assert!(table.level() == Level::PTE);
    let mut sum = RssChange::default();
    if !descriptor.has(DescriptorFlags::MIXED) {
        sum.anon = i64::from(descriptor.population.load(Ordering::Relaxed));
        return sum;
    }
    let leaves = (0..TABLE_ENTRIES).map(|index| table.load(index)).filter(|leaf| leaf.is_present());
    leaves.for_each(|leaf| sum.count(leaf, PageSize::Size4K, 1));
    sum
}

/// Gives up one address space's share in a table, of which no CPU that runs it has anything cached any more.
/// Whether others still have theirs: then the table is not the caller's to look at any more. If not, it is
/// the caller's alone.
pub(crate) fn leave(descriptor: &Descriptor) -> bool {
    super::sharers::leave(descriptor.sharers())
}
