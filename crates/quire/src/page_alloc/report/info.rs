//! How memory is used, in the terms of `/proc/zoneinfo` and `/proc/meminfo`.

use core::sync::atomic::Ordering;

use crate::cpu::CpuId;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::request::gfp::ZoneKind;
use crate::page_alloc::store::marks::Watermarks;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;

/// One zone, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneInfo {
    /// The node.
    pub node: u8,
    /// The kind.
    pub kind: ZoneKind,
    /// Its frames, the manager's tables included.
    pub present: u64,
    /// Frames that can ever be handed out, descriptor frames included.
    pub managed: u64,
    /// Frames in the store.
    pub free: u64,
    /// Frames on per-CPU lists; they count as available too.
    pub cached: u64,
    /// Frames that hold descriptors of blocks in small pieces.
    pub descriptors: u64,
    /// Blocks that are whole and free.
    pub whole_blocks: u64,
    /// Frames of the store that are known to be zero.
    pub zeroed: u64,
    /// The zone's marks.
    pub marks: Watermarks,
    /// Frames that it keeps from requests that may take a zone of a higher kind, for each [`ZoneKind`].
    pub low_reserve: [u64; 3],
}

/// The machine, in frames. At rest, `free + cached + used + metadata` is `total` (invariant 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryInfo {
    /// All memory that was given.
    pub total: u64,
    /// In the store.
    pub free: u64,
    /// On per-CPU lists, parked and deferred ones included.
    pub cached: u64,
    /// Handed out.
    pub used: u64,
    /// The manager's tables, descriptor frames included.
    pub metadata: u64,
    /// Free frames that zones keep, until freeing in the background may stop, and for requests that can go no
    /// higher (Linux: `totalreserve_pages`).
    pub kept: u64,
    /// The sum of the zones' low marks.
    pub low: u64,
}

impl MemoryInfo {
    /// Frames that can be allocated: the store's, and the lists', which are drained when the store has none.
    pub fn available(&self) -> u64 {
        self.free + self.cached
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Every zone that has memory.
    pub fn zone_info(&self) -> impl Iterator<Item = ZoneInfo> + '_ {
        self.zones().map(|zone| ZoneInfo {
            node: zone.node,
            kind: zone.kind,
            present: zone.present.load(Ordering::Relaxed),
            managed: zone.managed.load(Ordering::Relaxed),
            free: zone.free_frames(),
            cached: self.cached_in(usize::from(zone.number)),
            descriptors: zone.descriptor_frames.load(Ordering::Relaxed),
            whole_blocks: zone.whole_blocks(self.platform()),
            zeroed: self.store().zeroed_frames(zone),
            marks: zone.marks.watermarks(),
            low_reserve: ZoneKind::ALL.map(|kind| zone.marks.low_reserve(kind)),
        })
    }

    /// The zones that have memory.
    pub(in crate::page_alloc) fn zones(&self) -> impl Iterator<Item = &Zone> {
        self.store().zones.iter().filter(|zone| zone.managed.load(Ordering::Relaxed) > 0)
    }

    /// Frames of a zone on the lists of one CPU.
    pub fn cached_on(&self, cpu: CpuId, node: u8, kind: ZoneKind) -> u64 {
        let number = self.zones().find(|zone| zone.node == node && zone.kind == kind).map(|zone| zone.number);
        let levels = self.lists().cpus.get(cpu.0 as usize).map(|cpu| &cpu.levels);
        let (Some(number), Some(levels)) = (number, levels) else { return 0 };
        levels.iter().map(|level| level.frames_of_zone(usize::from(number))).sum()
    }

    /// All frames that the allocator was given, as [`MemoryInfo::total`]: one load.
    #[inline]
    pub fn total_frames(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// The machine as a whole.
    pub fn memory_info(&self) -> MemoryInfo {
        let tables = self.tables.load(Ordering::Relaxed);
        let mut info = MemoryInfo {
            total: self.present.load(Ordering::Relaxed),
            metadata: self.reserved + tables,
            ..MemoryInfo::default()
        };
        let mut managed = 0;
        for zone in self.zone_info() {
            info.free += zone.free;
            info.cached += zone.cached;
            info.metadata += zone.descriptors;
            let for_lower = zone.low_reserve.into_iter().max().unwrap_or(0);
            info.kept += (zone.marks.high + for_lower).min(zone.managed);
            info.low += zone.marks.low;
            managed += zone.managed;
        }
        info.cached +=
            self.lists().cpus.iter().map(|cpu| cpu.deferred_frames.load(Ordering::Relaxed)).sum::<u64>();
        let out_of_use = info.free + info.cached + (info.metadata - self.reserved);
        info.used = managed.saturating_sub(out_of_use);
        info
    }

    fn cached_in(&self, zone: usize) -> u64 {
        let levels = self.lists().cpus.iter().flat_map(|cpu| &cpu.levels);
        levels.map(|level| level.frames_of_zone(zone)).sum()
    }
}
