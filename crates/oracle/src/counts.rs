//! Checks of the whole state: map counts against an independent reading of all page tables, and frames against owners.

use std::collections::HashMap;

use hosted::Hosted;
use quire::addr::{Frame, FrameRange};
use quire::arch::EntryFlags;
use quire::page_alloc::PageAllocator;

/// What the page tables of all address spaces map, as the software MMU reads them.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// Leaves that map each frame.
    leaves: HashMap<u64, u64>,
}

impl Mapped {
    /// Reads the tables under these roots. Frames that nobody counts (the zero frame) are left out.
    pub fn read(machine: &Hosted, roots: &[Frame]) -> Self {
        let mut mapped = Self::default();
        for &root in roots {
            for leaf in machine.leaves(root) {
                if leaf.entry & EntryFlags::SPECIAL.bits() != 0 {
                    continue;
                }
                for frame in leaf.frame.0..leaf.frame.0 + leaf.frames {
                    *mapped.leaves.entry(frame).or_insert(0) += 1;
                }
            }
        }
        mapped
    }

    /// How many different frames are mapped.
    pub fn frames(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// How many leaves map the frame.
    pub fn leaves_of(&self, frame: Frame) -> u64 {
        self.leaves.get(&frame.0).copied().unwrap_or(0)
    }

    /// Compares the library's map count of every frame of the machine with the leaves that were read (invariant 5).
    ///
    /// # Errors
    /// The first frame that differs.
    pub fn compare(
        &self,
        allocator: &PageAllocator<'_, Hosted>,
        memory: &[FrameRange],
    ) -> Result<(), String> {
        for range in memory {
            for frame in (range.start.0..range.end().0).map(Frame) {
                let (counted, found) = (allocator.mapcount(frame), self.leaves_of(frame));
                if counted != found {
                    return Err(format!(
                        "frame {:#x}: map count {counted}, but {found} leaves map it",
                        frame.0
                    ));
                }
            }
        }
        let foreign =
            self.leaves.keys().find(|&&frame| !memory.iter().any(|range| range.contains(Frame(frame))));
        foreign.map_or(Ok(()), |frame| Err(format!("frame {frame:#x} is mapped and is no memory")))
    }
}

/// Frames in use that have no owner known from outside: handed out, mapped by nobody, held by nobody, part of no folio
/// that is mapped elsewhere. What remains are page tables, small objects and lanes of counts, which the library counts
/// itself.
pub fn unowned(allocator: &PageAllocator<'_, Hosted>, mapped: &Mapped, memory: &[FrameRange]) -> u64 {
    let census = allocator.memory_info();
    let owned = memory
        .iter()
        .flat_map(|range| (range.start.0..range.end().0).map(Frame))
        .filter(|&frame| mapped.leaves_of(frame) > 0)
        .count() as u64;
    census.used.saturating_sub(owned)
}
