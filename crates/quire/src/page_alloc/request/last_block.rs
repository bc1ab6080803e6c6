//! Folios of *middle* orders, 4 to 8: too rare for lists of their own, too common to search an index each.
//!
//! Each CPU remembers, for each mobility group, the block that the store last found for it. While that block
//! has a fitting group, a request takes its lock alone. All else takes the slow path.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::cpu::CpuId;
use crate::error::{AllocError, FreeError};
use crate::nodes::NodePolicy;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::small::{count_taken, take_group};
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

#[inline]
pub(in crate::page_alloc) fn is_middle(order: Order) -> bool {
    (4..9).contains(&order.get())
}

impl<P: FramePlatform> Requests<'_, P> {
    /// An allocation that the lists do not serve at once: of a middle order, or by the slow path.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn alloc_unlisted(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        if is_middle(order) {
            let pinned = Pinned::new(self.platform());
            if let Some(frame) = self.take_middle(pinned.cpu(), gfp, order) {
                return Ok(frame);
            }
        }
        self.alloc_slow(gfp, order)
    }

    /// A free that the lists do not serve at once: in task context a middle order goes straight to the store.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn free_unlisted(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        if !is_middle(order) || self.platform().context() != Context::Task {
            return self.free_slow(frame, order);
        }
        let pinned = Pinned::new(self.platform());
        self.frames().in_store(|| self.store().store_free(frame, order, Contents::Unknown))?;
        self.frames().cells(pinned.cpu()).add(Stat::Pgfree, order.frames());
        Ok(())
    }

    /// Takes a folio of a middle order from the block that the CPU used last. `None`: take the slow path.
    #[inline]
    fn take_middle(&self, cpu: CpuId, gfp: Gfp, order: Order) -> Option<Frame> {
        let direct = gfp.nodes == NodePolicy::Local && self.frames().is_guarded_by_lease();
        if !direct || self.platform().context() != Context::Task {
            return None;
        }
        let hint = &self.lists.lists_of(cpu).last_block[gfp.mobility as usize];
        let number = BlockNumber(hint.load(Ordering::Relaxed).checked_sub(1)?);
        let block = self.frames().memmap.get(number)?;
        let zone = &self.store().zones[block.zone()];
        let nearest = self.placement.nearest_zone(self.platform().node_of(cpu), gfp.zone);
        if nearest != Some(zone.number) || zone.allowance(gfp.urgency, gfp.zone) < order.frames() {
            return None;
        }
        block.lock(self.platform());
        // Only blocks in small pieces have a `free_order` above 0.
        let serves = !zone.isolated.contains(number)
            && (block.zone(), block.mobility()) == (zone.number.into(), gfp.mobility as u8)
            && block.free_order.load(Ordering::Relaxed) > order.get();
        let search = Search { contents: gfp.contents, ..Search::within(order) };
        let index = serves.then(|| take_group(zone, block, &search)).flatten();
        if index.is_some() {
            count_taken(block, 1, order);
        }
        block.unlock(self.platform());
        let Some(index) = index else {
            hint.store(0, Ordering::Relaxed);
            return None;
        };
        zone.add_free(-(order.frames() as i64));
        self.store().count_alloc(cpu, usize::from(zone.number), order.frames());
        self.frames().cells(cpu).add(Stat::BlockLock, 1);
        Some(number.first_frame().add(index as u64))
    }

    pub(in crate::page_alloc) fn remember_block(&self, cpu: CpuId, gfp: Gfp, frame: Frame) {
        let hint = &self.lists.lists_of(cpu).last_block[gfp.mobility as usize];
        hint.store(frame.block().0 + 1, Ordering::Relaxed);
    }
}
