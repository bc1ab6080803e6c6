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
//! *Pages of files.* The file is closed, so no task uses a page of it, maps one, or gains the right to store
//! to one ([`AddressSpace::protect_leaves`](crate::vm::space::address_space::AddressSpace) looks, too). Each
//! address space is visited twice under its lock:
//!
//! 1. Every leaf of the page loses the right to store, and all CPUs are flushed. From here on the contents
//!    stay, so the page is copied, and the new page takes its place in the file. Programs still read the old
//!    one.
//! 2. Every leaf gets the frames of the new page that stand where its own do, and keeps its size and marks.
//!    The first store faults, and gets the right back once the file is open.
//!
//! So a leaf is there at any time, whole page or part: only the page table says which parts of a page exist
//! (`MADV_SPLIT`), and a handler of faults is told of no fault that it would not have seen. Between the
//! visits the leaves may be unmapped, moved, split, collapsed or copied by `fork`; the second visit takes
//! what it finds.
//!
//! Memory of the new page that goes bad before the second visit has no leaf to lose yet: it is handled after
//! that visit, before the file is opened.
//!
//! Leaves of 4 KiB need memory for their counts. It is *pinned* before the first visit by a count for each
//! frame of the new page, and made as large as the old page's. `MADV_SPLIT` waits until the file is open, so
//! no page gets its first parts meanwhile. So the second visit needs memory only if `fork` gives a frame more
//! than a hundred leaves between the visits; those for which there is no memory are unmapped then.

use core::ops::Range;

use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::error::{AllocError, MigrateError};
use crate::filemap::FileNode;
use crate::hugetlb::{HugeSize, OtherPage};
use crate::limits::{BLOCK_FRAMES, MOVE_LEAVES};
use crate::page_alloc::{CountError, NodePolicy, Origin};
use crate::pgtable::{PageTables, Relocation, Zap};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::{FlushBatch, MmuGather};
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::memory_failure::lose::MemoryLoss;
use crate::vm::migrate::relocate::STRETCH;
use crate::vm::rmap::reverse::{FoundSpace, ReverseMap, place_in};
use crate::vm::space::found::FoundBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;

/// Leaves of a frame from which on its count may need wide lanes before the end of a move: a byte counts 255.
const MANY_LEAVES: u32 = 128;

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

/// Leaves of one size that get other frames with one flush.
struct Batch {
    leaves: [Option<Relocation>; MOVE_LEAVES],
    count: usize,
    size: PageSize,
}

handle! { HugeMigration of MmShared }

