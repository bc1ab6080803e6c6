//! Moves pages of pools of huge pages that are in use, wherever they are mapped.
//!
//! # Protocol
//!
//! *Private pages.* The page and the one that replaces it are marked as moving. Until the end neither returns to
//! the pool, whatever is unmapped, and no leaf of either gains the right to store. So a leaf that has the right
//! is its page's only one. A verb that renews the reservation of a page that it unmaps counts on other pages
//! while the page moves: a leaf may be the only one of its page while others map the copy. As for other private
//! memory, each address space of the family is visited once under its lock for writing; the contents are copied
//! while the first leaf is busy, and later leaves map the same copy. A fault that would have given the right
//! tries again.
//!
//! *Pages of files.* The file is closed, so no task maps or uses a page of it. All leaves of the page are unmapped, it
//! is copied, and the new page takes its place in the file. Faults map the new page. A page does not move
//! while it is mapped by a mapping that is registered with a handler of faults, or by one that may map parts:
//! only the page table says which parts exist, and a handler that is registered later counts on it.

use core::ops::Range;

use crate::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::error::MigrateError;
use crate::filemap::FileNode;
use crate::hugetlb::HugeSize;
use crate::page_alloc::{NodePolicy, Origin};
use crate::pgtable::{PageTables, Relocation, Zap};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::migrate::relocate::STRETCH;
use crate::vm::rmap::reverse::{FoundSpace, ReverseMap, place_in};
use crate::vm::space::found::FoundBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;

/// What is to become of a page of a pool.
#[derive(Clone, Copy)]
pub(in crate::vm) struct HugeMove {
    /// The nodes of the page that replaces it.
    pub(in crate::vm) nodes: NodePolicy,
    /// A free page of the pool may replace it. The pool keeps the old page then.
    pub(in crate::vm) pooled: bool,
    /// A frame of it that must not be used again.
    pub(in crate::vm) bad: Option<Frame>,
}

handle! { HugeMigration of MmShared }

impl<P: Platform> HugeMigration<'_, '_, P> {
    /// The page of a pool around a frame.
    pub(in crate::vm) fn page_at(self, frame: Frame) -> Option<(Frame, HugeSize)> {
        let head = |size: HugeSize| (Frame(frame.0 & !(size.order().frames() - 1)), size);
        let mut heads = HugeSize::ALL.into_iter().map(head);
        heads.find(|&(head, size)| self.pages().frames().is_huge(head, size.order()))
    }

    /// Moves a page of a pool out of its frames, or replaces it if it is free. The caller holds no lock.
    ///
    /// # Errors
    /// [`MigrateError`]; the page is as before then, but leaves of a file's page may be missing until the next access.
    pub(in crate::vm) fn move_page(
        self,
        (head, size): (Frame, HugeSize),
        how: HugeMove,
    ) -> Result<u64, MigrateError> {
        let pages = self.pages();
        PoolClears::of(self.0).complete_around(head);
        self.huge().take_returned(pages);
        if self.huge().replace_free(pages, size, head, how.bad).map_err(|_| MigrateError::OutOfMemory)? {
            return Ok(size.order().frames());
        }
        let moved = match pages.frames().begin_huge_move(head) {
            true => self.move_private(head, size, how),
            false if pages.frames().has_bad(head) => Err(MigrateError::NotMovable),
            false => self.move_of_file(head, size, how),
        };
        let stat = if moved.is_ok() { Stat::PgmigrateSuccess } else { Stat::PgmigrateFail };
        pages.count(stat, size.order().frames());
        moved.map(|()| size.order().frames())
    }

