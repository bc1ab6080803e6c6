//! The memory map: a record for every 2 MiB block, and columns for the frames of blocks in small pieces.
//!
//! A [`Block`] record of zeroes says "whole and free", so a machine whose metadata memory is zero is ready
//! without touching its records. The [`Columns`] of a block, in a table beside the records, are used while it
//! is in small pieces. A [`Descriptor`] per frame exists only where the frame's owner needs one.
//!
//! Records are found through a table of 1 GiB sections, so that a hole costs eight bytes per GiB and a node's
//! records are in the node's own memory.

mod bitmap;
mod block;
mod block_mapcount;
mod boot;
#[cfg(feature = "published")]
mod cells;
mod columns;
mod descriptor;
mod lanes;
mod record_maps;

pub use bitmap::{Bitmap, FrameMask};
pub use block::{Block, BlockState};
pub(crate) use block::{LIST_BYTES, LISTS};
pub use block_mapcount::SmallMaps;
pub use boot::{BootCell, BootRef, BootSlice};
pub(crate) use boot::{BootMemory, BootTable, DeferredTable};
pub(crate) use columns::{BLOCK_TABLES, COUNTS_AT, TakenTables};
pub use columns::{Columns, FrameState};
pub use descriptor::{Descriptor, DescriptorFlags};
pub use lanes::{LaneError, LaneWidth, Lanes};
pub(crate) use record_maps::{RecordNeed, SlotPromises};

use crate::addr::{BlockNumber, Frame};
use crate::limits::{BLOCK_FRAMES, SECTION_BLOCKS};

/// The records of the blocks `first .. first + records.len()` of one section.
#[derive(Clone, Copy)]
pub struct Section {
    first: u16,
    records: BootSlice<Block>,
}

impl Section {
    /// A section whose present blocks start at index `first`.
    pub fn new(first: usize, records: BootSlice<Block>) -> Self {
        debug_assert!(first + records.len() <= SECTION_BLOCKS);
        Self { first: first as u16, records }
    }

    /// A section without memory.
    pub fn empty() -> Self {
        Self { first: 0, records: BootSlice::empty() }
    }
}

/// Finds block records and page descriptors by number.
///
/// Every caller may read them:
///
/// ```
/// # use quire::{addr::Frame, memmap::BlockState, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>, frame: Frame) {
/// let block = pages.memmap().block(frame.block());
/// if block.state() == BlockState::Small {
///     pages.frames().descriptor(frame);
/// }
/// # }
/// ```
///
/// Only the manager changes them. A frame is not marked free or allocated from outside:
///
/// ```compile_fail,E0616
/// # use quire::{addr::Frame, memmap::FrameMask, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>, frame: Frame) {
/// pages.memmap().block(frame.block()).used;
/// # }
/// ```
///
/// ```compile_fail,E0624
/// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>, frame: Frame) {
/// pages.memmap().block(frame.block()).reset();
/// # }
/// ```
///
/// ```compile_fail,E0624
/// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>, frame: Frame) {
/// pages.frames().descriptor(frame).reset();
/// # }
/// ```
///
/// The memory that holds them is laid out at start-up alone:
///
/// ```compile_fail,E0603
/// use quire::memmap::BootMemory;
/// ```
pub struct MemMap {
    first_section: usize,
    sections: BootSlice<Section>,
    /// For each section, the columns of its blocks, in the order of the records.
    columns: BootSlice<BootSlice<Columns>>,
    /// The two longest runs of blocks with contiguous records, the longest first: found without the table, as
    /// almost all blocks are. A PC has memory below and above a hole for devices.
    main: [Run; 2],
}

#[derive(Clone, Copy)]
struct Run {
    first: u32,
    records: BootSlice<Block>,
}

impl Run {
    /// No block has so high a number.
    fn none() -> Self {
        Self { first: u32::MAX, records: BootSlice::empty() }
    }

    #[inline(always)]
    fn get(&self, block: BlockNumber) -> Option<&Block> {
        self.records.as_slice().get(block.0.wrapping_sub(self.first) as usize)
    }
}

impl MemMap {
    /// A map of `sections`, the first of which has the number `first_section`, and of their blocks' columns.
    pub fn new(
        first_section: usize,
        sections: BootSlice<Section>,
        columns: BootSlice<BootSlice<Columns>>,
    ) -> Self {
        let number = |at: usize| ((first_section + at) * SECTION_BLOCKS + sections[at].first as usize) as u32;
        let mut runs = [Run::none(); 2];
        let mut run = Run::none();
        for (at, section) in sections.iter().enumerate() {
            let follows = run.first.wrapping_add(run.records.len() as u32) == number(at);
            match run.records.joined(section.records).filter(|_| follows) {
                Some(joined) => run.records = joined,
                None => {
                    keep_longest(&mut runs, run);
                    run = Run { first: number(at), records: section.records };
                }
            }
        }
        keep_longest(&mut runs, run);
        Self { first_section, sections, columns, main: runs }
    }