impl<'p, P: Platform> HugeMigration<'_, 'p, P> {
    /// The page of a pool around a frame.
    pub(in crate::vm) fn page_at(self, frame: Frame) -> Option<(Frame, HugeSize)> {
        let head = |size: HugeSize| (Frame(frame.0 & !(size.order().frames() - 1)), size);
        let mut heads = HugeSize::ALL.into_iter().map(head);
        heads.find(|&(head, size)| self.pages().frames().is_huge(head, size.order()))
    }

    /// Moves a page of a pool out of its frames, or replaces it if it is free. The caller holds no lock.
    ///
    /// # Errors
    /// [`MigrateError`]; the page is as before then.
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
        let moved = match pages.frames().begin_huge_move(head, size.order()) {
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
        self.end_private((old, size), new, how)
    }

    /// Ends the move of a private page, whose leaves map the new page now.
    fn end_private(
        self,
        (old, size): (Frame, HugeSize),
        new: OtherPage,
        how: HugeMove,
    ) -> Result<(), MigrateError> {
        let pages = self.pages();
        self.huge().count_moved(pages, size, [old, new.frame], &new);
        let unused = pages.frames().end_huge_move(new.frame);
        if unused && pages.frames().take_renewed(new.frame) {
            // The leaf that went last had come from the old page, which now serves the reservation when it goes back.
            pages.frames().renew_huge(old);
        }
        if !pages.frames().end_huge_move_if_unmapped(old) {
            // A leaf is left that no visit found. The new page serves those that were.
            if unused {
                self.huge().count_moved(pages, size, [new.frame, old], &new);
                // SAFETY: invariant 1: no leaf maps the new page, which was lent to none.
                unsafe { self.huge().drop_replacement(pages, size, new) };
            } else {
                self.huge().charge_replaced(pages, size, old, &new);
            }
            // Only now: the pool counts the page, so its leaves may give it back.
            if pages.frames().end_huge_move(old) {
                // SAFETY: invariant 1: the last leaf of the page went while it was marked as moving.
                unsafe { self.huge().give_unmapped(pages, size, old) };
            }
            return Err(MigrateError::Busy);
        }
        if unused {
            // Every leaf of both went meanwhile.
            self.huge().count_moved(pages, size, [new.frame, old], &new);
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
        } else if FileClears::of(self.0).is_in_pieces(old) {
            Err(MigrateError::Busy)
        } else {
            self.pin_counts(file, (old, new.frame), size).map(|pinned| {
                self.forbid_stores(file, &shown);
                self.copy_page(old, new.frame, size);
                pages.frames().copy_huge_note(old, new.frame);
                self.huge().count_moved(pages, size, [old, new.frame], &new);
                self.files().exchange_huge_page(self.platform(), file, index, new.frame);
                ReverseMap::of(self.0).each_mapper_alone(file, &shown, |found| {
                    self.relocate_in(found, &shown, (old, new.frame));
                });
                MemoryLoss::of(self.0).unmap_lost_parts(new.frame, size);
                self.unpin_counts(pinned);
                pages.frames().wait_until_uncounted(old, size.order(), file.may_have_small_leaves());
            })
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

    /// Takes the right to store from all leaves of these pages of a closed file. Private mappings show them
    /// without it.
    fn forbid_stores(self, file: &FileNode, shown: &Range<u64>) {
        ReverseMap::of(self.0).each_mapper_alone(file, shown, |found| {
            let mut owed = FlushBatch::new();
            found.each_part(shown, |vma, range| {
                if !vma.attributes.is_private() {
                    let done = found.tables().forbid_stores(range, &mut owed);
                    debug_assert_eq!(done, Ok(()), "no leaf reaches over an end");
                }
            });
            owed.flush(self.pages(), &found.body.context);
        });
    }

    /// Gives each leaf of the page the same part of the new page. Leaves private pages, and what a child has
    /// copied from a parent that was visited before.
    fn relocate_in(self, found: &FoundSpace<'_, 'p, P>, shown: &Range<u64>, (old, new): (Frame, Frame)) {
        found.each_part(shown, |_, range| {
            let mut batch = Batch { leaves: [None; MOVE_LEAVES], count: 0, size: PageSize::Size4K };
            found.tables().runs(range, |run| {
                let of_page = FrameRange::new(old, range.pages()).contains(run.first.frame());
                if !of_page || run.first.has(EntryFlags::ANON) || run.first.has(EntryFlags::SPECIAL) {
                    return;
                }
                for at in 0..run.count {
                    if batch.count == MOVE_LEAVES || batch.size != run.size {
                        self.relocate_leaves(found, &mut batch);
                        batch.size = run.size;
                    }
                    let frame = run.first.frame().add(at * run.size.frames());
                    let entry = Entry::leaf(frame, run.size, run.first.flags());
                    let addr = run.addr.add(at * run.size.bytes());
                    batch.leaves[batch.count] = Some(Relocation::new(addr, entry, new.add(frame.0 - old.0)));
                    batch.count += 1;
                }
            });
            self.relocate_leaves(found, &mut batch);
        });
    }

    /// Relocates a batch with one flush, and empties it. Ends with a reschedule point.
    fn relocate_leaves(self, found: &FoundSpace<'_, 'p, P>, batch: &mut Batch) {
        let (leaves, size) = (&mut batch.leaves[..core::mem::take(&mut batch.count)], batch.size);
        if leaves.is_empty() {
            return;
        }
        let mut gather = MmuGather::new(self.pages(), &found.body.context);
        // SAFETY: invariants 1 and F4: the file has the new page, and is closed.
        let done = unsafe { found.tables().relocate(leaves, size, &mut gather, |_| {}) };
        // Resident memory is unchanged, so the result is dropped.
        gather.finish();
        if done.is_ok() {
            return self.platform().reschedule_point();
        }
        // `fork` has made so many leaves since that their counts need more than was pinned, and there is no
        // memory.
        for leaf in leaves.iter().flatten().filter(|leaf| !leaf.is_taken()) {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            let gone =
                found.tables().unmap(&Zap::leaves(VirtRange::from_len(leaf.addr, size.bytes())), &mut gather);
            debug_assert_eq!(gone, Ok(()), "the ends of a leaf");
            found.body.add_rss(self.pages(), gather.finish(), Counted::Huge);
        }
        self.platform().reschedule_point();
    }

    /// Pins memory to count leaves of 4 KiB of each frame of a page, if the file's pages may be mapped in
    /// parts: counts each frame once, and most twice, so that the counts of a block have room for many. Where
    /// the old page has many, they have room for any number.
    fn pin_counts(
        self,
        file: &FileNode,
        (old, new): (Frame, Frame),
        size: HugeSize,
    ) -> Result<impl Iterator<Item = FrameRange> + use<P>, MigrateError> {
        let frames = if file.allows_parts() { size.order().frames() } else { 0 };
        let pins = move |frames| {
            (0..frames).step_by(BLOCK_FRAMES).flat_map(move |block| {
                [0, 1].map(|from| FrameRange::new(new.add(block + from), BLOCK_FRAMES as u64 - 1))
            })
        };
        for (done, pin) in pins(frames).enumerate() {
            let counted = self.count_pin(pin);
            let kept = done + usize::from(counted.is_ok());
            if counted.and_then(|()| self.widen_like(pin, old.add(pin.start.0 - new.0))).is_err() {
                self.unpin_counts(pins(frames).take(kept));
                return Err(MigrateError::OutOfMemory);
            }
        }
        Ok(pins(frames))
    }

    fn count_pin(self, pin: FrameRange) -> Result<(), AllocError> {
        loop {
            match self.pages().counts().counter().map(pin) {
                Ok(()) => return Ok(()),
                Err(CountError::Prepare { at, .. }) => self.pages().counts().prepare_counts(at)?,
            }
        }
    }

    /// Makes room for any number of leaves in the counts of a block that has both its pins, if there are many
    /// in the block that it replaces.
    fn widen_like(self, pin: FrameRange, old: Frame) -> Result<(), AllocError> {
        let (counts, last) = (self.pages().counts(), pin.start.index_in_block() == 1);
        if last && counts.most_small_leaves(old) >= MANY_LEAVES {
            counts.widen_counts(pin.start)?;
        }
        Ok(())
    }

    fn unpin_counts(self, pinned: impl Iterator<Item = FrameRange>) {
        for pin in pinned {
            // SAFETY: invariants 1 and 5: `pin_counts` counted these frames of a page that the move or the
            // file has.
            unsafe { self.pages().counts().counter().unmap(pin) };
        }
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
