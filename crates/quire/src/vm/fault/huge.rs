//! Faults on mappings of huge pages.

use super::cow::STORED;
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::{Entry, EntryFlags, Level};
use crate::clear::Extent;
use crate::error::{Cancelled, FaultError};
use crate::filemap::{FileUse, HugePage};
use crate::hugetlb::{Claim, HugeSize, object_of};
use crate::limits::{BLOCK_SIZE, FRAME_SHIFT, FRAME_SIZE};
use crate::page_alloc::{NodePolicy, Origin, PageAllocator};
use crate::pgtable::Lookup;
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::fault::faults::{Faults, mapped};
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::{Caller, FaultKind, Step};
use crate::vm::gigantic::file::FileFaults;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::hugetlb::file::HugeFiles;
use crate::vm::hugetlb::parts::{HugePart, HugeParts};
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::memory_failure::lose::MemoryLoss;
use crate::vm::space::rss::Counted;

/// Walks of a family that find no leaf of a page, though it has several, before a store is refused.
const TAKE_BACK_WALKS: usize = 4;

/// A private huge page that is not mapped yet.
pub(in crate::vm) struct Own {
    pub(in crate::vm) frame: Frame,
    /// The pool had reserved it to the mapping.
    pub(in crate::vm) reserved: bool,
    /// All of it is zero, until it is mapped.
    zeroed: bool,
}

/// A claimed place for a huge page: no other task fills it, and the file drops no page meanwhile.
pub(in crate::vm) struct HugePlace<'a> {
    pub(in crate::vm) size: HugeSize,
    pub(in crate::vm) start: VirtAddr,
    /// The huge page's number in its file.
    pub(in crate::vm) index: u64,
    pub(in crate::vm) file: FileUse<'a>,
    _claim: Claim<'a>,
}