    /// Moves a page that leaves alone own, and that is marked as moving.
    fn move_private(self, old: Frame, size: HugeSize, how: HugeMove) -> Result<(), MigrateError> {
        let pages = self.pages();
        let target = match pages.frames().origin(old) {
            Some(origin) if !pages.frames().has_bad(old) => {
                let taken = self.huge().take_replacement(pages, size, how.nodes, how.pooled);
                taken.map(|new| (new, origin)).map_err(|_| MigrateError::OutOfMemory)
            }
            _ => Err(MigrateError::NotMovable),
        };
        let (new, origin) = match target {
            Ok(target) => target,
            Err(error) => {
                if pages.frames().end_huge_move(old) {
                    // SAFETY: invariant 1: the last leaf of the page went while it was marked as moving.
                    unsafe { self.huge().give_unmapped(pages, size, old) };
                }
                return Err(error);
            }
        };
        pages.frames().forget_huge_zeroes(new.frame, size.order());
        pages.frames().set_whole_origin(new.frame, origin);
        pages.frames().lend_huge_moving(old, new.frame);
        let mut copied = false;
        self.visit_family(old, origin, |tables, space_addr, leaf| {
            let mut gather = MmuGather::new(pages, tables.context());
            let mut one = [Some(Relocation::new(space_addr, leaf, new.frame))];
            // SAFETY: invariant 1: the pool gave the new page for this move.
            let done = unsafe {
                tables.relocate(&mut one, size.leaf(), &mut gather, |_| {
                    if !core::mem::replace(&mut copied, true) {
                        self.copy_page(old, new.frame, size);
                    }
                })
            };
            // Resident memory is unchanged, so the result is dropped.
            gather.finish();
            debug_assert!(done.is_ok(), "leaves of whole pages are counted in their record");
        });
        self.huge().offer_alike(pages, [old, new.frame]);
        let unused = pages.frames().end_huge_move(new.frame);
        if unused && pages.frames().take_renewed(new.frame) {
            // The leaf that went last had come from the old page, which now serves the reservation when it goes back.
            pages.frames().renew_huge(old);
        }
        if !pages.frames().end_huge_move(old) {
            // A leaf is left that no visit found. The new page serves those that were.
            if unused {
                // SAFETY: invariant 1: no leaf maps the new page, which was lent to none.
                unsafe { self.huge().drop_replacement(pages, size, new) };
            } else {
                self.huge().charge_copy(pages, size, new);
            }
            return Err(MigrateError::Busy);
        }
        if unused {
            // Every leaf of both went meanwhile.
            // SAFETY: invariant 1: no leaf maps either page, and the move has both.
            unsafe {
                self.huge().drop_replacement(pages, size, new);
                self.huge().give_unmapped(pages, size, old);
            }
            return Err(MigrateError::NotMovable);
        }
        how.bad.inspect(|&bad| _ = pages.condemn(bad));
        // SAFETY: invariant 1: no leaf maps the old page any more, and the move has it.
        unsafe { self.huge().give_replaced(pages, size, old, &new) };
        Ok(())
    }

