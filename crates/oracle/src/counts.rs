//! Checks of the whole state: map counts against an independent reading of all page tables, and frames against owners.

use std::collections::HashSet;

use hosted::Hosted;
use quire::addr::{Frame, FrameRange};
use quire::arch::EntryFlags;
use quire::memmap::BlockState;
use quire::page_alloc::PageAllocator;
use quire::stats::Stat;
use rustc_hash::FxHashMap;

/// The mappings in the page tables of all address spaces, as the software MMU reads them.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// Leaves that map each frame.
    leaves: FxHashMap<u64, u64>,
    /// Frames that hold page tables.
    tables: HashSet<Frame>,
}

impl Mapped {
    /// Reads the tables under these roots. Frames without a count (the zero frame) are left out.
    pub fn read(machine: &Hosted, roots: &[Frame]) -> Self {
        let mut mapped = Self::default();
        // A leaf counts once, however many address spaces share its table.
        let mut seen = HashSet::new();
        for &root in roots {
            mapped.tables.extend(machine.tables(root));
            for leaf in machine.leaves(root) {
                if leaf.entry & EntryFlags::SPECIAL.bits() != 0 || !seen.insert((leaf.table, leaf.addr)) {
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

    /// How many different frames hold page tables.
    pub fn tables(&self) -> u64 {
        self.tables.len() as u64
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
                let (counted, found) = (allocator.counts().mapcount(frame), self.leaves_of(frame));
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

/// Frames by owner, as far as it is visible from outside the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    /// Frames in use, as the allocator counts them.
    pub used: u64,
    /// Mapped by a leaf, or part of a folio of 2 MiB or 1 GiB that is mapped in part, or will be.
    pub mapped: u64,
    /// Held by an owner other than leaves and mapped by none: page cache, the zero frame; without
    /// descriptors.
    pub held: u64,
    /// Page tables.
    pub tables: u64,
    /// Small objects.
    pub objects: u64,
    /// Map counts of 2 MiB folios that are mapped in pieces.
    pub counts: u64,
}

impl Owners {
    /// Reads the allocator's state of every frame of a machine whose memory is one range of whole blocks from
    /// 0 on.
    pub fn read(allocator: &PageAllocator<'_, Hosted>, mapped: &Mapped, memory: FrameRange) -> Self {
        let info = allocator.memory_info();
        let (objects, tables) = (allocator.lists().stat(Stat::NrSlab), mapped.tables.len() as u64);
        let counts = allocator.lists().stat(Stat::NrMapCountPages);
        let mut owners = Self { used: info.used, tables, objects, counts, ..Self::default() };
        for piece in memory.by_block() {
            let block = allocator.memmap().block(piece.start.block());
            if matches!(block.state(), BlockState::Folio | BlockState::FolioTail) {
                owners.mapped += piece.count;
                continue;
            }
            for frame in (0..piece.count).map(|n| piece.start.add(n)) {
                if mapped.leaves_of(frame) > 0 {
                    owners.mapped += 1;
                } else if allocator.frames().is_held(frame) {
                    owners.held += 1;
                }
            }
        }
        let descriptors: u64 = allocator.zone_info().map(|zone| zone.descriptors).sum();
        owners.held = owners.held.saturating_sub(descriptors);
        owners
    }

    /// Compares with the same machine before it was used: every frame that came into use since has an owner.
    ///
    /// # Errors
    /// The number of frames without an owner.
    pub fn compare(&self, before: &Self) -> Result<(), String> {
        let owned =
            |owners: &Self| owners.mapped + owners.held + owners.tables + owners.objects + owners.counts;
        let (used, owned) =
            (self.used as i64 - before.used as i64, owned(self) as i64 - owned(before) as i64);
        if used == owned {
            return Ok(());
        }
        Err(format!("{used} frames came into use and {owned} have an owner: {self:?}, before {before:?}"))
    }
}