impl<'a, P: Platform> Faults<'a, '_, P> {
    #[inline(never)]
    pub(super) fn fault_huge(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        if let Some(step) = PoolFaults::of(self.0).bring(vma, addr, caller) {
            return step;
        }
        let Some(place) = self.place_of(vma, addr) else { return Ok(Step::Again) };
        if !self.tables().lookup(addr).entry.is_empty() {
            return Ok(Step::Again);
        }
        let (memory, node) = (self.memory, place.file.node());
        let beyond = place.index * place.size.bytes() >= node.size(memory.platform());
        if beyond || node.is_cut_off(place.index * place.size.order().frames()) {
            return Err(FaultError::BeyondEnd);
        }
        let private = vma.attributes.is_private();
        let there = memory.files().huge_page(memory.platform(), node, place.index);
        if let Some(HugePage::Present { frame, .. }) = there {
            if self.is_lost(vma, &place, frame, addr) {
                return Err(FaultError::Poisoned);
            }
            if let Some(step) = FileFaults::of(self.0).bring(vma, (frame, addr), caller) {
                return step;
            }
        }
        match there {
            Some(HugePage::Present { frame, .. }) if private && access == Access::Write => {
                self.map_copy(vma, &place, frame)
            }
            Some(HugePage::Present { frame, .. }) => self.map_part_of_file(vma, &place, frame, addr),
            there => {
                let begins = caller == Caller::Access && PoolFaults::of(self.0).may_begin(vma, place.size);
                let first =
                    if begins { None } else { self.clear_first(vma, &place, there.is_some(), caller) };
                match first {
                    Some(step) => Ok(step),
                    None if private => self.map_zeroes(vma, &place, addr, caller),
                    None => {
                        let extent = |frame| extent_of(place.size, frame, addr, caller);
                        let frame = self.fill_file(vma, &place, (there.is_some(), begins), extent)?;
                        let piece = FileFaults::of(self.0).bring(vma, (frame, addr), caller);
                        piece.unwrap_or_else(|| self.map_part_of_file(vma, &place, frame, addr))
                    }
                }
            }
        }
    }

    /// Asks for a page to be cleared in its pool before one is taken for this place, which the file may have
    /// `reserved`, if that is needed. If another task takes the page afterwards, the next one is cleared
    /// likewise. A page that the pool must allocate is cleared by its taker.
    pub(in crate::vm) fn clear_first(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        reserved: bool,
        caller: Caller,
    ) -> Option<Step> {
        let private = vma.attributes.is_private();
        let reserved = if private { vma.attributes.flags.contains(VmaFlags::RESERVED) } else { reserved };
        let request = Reservations::of(self.0).request(&vma.attributes, reserved, place.index);
        let stale = self.memory.huge().is_next_stale(self.memory.pages(), place.size, &request);
        let nodes = (request.nodes, request.turn);
        stale.then_some(Step::ClearHuge { size: place.size, nodes, caller })
    }

    /// Clears a page in its pool for an address. The caller holds no lock.
    ///
    /// # Errors
    /// [`FaultError::Dying`].
    pub(in crate::vm) fn clear_huge(
        self,
        (size, nodes): (HugeSize, (NodePolicy, u64)),
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<(), FaultError> {
        let last = (addr.0 % size.bytes() / BLOCK_SIZE) as u32;
        let near = (last, |frame| extent_of(size, frame, addr, caller));
        Ok(self.memory.huge().clear_next(self.memory.pages(), size, nodes, near)?)
    }

    #[inline(never)]
    pub(super) fn fault_protected_huge(
        self,
        vma: &Vma,
        addr: VirtAddr,
        found: &Lookup,
    ) -> Result<Step, FaultError> {
        let Some(place) = self.place_of(vma, addr) else { return Ok(Step::Again) };
        let Some(leaf_size) = found.leaf_size() else { return Ok(Step::Again) };
        let (pages, size, leaf) = (self.memory.pages(), place.size, found.entry);
        let own = leaf.has(EntryFlags::ANON);
        // In this order: a move marks the page before it counts down its leaves, one of which this count may
        // miss. And it comes to this leaf after this task has released its lock.
        let alone = own && pages.counts().mapcount(leaf.frame()) == 1;
        if own && pages.frames().is_huge_moving(leaf.frame()) {
            return Ok(Step::Again);
        }
        if !vma.attributes.is_private() || alone {
            if !self.tables().upgrade(addr.align_down(leaf_size.bytes()), leaf_size, leaf, STORED) {
                return Ok(Step::Again);
            }
            pages.count(Stat::CowReuse, 1);
            return Ok(Step::done(leaf_size.order(), FaultKind::Reuse));
        }
        let copy =
            match self.own_page(vma, &place, !own, |frame| copy_page(pages, &place, leaf.frame(), frame)) {
                Err(FaultError::NoHugePage) if own && vma.attributes.flags.contains(VmaFlags::RESERVED) => {
                    return Ok(Step::TakeBack(leaf.frame()));
                }
                copy => copy?,
            };
        let new =
            Entry::leaf(copy.frame, size.leaf(), leaf_flags(&vma.attributes, true).union(EntryFlags::ANON));
        let mut gather = MmuGather::new(pages, self.context());
        // SAFETY: invariant 1: the pool has given the page for this place.
        let replaced = unsafe { self.tables().replace(place.start, size.leaf(), leaf, new, &mut gather) };
        self.add_rss(gather.finish(), Counted::Huge);
        self.memory.huge().take_returned(pages);
        if replaced != Ok(true) {
            self.give_up_own(size, &copy);
            return replaced.map(|_| Step::Again).map_err(|_| FaultError::OutOfMemory);
        }
        self.count_huge(size);
        pages.count(Stat::CowCopy, 1);
        Ok(Step::done(size.order(), FaultKind::Cow))
    }

    /// Takes a page that was reserved to this address space from the children with which it shares the page
    /// since `fork`: a reservation guarantees its owner's stores. A child that touches the page later is told
    /// that it is lost. The caller holds no lock. (Linux: `unmap_ref_private`.)
    pub(in crate::vm) fn take_back(self, frame: Frame) -> Result<(), FaultError> {
        let own = self.mapper.number();
        // A child may end before a walk of the family comes to it, and another one be born behind the walk's
        // end.
        let freed = (0..TAKE_BACK_WALKS).any(|_| {
            let taken = MemoryLoss::of(self.memory).take_huge_from(frame, |number| number != own);
            taken > 0 || self.memory.pages().counts().mapcount(frame) <= 1
        });
        if freed { Ok(()) } else { Err(FaultError::NoHugePage) }
    }

    /// Claims the place around an address; `None` while another task holds it, or the file is closed.
    pub(in crate::vm) fn place_of<'v>(self, vma: &'v Vma, addr: VirtAddr) -> Option<HugePlace<'v>>
    where
        'a: 'v,
    {
        let Backing::File { file, .. } = &vma.attributes.backing else { return None };
        let (node, size) = (file.node(), vma.attributes.huge_size()?);
        let start = addr.align_down(size.bytes());
        let index = vma.file_page(start)? / size.order().frames();
        let used = node.enter()?;
        let (object, number) = if vma.attributes.is_private() {
            (self.mapper.number(), start.0 / size.bytes())
        } else {
            (object_of(node), index)
        };
        let claim = self.0.memory.huge().claim(object, number)?;
        Some(HugePlace { size, start, index, file: used, _claim: claim })
    }

    /// Allocates a private page and fills it. `first`: the address space has none for this place yet.
    pub(in crate::vm) fn own_page(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        first: bool,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<Own, FaultError> {
        let own = self.take_own(vma, place, first)?;
        self.fill_own(place.size, own, fill)
    }

    /// Takes a private page, which is not zero, from its pool.
    fn take_own(self, vma: &Vma, place: &HugePlace<'_>, first: bool) -> Result<Own, FaultError> {
        let reserved = first && vma.attributes.flags.contains(VmaFlags::RESERVED);
        let request = Reservations::of(self.0).request(&vma.attributes, reserved, place.index);
        let pages = self.memory.pages();
        let taken = self.memory.huge().take_for(pages, place.size, request);
        let frame = taken.map_err(|_| FaultError::NoHugePage)?;
        pages
            .frames()
            .set_whole_origin(frame, Origin::new(self.family, vma.attributes.origin_of(place.start)));
        Ok(Own { frame, reserved, zeroed: false })
    }

    /// Fills a page that was taken, for leaves that will own it.
    fn fill_own(
        self,
        size: HugeSize,
        mut own: Own,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<Own, FaultError> {
        let frames = self.memory.pages().frames();
        frames.lend_huge(own.frame);
        match fill(own.frame) {
            Ok(()) => {
                own.zeroed = frames.is_huge_zero(own.frame, size.order());
                frames.forget_huge_zeroes(own.frame, size.order());
                Ok(own)
            }
            Err(cancelled) => {
                self.give_up_own(size, &own);
                Err(cancelled.into())
            }
        }
    }

    /// Returns a page that was not needed to its pool.
    pub(in crate::vm) fn give_up_own(self, size: HugeSize, own: &Own) {
        self.memory.pages().frames().unlend_huge(own.frame);
        if own.zeroed {
            self.memory.pages().frames().note_all_huge_zero(own.frame, size.order());
        }
        // SAFETY: invariant 1: this fault took the page, and no leaf maps it.
        unsafe { self.memory.huge().give_from(self.memory.pages(), size, own.frame, own.reserved) };
    }

    /// Maps a page of zeroes: piece by piece where pieces are still to be cleared, and may be.
    fn map_zeroes(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        let (own, pieces) = (self.take_own(vma, place, true)?, PoolFaults::of(self.0));
        let pages = self.memory.pages();
        // A page that was cleared in its pool is zero, unless another task has taken that one, or the pool had
        // to allocate this one.
        let whole =
            !pieces.may_begin(vma, place.size) || pages.frames().is_huge_zero(own.frame, place.size.order());
        if !whole && pieces.begin(place.start, own.frame, own.reserved) {
            return pieces.bring(vma, addr, caller).unwrap_or(Ok(Step::Again));
        }
        // SAFETY: invariant 1: the pool has just given the page for this place, and no leaf maps it yet.
        let clear = |frame| unsafe {
            let extent = extent_of(place.size, frame, addr, caller);
            pages.store().clear_huge(&extent, place.size.order())
        };
        let own = self.fill_own(place.size, own, clear)?;
        self.map_own(vma, place, &own, FaultKind::Anon)
    }

    /// Copies the file's page for a store to a private mapping that maps nothing yet.
    fn map_copy(self, vma: &Vma, place: &HugePlace<'_>, from: Frame) -> Result<Step, FaultError> {
        let pages = self.memory.pages();
        let own = self.own_page(vma, place, true, |frame| copy_page(pages, place, from, frame))?;
        pages.count(Stat::CowCopy, 1);
        self.map_own(vma, place, &own, FaultKind::Cow)
    }

    fn map_own(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        own: &Own,
        kind: FaultKind,
    ) -> Result<Step, FaultError> {
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        let step = self.map_huge(place, own.frame, flags, kind);
        if !matches!(step, Ok(Step::Done(_) | Step::Marked(_))) {
            self.give_up_own(place.size, own);
        }
        step
    }

    /// Allocates a page of zeroes for the file, or one that is cleared `in_pieces` from now on.
    fn fill_file(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        (reserved, in_pieces): (bool, bool),
        extent: impl FnOnce(Frame) -> Extent,
    ) -> Result<Frame, FaultError> {
        let (files, pages) = (HugeFiles::of(self.memory), self.memory.pages());
        let request = Reservations::of(self.0).request(&vma.attributes, reserved, place.index);
        files.fill_huge_by(place.file.node(), (place.size, place.index), request, in_pieces, |frame| {
            // SAFETY: invariant 1: the pool has just given the page for this place, and the file does not
            // name it yet.
            unsafe { pages.store().clear_huge(&extent(frame), place.size.order()) }
        })
    }

    /// Whether the page's memory for an address went bad; for a page that is mapped whole, any of its memory.
    fn is_lost(self, vma: &Vma, place: &HugePlace<'_>, frame: Frame, addr: VirtAddr) -> bool {
        let pages = self.memory.pages();
        let part = frame.add((addr.0 - place.start.0) >> FRAME_SHIFT);
        pages.frames().has_bad(frame)
            && (!vma.attributes.flags.contains(VmaFlags::SPLIT) || pages.frames().is_bad(part))
    }

    /// Maps a page of the file: whole, or just the missing part where parts may be mapped by themselves.
    fn map_part_of_file(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        frame: Frame,
        addr: VirtAddr,
    ) -> Result<Step, FaultError> {
        let flags = leaf_flags(&vma.attributes, !vma.attributes.is_private());
        let kind = FaultKind::FileMinor;
        if !vma.attributes.flags.contains(VmaFlags::SPLIT) {
            let step = self.map_huge(place, frame, flags, kind);
            // Pieces that were unmapped may have left their table.
            let table = matches!(step, Ok(Step::Again)) && !vma.attributes.is_private();
            let in_the_way =
                table && self.tables().lookup(place.start).level < Level::of_leaf(place.size.leaf());
            return if in_the_way { Ok(Step::Whole(frame)) } else { step };
        }
        // A walk that ended above all leaf levels, as without any tables, found nothing of the page mapped.
        let size = self.tables().lookup(addr).level.leaf_size().unwrap_or(PageSize::Size1G);
        // A larger leaf could reach memory that went bad.
        let bad = self.memory.pages().frames().has_bad(frame);
        let size = if bad { PageSize::Size4K } else { size.min(place.size.leaf()) };
        let whole = HugePart { addr: place.start, frames: FrameRange::folio(frame, place.size.order()) };
        let part = whole.within(VirtRange::from_len(addr.align_down(size.bytes()), size.bytes()));
        let done = mapped(HugeParts::of(self.0).map_huge_part(part, flags).map_err(|(_, error)| error))?;
        Ok(if done { Step::done(size.order(), kind) } else { Step::Again })
    }

    pub(in crate::vm) fn map_huge(
        self,
        place: &HugePlace<'_>,
        frame: Frame,
        flags: EntryFlags,
        kind: FaultKind,
    ) -> Result<Step, FaultError> {
        // SAFETY: invariant 1: the pool has given the page for this place.
        let done = mapped(unsafe { self.tables().map_large(place.start, frame, place.size.leaf(), flags) })?;
        if !done {
            return Ok(Step::Again);
        }
        self.count_huge(place.size);
        if flags.contains(EntryFlags::ANON) && self.memory.pages().frames().has_bad(frame) {
            return Ok(Step::Marked(FrameRange::folio(frame, place.size.order())));
        }
        Ok(Step::done(place.size.order(), kind))
    }

    fn count_huge(self, size: HugeSize) {
        self.rss.add_as(self.memory.platform(), Counted::Huge, size.order().frames() as i64);
    }
}

/// How to clear the whole page around an address: for an access, the touched surroundings last; for populating,
/// as a part of more.
pub(super) fn extent_of(size: HugeSize, frame: Frame, addr: VirtAddr, caller: Caller) -> Extent {
    let frames = FrameRange::folio(frame, size.order());
    let touched = addr.0 % size.bytes() / FRAME_SIZE;
    match caller {
        Caller::Access => Extent::new(frames, TouchHint::Soon).near(frame.add(touched)),
        Caller::Populate { bytes } => Extent::new(frames, TouchHint::Unknown).part_of(bytes),
    }
}

fn copy_page<P: Platform>(
    pages: &PageAllocator<'_, P>,
    place: &HugePlace<'_>,
    from: Frame,
    to: Frame,
) -> Result<(), Cancelled> {
    pages.frames().forget_huge_zeroes(to, place.size.order());
    let from = FrameRange::folio(from, place.size.order());
    // SAFETY: invariant 1: the pool has just given the page for this place, and no leaf maps it yet.
    unsafe { pages.frames().copy_frames_in_stretches(from, to, TouchHint::Soon) }
}
