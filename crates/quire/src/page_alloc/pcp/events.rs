//! Counts of events: counted ones, and those that follow from the lists.

use crate::memmap::LISTS;
use crate::page_alloc::pcp::{Lists, level as pcp, list};
use crate::page_alloc::request::gfp::ZoneKind;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Lists<'_, P> {
    /// How often an event happened, or how much there is, on all CPUs together.
    pub fn stat(&self, stat: Stat) -> u64 {
        let through_lists = |count: fn(&list::FrameList) -> u64, kind: Option<ZoneKind>| -> u64 {
            let of_kind = |at: usize| kind.is_none_or(|kind| self.store.zones[at / LISTS].kind == kind);
            let lists = self.cpus.iter().flat_map(|cpu| &cpu.levels).flat_map(|level| level.indexed());
            let counted = lists.filter(|&(at, _)| of_kind(at));
            let folios = counted.map(|(at, list)| count(list) << pcp::order_of(at % LISTS).get());
            folios.fold(0, u64::wrapping_add)
        };
        let cells = self.frames().stats.iter().map(|cells| cells.get(stat)).fold(0, u64::wrapping_add);
        let listed = match stat {
            Stat::PgallocDma32 => through_lists(list::FrameList::handed_out, Some(ZoneKind::Dma32)),
            Stat::PgallocNormal => through_lists(list::FrameList::handed_out, Some(ZoneKind::Normal)),
            Stat::PgallocMovable => through_lists(list::FrameList::handed_out, Some(ZoneKind::Movable)),
            Stat::Pgfree => through_lists(list::FrameList::freed, None),
            Stat::NumaHit => self.handed_out().saturating_sub(self.stat(Stat::NumaMiss)),
            Stat::NumaLocal => self.handed_out().saturating_sub(self.stat(Stat::NumaOther)),
            _ => 0,
        };
        // CPUs change their parts while they are read, so that the sum may be below zero.
        cells.wrapping_add(listed).cast_signed().max(0).cast_unsigned()
    }

    fn handed_out(&self) -> u64 {
        [Stat::PgallocDma32, Stat::PgallocNormal, Stat::PgallocMovable]
            .into_iter()
            .map(|stat| self.stat(stat))
            .sum()
    }
}
