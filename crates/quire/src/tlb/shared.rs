//! The resident memory of page tables that several address spaces reach.

use core::sync::atomic::Ordering;

use super::RssChange;
use super::words::Table;
use crate::addr::PageSize;
use crate::arch::Level;
use crate::limits::TABLE_ENTRIES;
use crate::memmap::{Descriptor, DescriptorFlags};

/// The resident memory of a table of 4 KiB leaves. Reads the leaves only if some were not anonymous.
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
