//! Makes the tables of the page allocator in boot memory.

use core::sync::atomic::AtomicU64;

use crate::addr::BlockNumber;
use crate::cpu::CpuId;
use crate::error::InitError;
use crate::limits::{BLOCK_FRAMES, SECTION_BLOCKS};
use crate::memmap::{Block, BootMemory, BootSlice, Columns, LISTS, MemMap, Section};
use crate::page_alloc::frames::CONTEXTS;
use crate::page_alloc::init::config::{AllocatorConfig, MemoryRange};
use crate::page_alloc::init::layout::Layout;
use crate::page_alloc::init::start::{last_block, whole_blocks};
#[cfg(feature = "published")]
use crate::page_alloc::pcp::guarded;
use crate::page_alloc::pcp::level::{CpuLists, LEVELS, ListSizes};
use crate::page_alloc::pcp::list::ListEntry;
use crate::page_alloc::pcp::parked::Parked;
use crate::page_alloc::request::gfp::{KINDS, ZoneKind};
use crate::page_alloc::request::placement::Placement;
use crate::page_alloc::store::areas::Areas;
use crate::page_alloc::store::isolated::Isolated;
use crate::page_alloc::store::marks::ZoneMarks;
use crate::page_alloc::store::pool::{Pool, pool_words};
use crate::page_alloc::store::shard::Shard;
use crate::page_alloc::store::zone::{OwnLine, Zone};
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::stats::StatCells;
use crate::sync::SpinLock;

/// The tables of an allocator.
pub(super) struct Tables {
    pub(super) memmap: MemMap,
    pub(super) zones: BootSlice<Zone>,
    pub(super) placement: Placement,
    pub(super) lists: BootSlice<CpuLists>,
    pub(super) stats: BootSlice<StatCells>,
}

impl Layout<'_> {
    #[inline(never)]
    pub(super) fn build_tables<P: FramePlatform>(
        &self,
        boot: &mut BootMemory<'_, P>,
        platform: &P,
        _config: &AllocatorConfig,
    ) -> Result<Tables, InitError> {
        let memmap = build_memmap(boot, self.ranges)?;
        let zones = boot.table(0, self.nodes * KINDS, |boot, zone| self.build_zone(boot, platform, zone))?;
        let cpus = platform.cpu_count();
        let placement = self.build_placement(boot, platform)?;
        #[cfg(feature = "published")]
        let open = guarded::are_open::<P>(guarded::guard_of::<P>(_config.lists));
        #[cfg(not(feature = "published"))]
        let open = true;
        let lists = boot.table(0, cpus, |boot, cpu| {
            self.build_cpu(boot, platform, CpuId(cpu as u32), placement.nearest, open)
        })?;
        let stats = boot.table(0, cpus * CONTEXTS, |_, _| Ok(StatCells::new()))?;
        Ok(Tables { memmap, zones, placement, lists, stats })
    }

    /// Whether the range of a block was promised to be zero, and the allocator remembers zeroes.
    fn is_zeroed(&self, block: BlockNumber) -> bool {
        let holds = |range: &&MemoryRange| range.frames.contains(block.first_frame());
        self.remember_zeroes && self.ranges.iter().find(holds).is_some_and(|range| range.zeroed)
    }

    #[inline(never)]
    fn build_zone<P: FramePlatform>(
        &self,
        boot: &mut BootMemory<'_, P>,
        platform: &P,
        number: usize,
    ) -> Result<Zone, InitError> {
        let (node, kind) =
            ((number / KINDS) as u8, [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable][number % KINDS]);
        let whole = || self.pieces(number).map(whole_blocks).filter(|(first, end)| first < end);
        let blocks: u64 = whole().map(|(first, end)| u64::from(end.0 - first.0)).sum();
        let pools = boot.table(node, whole().count(), |boot, index| {
            let (first, end) = whole().nth(index).unwrap_or_default();
            let (words, summary) = pool_words(first, end.0 - first.0);
            // SAFETY: M1: zero bytes are a valid `AtomicU64`.
            let tables = unsafe {
                let [taken, full] = [boot.zeroed_table(node, words)?, boot.zeroed_table(node, summary)?];
                [taken, full, boot.zeroed_table(node, words)?]
            };
            Ok(SpinLock::new(Rank::Pool, Pool::new(first, end.0 - first.0, tables, self.is_zeroed(first))))
        })?;
        let shards = if self.frames_in(number) == 0 { 0 } else { platform.cpu_count() };
        let shards = boot.table(node, shards, |_, _| Ok(Shard::new()))?;
        let managed = blocks * BLOCK_FRAMES as u64;
        let (area, areas) = Areas::span(self.pieces(number));
        let first = |at: usize| Areas::first_word(area + at as u32, self.present_pieces(number));
        let words = boot.table(node, areas, |_, at| Ok(first(at)))?;
        let zone = Zone {
            number: number as u8,
            node,
            kind,
            managed: AtomicU64::new(managed),
            present: AtomicU64::new(self.present_in(number)),
            marks: ZoneMarks::default(),
            pools,
            shards,
            free: OwnLine::default(),
            booked: OwnLine::default(),
            pieces_zeroed: OwnLine::default(),
            descriptor_frames: AtomicU64::new(0),
            isolated: Isolated::default(),
            areas: Areas::new(area, words),
        };
        zone.add_free(managed as i64);
        Ok(zone)
    }

    #[inline(never)]
    fn build_cpu<P: FramePlatform>(
        &self,
        boot: &mut BootMemory<'_, P>,
        platform: &P,
        cpu: CpuId,
        fallback: BootSlice<BootSlice<u8>>,
        open: bool,
    ) -> Result<CpuLists, InitError> {
        let node = platform.node_of(cpu);
        let of_kind = |kind| {
            fallback
                .get(usize::from(node) * KINDS + kind)
                .and_then(|zones: &BootSlice<u8>| zones.first().copied())
        };
        let first = core::array::from_fn(|kind| of_kind(kind).unwrap_or_default());
        let zone_frames = |zone| self.frames_in(zone);
        let sizes =
            ListSizes { zone_frames: &zone_frames, zones: fallback.len(), cpus: platform.cpu_count() };
        let guarded = !open;
        let mut lists = [BootSlice::empty(); LEVELS];
        for (level, lists) in lists.iter_mut().enumerate() {
            *lists = boot.table(node, fallback.len(), |boot, zone| {
                let mut slots = [BootSlice::empty(); LISTS];
                for (number, slots) in slots.iter_mut().enumerate() {
                    let len = sizes.slots(level, zone * LISTS + number);
                    let align = (len * size_of::<ListEntry>()).max(align_of::<ListEntry>());
                    // SAFETY: M1: zero bytes are a valid `ListEntry`, and none is looked at before it was set.
                    *slots = unsafe { boot.zeroed_table_at(node, len, align) }?;
                }
                Ok(slots.map(CpuLists::make_list))
            })?;
        }
        // SAFETY: M1: zero bytes are a valid `SortEntry`: it holds no frame.
        let sorter = unsafe { boot.zeroed_table(node, sizes.sorter_blocks()) }?;
        let parked = boot.table(node, fallback.len() * LISTS, |_, _| Ok(Parked::new()))?;
        CpuLists::new(lists, first, parked, guarded, sorter).ok_or(InitError::NoMemory)
    }
}