    /// Shows each leaf that maps a private page, with its address, under its address space's lock for writing.
    fn visit_family(
        self,
        page: Frame,
        origin: Origin,
        mut show: impl FnMut(&PageTables<'_, '_, P>, VirtAddr, Entry),
    ) {
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, origin.family(), after) {
            after = body.mapper.number();
            let space = body.space.write(self.platform());
            let tables = body.tables(self.pages());
            if let Some(addr) = place_in(&space, &tables, page, origin.addr()) {
                show(&tables, addr, tables.lookup(addr).entry);
            }
        }
    }

    /// Moves a page that a file has.
    fn move_of_file(self, old: Frame, size: HugeSize, how: HugeMove) -> Result<(), MigrateError> {
        let mut place = (0, 0);
        while let Some((file, next)) = self.files().next_of_all(self.platform(), place) {
            place = next;
            let has = file.node().huge_order() == Some(size.order());
            let index =
                if has { self.files().find_huge_page(self.platform(), file.node(), old) } else { None };
            let moved = index.map(|index| self.move_in_file(file.node(), (old, size, index), how));
            self.close(file);
            if let Some(moved) = moved {
                return moved;
            }
            self.platform().reschedule_point();
        }
        Err(MigrateError::NotMovable)
    }

    fn move_in_file(
        self,
        file: &FileNode,
        (old, size, index): (Frame, HugeSize, u64),
        how: HugeMove,
    ) -> Result<(), MigrateError> {
        let pages = self.pages();
        let taken = self.huge().take_replacement(pages, size, how.nodes, how.pooled);
        let new = taken.map_err(|_| MigrateError::OutOfMemory)?;
        pages.frames().forget_huge_zeroes(new.frame, size.order());
        let right = file.resize(self.platform());
        let closed = file.close(self.platform());
        let shown = index * size.order().frames()..(index + 1) * size.order().frames();
        let moved = if self.files().find_huge_page(self.platform(), file, old) != Some(index) {
            Err(MigrateError::NotMovable)
        } else if FileClears::of(self.0).is_in_pieces(old) || !self.unmap_everywhere(file, &shown) {
            Err(MigrateError::Busy)
        } else {
            pages.frames().wait_until_uncounted(old, size.order(), file.allows_parts());
            self.copy_page(old, new.frame, size);
            pages.frames().copy_huge_note(old, new.frame);
            self.files().exchange_huge_page(self.platform(), file, index, new.frame);
            Ok(())
        };
        drop((closed, right));
        // SAFETY: invariant 1: the file has one of the pages, which no leaf maps yet, and the move has the other.
        unsafe {
            match moved {
                Ok(()) => {
                    how.bad.inspect(|&bad| _ = pages.condemn(bad));
                    self.huge().give_replaced(pages, size, old, &new);
                }
                Err(_) => self.huge().drop_replacement(pages, size, new),
            }
        }
        moved
    }

    /// Unmaps these pages of a closed file, and leaves private ones. Returns `false` if a mapping must keep
    /// its leaves. Those that are gone then come back by faults.
    fn unmap_everywhere(self, file: &FileNode, shown: &Range<u64>) -> bool {
        let mut all = true;
        ReverseMap::of(self.0).each_mapper(file, shown, |found| {
            // Under the lock under which they are unmapped: no handler is registered in between.
            found.each_part(shown, |vma, range| all &= !keeps_leaves(found, vma, range));
            if all {
                self.unmap_in(found, shown);
            }
        });
        all
    }

    fn unmap_in(self, found: &FoundSpace<'_, '_, P>, shown: &Range<u64>) {
        let mut gather = MmuGather::new(self.pages(), &found.body.context);
        found.each_part(shown, |_, range| {
            found.tables().runs(range, |run| {
                if run.first.has(EntryFlags::ANON) || run.first.has(EntryFlags::SPECIAL) {
                    return;
                }
                let leaves = VirtRange::from_len(run.addr, run.count * run.size.bytes());
                let done = found.tables().unmap(&Zap::leaves(leaves.intersect(range)), &mut gather);
                debug_assert_eq!(done, Ok(()), "huge pages are mapped whole, or in parts of their own");
                // The walk waits for entries that other tasks replace.
                gather.finish_busy();
            });
        });
        found.body.add_rss(self.pages(), gather.finish(), Counted::Huge);
    }

    /// Copies a page whose contents no task can change, with reschedule points.
    fn copy_page(self, old: Frame, new: Frame, size: HugeSize) {
        let (frames, bytes) = (self.pages().frames(), size.bytes());
        let copier = frames.clearer().copier(self.platform(), bytes, TouchHint::Unknown);
        for at in (0..size.order().frames()).step_by(STRETCH) {
            let part = FrameRange::new(old.add(at), STRETCH as u64);
            // SAFETY: invariant 1: the pool gave the new page for this move, and no leaf maps it yet.
            unsafe { copier.copy(part, new.add(at)) };
            self.platform().reschedule_point();
        }
    }
}

/// Whether what a mapping maps in the range must stay mapped: a handler of faults counts on it, now or later.
fn keeps_leaves<P: Platform>(found: &FoundSpace<'_, '_, P>, vma: &Vma, range: VirtRange) -> bool {
    let mut any = vma.attributes.handler.is_some();
    if vma.attributes.flags.contains(VmaFlags::SPLIT) {
        found.tables().runs(range, |_| any = true);
    }
    any
}