    /// The address of its table of sections, which identifies the machine.
    #[inline(always)]
    #[cfg(debug_assertions)]
    pub(crate) fn address(&self) -> usize {
        self.sections.address()
    }

    /// The record of a block, or `None` where the machine has no memory.
    #[inline(always)]
    pub fn get(&self, block: BlockNumber) -> Option<&Block> {
        match self.get_main(block) {
            Some(record) => Some(record),
            None => self.get_anywhere(block),
        }
    }

    /// The record of the block around any frame, or `None` where the machine has no memory: a caller's number may be too
    /// large for that of a block.
    #[inline]
    pub(crate) fn get_around(&self, frame: Frame) -> Option<&Block> {
        let number = u32::try_from(frame.0 / BLOCK_FRAMES as u64).ok()?;
        self.get(BlockNumber(number))
    }

    /// The record of a block of one of the two longest runs.
    ///
    /// By a branch, which the processor predicts: a choice of the run by the block's number would stand in
    /// the chain from a free to the next request for the frame, and make the pair a third slower.
    #[inline(always)]
    pub(crate) fn get_main(&self, block: BlockNumber) -> Option<&Block> {
        let [longest, second] = &self.main;
        longest.get(block).or_else(|| second.get(block))
    }

    #[inline(never)]
    fn get_anywhere(&self, block: BlockNumber) -> Option<&Block> {
        let section = (block.0 as usize / SECTION_BLOCKS).wrapping_sub(self.first_section);
        let section = self.sections.get(section)?;
        section.records.get((block.0 as usize % SECTION_BLOCKS).wrapping_sub(section.first as usize))
    }

    /// The record of a block that exists.
    ///
    /// # Panics
    /// When the machine has no such block.
    #[inline]
    pub fn block(&self, block: BlockNumber) -> &Block {
        match self.get(block) {
            Some(record) => record,
            None => no_such_block(block),
        }
    }

    /// The columns of a block that exists, whether they are in use or not.
    #[inline]
    pub(crate) fn columns_of(&self, block: BlockNumber) -> &Columns {
        let section = (block.0 as usize / SECTION_BLOCKS).wrapping_sub(self.first_section);
        let first = usize::from(self.sections[section].first);
        &self.columns[section][block.0 as usize % SECTION_BLOCKS - first]
    }

    /// The page descriptor of a frame in a block that is used in small pieces.
    ///
    /// # Panics
    /// When the frame has none: its owner did not ask for one, or its block is whole.
    #[inline(always)]
    pub fn descriptor(&self, frame: Frame) -> &Descriptor {
        let columns = self.block(frame.block()).columns();
        described(columns.and_then(|columns| columns.row(frame.index_in_block())), frame)
    }

    /// The first block of each complete section, in ascending order: where a folio of 1 GiB may start.
    pub(crate) fn whole_sections(&self) -> impl Iterator<Item = BlockNumber> {
        let whole = |section: &Section| section.records.len() == SECTION_BLOCKS;
        let sections = self.sections.iter().enumerate().filter(move |(_, section)| whole(section));
        sections.map(|(at, _)| BlockNumber(((self.first_section + at) * SECTION_BLOCKS) as u32))
    }

    /// Every block record of the machine with its number, in ascending order.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockNumber, &Block)> {
        self.sections.iter().enumerate().flat_map(move |(at, section)| {
            let first = (self.first_section + at) * SECTION_BLOCKS + section.first as usize;
            let records: &[Block] = section.records.as_slice();
            records.iter().enumerate().map(move |(index, block)| (BlockNumber((first + index) as u32), block))
        })
    }
}

/// Keeps the two longest of three runs, the longest first.
fn keep_longest(runs: &mut [Run; 2], run: Run) {
    if run.records.len() > runs[1].records.len() {
        runs[1] = run;
    }
    if runs[1].records.len() > runs[0].records.len() {
        runs.swap(0, 1);
    }
}

#[cold]
#[inline(never)]
fn no_such_block(block: BlockNumber) -> ! {
    panic!("{block:?} is not memory of this machine")
}

/// The descriptor of a frame, which has one.
#[inline]
pub(crate) fn described(found: Option<&Descriptor>, frame: Frame) -> &Descriptor {
    match found {
        Some(descriptor) => descriptor,
        None => no_descriptor(frame),
    }
}

#[cold]
#[inline(never)]
fn no_descriptor(frame: Frame) -> ! {
    panic!("descriptor of {frame:?} wanted, but it has none")
}

#[cfg(test)]
mod tests;