/// Allocates the section table, and for each section with memory its records from the first block to the
/// last; then the columns for as many blocks. The records of neighbouring sections are next to each other.
fn build_memmap<P: FramePlatform>(
    boot: &mut BootMemory<'_, P>,
    ranges: &[MemoryRange],
) -> Result<MemMap, InitError> {
    let present = || ranges.iter().filter(|range| range.frames.count > 0);
    let first =
        present().map(|range| range.frames.start.block().0).min().unwrap_or(0) as usize / SECTION_BLOCKS;
    let last = present().map(|range| last_block(range.frames).0).max().unwrap_or(0) as usize / SECTION_BLOCKS;
    let blocks_in = |index: usize| {
        let from = ((first + index) * SECTION_BLOCKS) as u32;
        let to = from + SECTION_BLOCKS as u32 - 1;
        let inside = || {
            present()
                .map(|range| {
                    (range.frames.start.block().0.max(from), last_block(range.frames).0.min(to), range.node)
                })
                .filter(|(low, high, _)| low <= high)
        };
        let (low, _, node) = inside().next()?;
        let high = inside().map(|(_, high, _)| high).max().unwrap_or(low);
        Some(((low - from) as usize, (high - low + 1) as usize, node))
    };
    let sections = boot.table(0, last - first + 1, |boot, index| {
        let Some((low, blocks, node)) = blocks_in(index) else { return Ok(Section::empty()) };
        // SAFETY: M1: a zeroed `Block` is a valid record: whole and free, unlocked.
        Ok(Section::new(low, unsafe { boot.zeroed_table::<Block>(node, blocks)? }))
    })?;
    let columns = boot.table(0, last - first + 1, |boot, index| {
        let Some((_, blocks, node)) = blocks_in(index) else { return Ok(BootSlice::empty()) };
        // SAFETY: M1: zeroed `Columns` are valid: without tables, and no frame is counted.
        unsafe { boot.zeroed_table::<Columns>(node, blocks) }
    })?;
    Ok(MemMap::new(first, sections, columns))
}
