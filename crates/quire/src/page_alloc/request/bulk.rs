//! Many folios in one call: one lock for all that one block gives or takes, and no per-CPU list in between.

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::error::FreeError;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, Columns, FrameState};
use crate::page_alloc::frames::owned::{Folio, Folios};
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::sorting::{BlockWords, FolioBits, SortEntry, Sorting};
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// Frames that [`Requests::fill_bulk`] fetches at once.
const FILL_BATCH: usize = 64;

impl<P: FramePlatform> Requests<'_, P> {
    /// Allocates folios of one order, as many as memory and marks allow, but at most `out.len()`. None is an
    /// ordinary answer. Neighbours are next to each other in `out`. An interleaving request gets an equal
    /// share of each node (Linux: `alloc_pages_bulk_interleave`).
    pub fn alloc_bulk<'a>(&self, gfp: Gfp, order: Order, out: &'a mut [Frame]) -> Folios<'a> {
        let got = self.fill_frames(gfp, order, out);
        self.store().drop_marks(gfp, order, &out[..got]);
        self.frames().folios(order, &out[..got])
    }

    fn fill_frames(&self, gfp: Gfp, order: Order, out: &mut [Frame]) -> usize {
        if out.is_empty() || self.platform().fail_allocation() {
            return 0;
        }
        let pinned = Pinned::new(self.platform());
        let mut got = 0;
        for shares in (1..=self.placement.turns_of(gfp)).rev() {
            let share = (out.len() - got).div_ceil(shares);
            if share == 0 {
                break;
            }
            let taken = self.bulk_in_turn(pinned.cpu(), gfp, order, &mut out[got..got + share]);
            got += taken;
            if taken < share {
                break;
            }
        }
        got
    }

    /// Fills `out` from the zones that serve the request, in their order.
    fn bulk_in_turn(&self, cpu: CpuId, gfp: Gfp, order: Order, out: &mut [Frame]) -> usize {
        let Ok(zones) = self.zones_for(cpu, gfp) else { return 0 };
        let wait = self.platform().context() == Context::Task;
        let mut got = 0;
        for &number in zones.iter() {
            let zone = &self.store().zones[usize::from(number)];
            let before = got;
            while got < out.len() {
                let allowed = (zone.allowance(gfp.urgency, gfp.zone) >> order.get()) as usize;
                let chunk = (out.len() - got).min(allowed).min((BLOCK_FRAMES >> order.get()).max(1));
                let taken = self.frames().interrupts_guarded(|| {
                    self.take_some(zone, cpu, gfp, wait, order, &mut out[got..got + chunk])
                });
                got += taken;
                if taken == 0 {
                    break;
                }
            }
            self.store().count_alloc(cpu, usize::from(number), ((got - before) as u64) << order.get());
            self.count_placed(cpu, gfp, zones, number.into(), ((got - before) as u64) << order.get());
        }
        // Lists may have what the store lacks: the slow path allocates the rest, as far as it can.
        while got < out.len()
            && let Ok(frame) = self.alloc_slow(gfp, order)
        {
            out[got] = frame;
            got += 1;
        }
        got
    }

    /// Fills the empty slots of an array with folios of one order, as far as memory and marks allow. Returns
    /// how many it filled (Linux's `alloc_pages_bulk` counts those that were full as well).
    pub fn fill_bulk(&self, gfp: Gfp, order: Order, slots: &mut [Option<Folio>]) -> usize {
        let mut filled = 0;
        let mut at = 0;
        while at < slots.len() {
            let window = (at..slots.len()).filter(|&slot| slots[slot].is_none()).take(FILL_BATCH);
            let wanted = window.clone().count();
            let mut frames = [Frame(0); FILL_BATCH];
            let mut ready = self.alloc_bulk(gfp, order, &mut frames[..wanted]);
            let got = ready.len();
            while let Some(slot) = slots.get_mut(at) {
                if slot.is_none() {
                    let Some(folio) = ready.next() else { break };
                    *slot = Some(folio);
                }
                at += 1;
            }
            filled += got;
            if got < wanted || wanted == 0 {
                break;
            }
        }
        filled
    }

    /// Frees folios, straight to the store.
    ///
    /// # Errors
    /// The index of the first folio that was refused, and why; those before it are free. It and those after
    /// it stay in use for good, as with [`Self::free`].
    pub fn free_bulk(&self, folios: Folios<'_>) -> Result<(), (usize, FreeError)> {
        self.frames().check_owner(folios.owner).map_err(|error| (0, error))?;
        self.free_frames(folios.order(), folios.into_raw())
    }

    pub(in crate::page_alloc) fn free_frames(
        &self,
        order: Order,
        frames: &[Frame],
    ) -> Result<(), (usize, FreeError)> {
        let pinned = Pinned::new(self.platform());
        let access = self.lists.begin(pinned.cpu());
        let freed = if order >= Order::BLOCK || !access.wait || access.level != Some(0) {
            self.free_each(&access, order, frames)
        } else {
            self.frames().in_store(|| self.free_sorted(&access.lists.sorter, order, frames))
        };
        self.lists.end(&access);
        let count = freed.map_or_else(|(at, _)| at, |()| frames.len());
        self.frames().count(Stat::Pgfree, (count as u64) << order.get());
        freed
    }

    fn free_each(
        &self,
        access: &ListAccess<'_>,
        order: Order,
        frames: &[Frame],
    ) -> Result<(), (usize, FreeError)> {
        frames.iter().enumerate().try_for_each(|(at, &frame)| {
            let freed = if access.wait {
                self.store().store_free(frame, order, Contents::Unknown)
            } else {
                self.lists.free_without_waiting(access.lists, frame, order)
            };
            freed.map_err(|error| (at, error))
        })
    }

    /// Sorts the folios by block, and frees all of a block at once. The caller has the sorter to itself.
    fn free_sorted(
        &self,
        sorter: &[SortEntry],
        order: Order,
        frames: &[Frame],
    ) -> Result<(), (usize, FreeError)> {
        let mut sorting = Sorting::new(sorter);
        let bits = FolioBits::of(order);
        // The block of the frame before, unless that needed a check.
        let mut last: Option<(BlockNumber, &Columns, &BlockWords)> = None;
        for (at, &frame) in frames.iter().enumerate() {
            let (number, index) = (frame.block(), frame.index_in_block());
            let found = match last {
                Some(found) if found.0 == number => Some(found),
                _ => {
                    let columns = self.frames().memmap.get(number).and_then(Block::columns);
                    columns.map(|columns| (number, columns, self.store().sorted_words(&mut sorting, number)))
                }
            };
            if let Some((_, columns, words)) = found
                && let cell = columns.state_cell(index)
                && FrameState::of(cell) == FrameState::in_use(order)
            {
                FrameState::FREE.put(cell);
                self.frames().note_freed(FrameRange::folio(frame, order));
                bits.add_to(words, index);
                last = found;
                continue;
            }
            last = None;
            if let Err(error) = self.check_unsorted(&sorting, frame, order) {
                self.store().sort_out(&mut sorting);
                return Err((at, error));
            }
            self.frames().mark_free(self.frames().memmap.block(number), frame, order, false);
            self.frames().note_freed(FrameRange::folio(frame, order));
            self.store().sort_in(&mut sorting, frame, order);
        }
        self.store().sort_out(&mut sorting);
        Ok(())
    }

    /// The checks of a folio whose state does not say that it needs none.
    #[cold]
    fn check_unsorted(&self, sorting: &Sorting<'_>, frame: Frame, order: Order) -> Result<(), FreeError> {
        let block = self.frames().memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        if sorting.holds(frame) {
            return Err(FreeError::DoubleFree);
        }
        self.frames().check_listable(block, frame, order)
    }
}
