//! Shows each leaf by itself, with all that is recorded in it.
#![forbid(unsafe_code)]

use super::PageTables;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, Level};
use crate::platform::TablePlatform;

/// A leaf as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Its first address.
    pub addr: VirtAddr,
    /// The leaf.
    pub entry: Entry,
    /// Its size.
    pub size: PageSize,
    /// How many address spaces reach its table: one, unless `fork` shared it.
    pub spaces: u64,
}

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Shows every leaf that maps a page of the range, in ascending order, until `show` returns false. Does
    /// not join leaves as [`Self::runs`] does, and waits as that does. Shared; takes no lock, so each leaf is
    /// as it was at some moment of the walk.
    pub fn leaves(&self, range: VirtRange, mut show: impl FnMut(Leaf) -> bool) {
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            let level = step.table.level();
            let Some(size) = level.leaf_size() else { continue };
            let mut spaces = None;
            for index in step.indices() {
                let entry = step.table.load(index);
                if step.is_changing(entry) {
                    rest.start = self.pause_at(&step, index);
                    break;
                }
                if !entry.is_leaf(level) {
                    continue;
                }
                let spaces = *spaces.get_or_insert_with(|| {
                    let shared = step.shared && level == Level::PTE;
                    // Others may leave or join meanwhile; our own share keeps the table.
                    if shared { 1 + self.sharers_of(step.table.frame()) } else { 1 }
                });
                let addr = step.part(index, index + 1).start;
                if !show(Leaf { addr, entry, size, spaces }) {
                    return;
                }
            }
        }
    }

    fn sharers_of(&self, table: crate::addr::Frame) -> u64 {
        self.allocator.frames().descriptor(table).sharers().load(core::sync::atomic::Ordering::Relaxed)
    }
}
