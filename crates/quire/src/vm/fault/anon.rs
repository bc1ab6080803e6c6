//! Faults on anonymous memory where nothing is mapped.

use crate::addr::{Order, PageSize, VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::{EntryFlags, Level};
use crate::clear::Extent;
use crate::error::FaultError;
use crate::limits::FRAME_SIZE;
use crate::page_alloc::{Contents, Folio, Origin};
use crate::pgtable::Lookup;
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::words::Table;
use crate::vm::fault::faults::{Faults, is_vacant_above, mapped};
use crate::vm::fault::flags::{fresh_flags, leaf_flags, new_page_flags};
use crate::vm::fault::step::{Caller, FaultKind, Step};
use crate::vm::gigantic::clear::PieceFaults;
use crate::vm::gigantic::state::{Found, NotBegun, Piece};
use crate::vm::mapping::policy::OrderSet;
use crate::vm::mapping::vma::Vma;

impl<'p, P: Platform> Faults<'_, 'p, P> {
    #[inline(never)]
    pub(super) fn fault_anonymous(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        found: &Lookup,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        // A gigantic folio that is being cleared has no page table until its first piece is mapped.
        let mut forms_here = false;
        if self.memory.gigantic_clears().any() && found.level >= Level::PMD {
            match PieceFaults::of(self.0).find_piece(addr) {
                Found::Nothing => {}
                Found::Done => forms_here = true,
                Found::Busy => return Ok(Step::Again),
                Found::Claimed(piece) => return self.bring_piece(vma, &piece, addr, caller),
            }
        }
        if access != Access::Write {
            return self.map_zero(vma, addr);
        }
        let (policy, allowed) = (self.memory.policy(), self.allowed_orders(vma));
        let large = policy.pmd_mapped && is_vacant_above(found);
        // An empty entry above the level of 2 MiB leaves is 1 GiB without any mapping.
        let vacant = large && !forms_here && found.level >= Level::of_leaf(PageSize::Size1G);
        let mut limit = if vacant { Order::GIGANTIC } else { Order::BLOCK };
        loop {
            let order = self.fitting_order(vma, addr, allowed, limit);
            match self.memory.pages().alloc_maybe_zeroed(self.request_for(vma), order) {
                Ok((mut folio, contents)) => {
                    let stale = contents == Contents::Unknown;
                    let forms = stale && order == Order::GIGANTIC && policy.on_demand;
                    if forms {
                        match PieceFaults::of(self.0).begin_clear(vma, folio, addr) {
                            Ok(piece) => return self.bring_piece(vma, &piece, addr, caller),
                            Err(NotBegun::Again) => return Ok(Step::Again),
                            Err(NotBegun::Full(back)) => folio = back,
                        }
                    }
                    if stale {
                        folio = self.zero_folio(addr, folio, caller)?;
                    }
                    return self.map_folio(vma, addr, folio, found, caller);
                }
                Err(error) => {
                    let Some(below) = order.get().checked_sub(1).and_then(Order::new) else {
                        return Err(error.into());
                    };
                    self.memory.pages().count(Stat::ThpFaultFallback, 1);
                    limit = below;
                }
            }
        }
    }

    /// Maps a new page of zeroes at an empty entry of `table`: what the general way does, for a single frame.
    /// Returns whether it did, and then has counted the fault; `false` when another CPU was faster.
    #[inline(always)]
    pub(super) fn map_new_page(
        self,
        vma: &Vma,
        addr: VirtAddr,
        table: Table<'p>,
    ) -> Result<bool, FaultError> {
        let (pages, start) = (self.memory.pages(), addr.align_down(FRAME_SIZE));
        let (mut folio, contents) = pages.requests().alloc_uncounted(self.request_for(vma), Order::FRAME)?;
        if contents == Contents::Unknown {
            pages.frames().clear_page(&mut folio, TouchHint::Soon);
        }
        let new = (folio.frame(), Origin::new(self.family, vma.attributes.origin_of(start)));
        let flags = new_page_flags(&vma.attributes);
        // SAFETY: invariant 1: the folio's value is given up once it is mapped.
        match unsafe { self.tables().map_page(table, start, new, flags) } {
            Ok(()) => {
                // The leaf owns it.
                let _ = folio.into_raw();
                self.add_new_page(contents);
                Ok(true)
            }
            Err(error) => {
                pages.store().count_known(contents, Order::FRAME);
                self.memory.give_up_zeroed(folio);
                mapped(Err(error))
            }
        }
    }

    /// The largest allowed order whose aligned extent lies in the mapping with nothing mapped in it.
    fn fitting_order(self, vma: &Vma, addr: VirtAddr, allowed: OrderSet, mut limit: Order) -> Order {
        loop {
            let order = allowed.largest_up_to(limit).unwrap_or(Order::FRAME);
            if order == Order::FRAME {
                return order;
            }
            let start = addr.align_down(order.bytes());
            let inside = start >= vma.range.start && vma.range.end.0 - start.0 >= order.bytes();
            if inside && self.tables().is_empty(VirtRange::from_len(start, order.bytes())) {
                return order;
            }
            limit = Order::new(order.get() - 1).unwrap_or(Order::FRAME);
        }
    }

    /// Clears a folio that was just allocated; frees it again if the task is killed meanwhile.
    fn zero_folio(self, addr: VirtAddr, mut folio: Folio, caller: Caller) -> Result<Folio, FaultError> {
        let pages = self.memory.pages();
        let (frames, order) = (folio.frames(), folio.order());
        if order == Order::FRAME {
            pages.frames().clear(&mut folio, TouchHint::Soon);
            return Ok(folio);
        }
        let extent = match caller {
            Caller::Access => {
                let touched = (addr.0 - addr.align_down(order.bytes()).0) / FRAME_SIZE;
                Extent::new(frames, TouchHint::Soon).near(folio.frame().add(touched))
            }
            Caller::Populate { bytes } => Extent::new(frames, TouchHint::Unknown).part_of(bytes),
        };
        match pages.store().clear_stale(&mut folio, &extent) {
            Ok(()) => Ok(folio),
            Err(cancelled) => {
                self.memory.give_up(folio);
                Err(cancelled.into())
            }
        }
    }

    /// Maps a folio of zeroes; frees it again if another CPU was faster.
    fn map_folio(
        self,
        vma: &Vma,
        addr: VirtAddr,
        folio: Folio,
        found: &Lookup,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        let (pages, frames) = (self.memory.pages(), folio.frames());
        let (frame, order) = (folio.frame(), folio.order());
        let start = addr.align_down(order.bytes());
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        let origin = Origin::new(self.family, vma.attributes.origin_of(start));
        if let Err(error) = pages.set_origin(frames, origin) {
            self.memory.give_up_zeroed(folio);
            return Err(error.into());
        }
        let mut done = Ok(false);
        let large = order >= Order::BLOCK && self.memory.policy().pmd_mapped && is_vacant_above(found);
        if let Some(size) = PageSize::of_order(order).filter(|_| large) {
            let flags = fresh_flags(&vma.attributes, caller);
            // SAFETY: invariant 1: the folio's value is given up once it is mapped.
            done = mapped(unsafe { self.tables().map_large(start, frame, size, flags) });
        }
        if done == Ok(false) && order <= Order::BLOCK {
            // SAFETY: invariant 1: the folio's value is given up once it is mapped.
            done = mapped(unsafe { self.tables().map(start, frames, flags) });
        }
        if done != Ok(true) {
            self.memory.give_up_zeroed(folio);
            return done.map(|_| Step::Again);
        }
        // The leaves own it.
        let _ = folio.into_raw();
        self.add_anon(order.frames() as i64);
        if order == Order::BLOCK {
            pages.count(Stat::ThpFaultAlloc, 1);
        }
        if order >= Order::BLOCK && pages.frames().has_bad(frame) {
            return Ok(Step::Marked(frames));
        }
        Ok(Step::done(order, FaultKind::Anon))
    }

    fn bring_piece(
        self,
        vma: &Vma,
        piece: &Piece,
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        Ok(match PieceFaults::of(self.0).clear_and_map(vma, piece, addr, caller)? {
            (_, Some(cleared)) => Step::Cleared(cleared),
            (true, None) => Step::done(Order::BLOCK, FaultKind::Anon),
            (false, None) => Step::Again,
        })
    }

    /// Maps the shared zero frame for reading. It has no map count, so it can be mapped any number of times.
    fn map_zero(self, vma: &Vma, addr: VirtAddr) -> Result<Step, FaultError> {
        let page = addr.align_down(PageSize::Size4K.bytes());
        let flags = leaf_flags(&vma.attributes, false);
        // SAFETY: invariant 1: the zero frame is held as long as the machine runs.
        let done = mapped(unsafe { self.tables().map_special(page, self.memory.zero_frame(), flags) })?;
        Ok(if done { Step::done(Order::FRAME, FaultKind::AnonZero) } else { Step::Again })
    }
}
