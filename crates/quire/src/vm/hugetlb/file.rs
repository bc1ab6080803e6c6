//! Files of huge pages, and the file systems that limit them.

use core::ops::Range;

use crate::addr::{Frame, FrameRange, VirtRange};
use crate::arch::EntryFlags;
use crate::clear::Extent;
use crate::error::{Cancelled, FaultError, MmError};
use crate::filemap::{FileNode, FileRef, HugePage};
use crate::hugetlb::{Account, HugeFsError, HugeFsInfo, HugeFsLimits, HugeRequest, HugeSize, object_of};
use crate::pgtable::Zap;
use crate::platform::{Platform, TouchHint};
use crate::tlb::MmuGather;
use crate::vm::file::handle::File;
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::rmap::reverse::{FoundSpace, ReverseMap};
use crate::vm::space::records::huge_kind;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;
use crate::vm::userfault::changes::FileNotices;

/// A file system of huge pages of one size (Linux: a mount of `hugetlbfs`). Its files outlive the handle, as
/// long as they are open or mapped, within its limits.
pub struct HugeFs<'m, P: Platform> {
    memory: &'m MmShared<'m, P>,
    size: HugeSize,
    number: u8,
}

impl<'m, P: Platform> HugeFs<'m, P> {
    /// A file system whose files have pages of this size, within these limits.
    ///
    /// # Errors
    /// [`HugeFsError`].
    pub fn new(
        memory: &'m MmShared<'m, P>,
        size: HugeSize,
        limits: HugeFsLimits,
    ) -> Result<Self, HugeFsError> {
        let number = memory.huge().make_fs(memory.pages(), size, limits)?;
        Ok(Self { memory, size, number })
    }

    /// A new file of `bytes` bytes, rounded up to huge pages, and without any yet.
    ///
    /// # Errors
    /// [`MmError::NoMemory`]; [`MmError::Overflow`].
    pub fn create(&self, bytes: u64) -> Result<File<'m, P>, MmError> {
        File::huge(self.memory, self.size, self.number, bytes)
    }

    /// Its numbers.
    pub fn info(&self) -> HugeFsInfo {
        self.memory.huge().fs_info(self.memory.platform(), self.number)
    }
}

impl<P: Platform> Drop for HugeFs<'_, P> {
    fn drop(&mut self) {
        self.memory.huge().unmount_fs(self.memory.pages(), self.number);
    }
}

impl<'m, P: Platform> File<'m, P> {
    /// A new file of huge pages, of a file system or of none (Linux: `memfd_create` with `MFD_HUGETLB`).
    pub(crate) fn huge(
        memory: &'m MmShared<'m, P>,
        size: HugeSize,
        fs: u8,
        bytes: u64,
    ) -> Result<Self, MmError> {
        HugeFiles::of(memory).huge_file(size, fs, bytes).map(|file| Self::from_parts(memory, file))
    }
}

impl<P: Platform> File<'_, P> {
    /// Reserves the pages of the first `bytes` bytes of a file of huge pages, so that no fault on a shared mapping lacks
    /// one (Linux: `shmget` with `SHM_HUGETLB`). The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a file that is not of huge pages; [`MmError::NoMemory`] when the pool has too few.
    pub fn reserve(&self, bytes: u64) -> Result<(), MmError> {
        HugeFiles::of(self.memory().sleepable()).reserve(self.node(), bytes)
    }

    /// How many huge pages the file has, and how many more are reserved for it. Counts them one by one.
    pub fn huge_pages(&self) -> (u64, u64) {
        self.memory().files().count_huge_pages(self.memory().platform(), self.node())
    }
}

handle! {
    /// Files of huge pages.
    HugeFiles of MmShared
}

impl<P: Platform> HugeFiles<'_, '_, P> {
    /// A file of huge pages that is not mapped yet.
    pub(in crate::vm) fn huge_file(self, size: HugeSize, fs: u8, bytes: u64) -> Result<FileRef, MmError> {
        let bytes = bytes.checked_next_multiple_of(size.bytes()).ok_or(MmError::Overflow)?;
        let file = self.files().huge(self.pages(), size.order(), fs, bytes)?;
        self.huge().count_fs_files(self.platform(), fs, 1);
        Ok(file)
    }

    fn reserve(self, file: &FileNode, bytes: u64) -> Result<(), MmError> {
        file.huge_order().ok_or(MmError::Invalid)?;
        let (size, fs) = huge_kind(file);
        let part = (size, 0..bytes.div_ceil(size.bytes()));
        let (right, account) = (file.resize(self.platform()), Account { fs, ..Account::default() });
        let reserved = self.huge().reserve_pages(self.pages(), self.files(), right, part, account)?;
        self.huge().keep_reservations(self.pages(), self.files(), reserved);
        Ok(())
    }

    /// Changes the size of a file of huge pages; pages wholly behind its new end go back to the pool.
    pub(in crate::vm) fn resize_huge(self, file: &FileNode, bytes: u64) -> Result<(), MmError> {
        let (size, fs) = huge_kind(file);
        if !bytes.is_multiple_of(size.bytes()) {
            return Err(MmError::Invalid);
        }
        let end = bytes / size.bytes();
        let gone = end * size.order().frames()..u64::MAX;
        let shorter = bytes < file.size(self.platform());
        if shorter {
            FileNotices::of(self.0).tell_file_removed(file, &gone);
        }
        let resize = file.resize(self.platform());
        resize.set_bytes(bytes);
        resize.cut_off(self.platform(), gone.start);
        self.unmap_huge_pages(file, &gone);
        self.huge().drop_pages(self.pages(), self.files(), (file, fs), (size, end..u64::MAX));
        drop(resize);
        if shorter {
            FileNotices::of(self.0).wake_file(file, &gone);
        }
        Ok(())
    }

    /// See [`File::punch_hole`].
    pub(in crate::vm) fn punch_hole(self, file: &FileNode, bytes: Range<u64>) -> Result<(), MmError> {
        file.huge_order().filter(|_| !bytes.is_empty()).ok_or(MmError::Invalid)?;
        let (size, fs) = huge_kind(file);
        let frames = size.order().frames();
        let whole = bytes.start.div_ceil(size.bytes())..bytes.end / size.bytes();
        let gone = whole.start * frames..whole.end.max(whole.start) * frames;
        if !gone.is_empty() {
            FileNotices::of(self.0).tell_file_removed(file, &gone);
        }
        let right = file.resize(self.platform());
        let closed = file.close(self.platform());
        if !gone.is_empty() {
            self.unmap_huge_pages(file, &gone);
            self.huge().drop_pages(self.pages(), self.files(), (file, fs), (size, whole.clone()));
        }
        // The rest of the range lies in at most two pages.
        let first = bytes.start..bytes.end.min(whole.start * size.bytes());
        let last = bytes.start.max(whole.end * size.bytes())..bytes.end;
        self.clear_in_page(file, size, first.clone());
        if last.start >= first.end {
            self.clear_in_page(file, size, last);
        }
        drop((closed, right));
        if !gone.is_empty() {
            FileNotices::of(self.0).wake_file(file, &gone);
        }
        Ok(())
    }

    /// Clears a range of bytes inside one huge page, if the file has it. Programs may store to it meanwhile.
    fn clear_in_page(self, file: &FileNode, size: HugeSize, bytes: Range<u64>) {
        let page = self.files().huge_page(self.platform(), file, bytes.start / size.bytes());
        if let Some(HugePage::Present { frame, .. }) = page.filter(|_| bytes.start < bytes.end) {
            let inside = bytes.start % size.bytes();
            let inside = inside..inside + (bytes.end - bytes.start);
            self.files().clear_in_huge_page(self.platform(), frame, inside);
        }
    }

    /// See [`File::allocate`].
    pub(in crate::vm) fn allocate_huge(self, file: &FileNode, bytes: Range<u64>) -> Result<(), MmError> {
        file.huge_order().filter(|_| !bytes.is_empty()).ok_or(MmError::Invalid)?;
        let (size, fs) = huge_kind(file);
        let end = bytes.end.checked_next_multiple_of(size.bytes()).ok_or(MmError::Overflow)?;
        // While this lives, no page or reservation leaves the file; faults may fill in pages.
        let right = file.resize(self.platform());
        for index in bytes.start / size.bytes()..end / size.bytes() {
            let request = |reserved| HugeRequest {
                account: Account { fs, ..Account::default() },
                reserved,
                nodes: self.platform().task_nodes(),
                turn: index,
            };
            self.clear_for(file, (size, index), request, bytes.end - bytes.start)?;
            let (_used, _claim) = loop {
                let used = file.enter();
                let claim = self.huge().claim(object_of(file), index);
                match (used, claim) {
                    (Some(used), Some(claim)) => break (used, claim),
                    _ => self.platform().relax(),
                }
            };
            let there = self.files().huge_page(self.platform(), file, index);
            if matches!(there, Some(HugePage::Present { .. })) {
                continue;
            }
            let filled = self.fill_huge(file, (size, index), request(there.is_some()), |frame| {
                let extent = part_of(size, frame, bytes.end - bytes.start);
                // SAFETY: invariant 1: the page was just taken from its pool, and the file does not name it.
                unsafe { self.pages().store().clear_huge(&extent, size.order()) }
            });
            filled.map_err(|_| MmError::NoMemory)?;
        }
        right.set_bytes(file.size(self.platform()).max(end));
        Ok(())
    }

    /// Clears a page in its pool for a place of a file that has none, if the pool has none of zeroes.
    fn clear_for(
        self,
        file: &FileNode,
        (size, index): (HugeSize, u64),
        request: impl FnOnce(bool) -> HugeRequest,
        whole: u64,
    ) -> Result<(), MmError> {
        let there = self.files().huge_page(self.platform(), file, index);
        let request = request(there.is_some());
        if matches!(there, Some(HugePage::Present { .. }))
            || !self.huge().is_next_stale(self.pages(), size, &request)
        {
            return Ok(());
        }
        let nodes = (request.nodes, request.turn);
        let cleared =
            self.huge().clear_next(self.pages(), size, nodes, (0, |frame| part_of(size, frame, whole)));
        cleared.map_err(|_| MmError::NoMemory)
    }

    /// Takes a page from the pool, fills it by `fill` (which forgets the page's zeroes before it stores) and
    /// enters it into the file. The caller has claimed its place.
    pub(in crate::vm) fn fill_huge(
        self,
        file: &FileNode,
        (size, index): (HugeSize, u64),
        request: HugeRequest,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<Frame, FaultError> {
        self.fill_huge_by(file, (size, index), request, false, fill)
    }

    /// The same. A page that is not zero is cleared `in_pieces` from now on, if so many of these can begin.
    pub(in crate::vm) fn fill_huge_by(
        self,
        file: &FileNode,
        (size, index): (HugeSize, u64),
        request: HugeRequest,
        in_pieces: bool,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<Frame, FaultError> {
        let taken = self.huge().take_for(self.pages(), size, request);
        let frame = taken.map_err(|_| FaultError::NoHugePage)?;
        // A page whose blocks were cleared one by one needs no pieces either.
        let in_pieces = in_pieces && !self.pages().frames().is_all_zero(frame, size.order());
        if in_pieces && FileClears::of(self.0).begin(file, index, frame) {
            let put = self.files().put_huge_page(self.pages(), file, index, frame);
            return put.map(|()| frame).map_err(|error| {
                let place = index * size.order().frames()..(index + 1) * size.order().frames();
                self.gigantic_clears().cancel_of_file(self.pages(), file, &place);
                // SAFETY: invariant 1: the page was taken above, and the file does not have it.
                unsafe { self.huge().give_from(self.pages(), size, frame, request.reserved) };
                error.into()
            });
        }
        let entered = fill(frame).map_err(FaultError::from).and_then(|()| {
            let zeroed = self.pages().frames().is_huge_zero(frame, size.order());
            self.pages().frames().forget_huge_zeroes(frame, size.order());
            let put = self.files().put_huge_page(self.pages(), file, index, frame);
            if put.is_err() && zeroed {
                self.pages().frames().note_all_huge_zero(frame, size.order());
            }
            Ok(put?)
        });
        if let Err(error) = entered {
            // SAFETY: invariant 1: the page was taken above, and the file does not have it.
            unsafe { self.huge().give_from(self.pages(), size, frame, request.reserved) };
            return Err(error);
        }
        Ok(frame)
    }

    /// Unmaps these pages (of 4 KiB) of a file on which no task can fault, private ones too, in every address
    /// space. Mappings without reservations come first: then the pages of those with reservations go back at
    /// once, and their reservations hold again. The second pass visits all mappings, each parent before its
    /// children: one that was forked after the first pass has pages of its parent.
    fn unmap_huge_pages(self, file: &FileNode, pages: &Range<u64>) {
        PoolClears::of(self.0).cancel_of_file(file, pages);
        for all in [false, true] {
            ReverseMap::of(self.0).each_mapper(file, pages, |found| self.unmap_huge_in(found, pages, all));
        }
    }

    fn unmap_huge_in(self, found: &FoundSpace<'_, '_, P>, pages: &Range<u64>, all: bool) {
        let mut gather = MmuGather::new(self.pages(), &found.body.context);
        found.each_part(pages, |vma, range| {
            let reserved = vma.attributes.flags.contains(VmaFlags::RESERVED);
            if reserved && !all {
                return;
            }
            let size = vma.attributes.huge_size().filter(|_| reserved);
            if size.is_none_or(|size| self.renew_in(found, range, size)) {
                self.unmap_whole(found, range, &mut gather);
                return;
            }
            found.tables().runs(range, |run| {
                let leaves = VirtRange::from_len(run.addr, run.count * run.size.bytes());
                self.unmap_whole(found, leaves, &mut gather);
            });
        });
        found.body.add_rss(self.pages(), gather.finish(), Counted::Huge);
        self.huge().take_returned(self.pages());
    }

    /// Makes the reservations of private pages hold again that are about to be unmapped, and reserves others
    /// for those that went bad. Returns `false` if the pool has none for these: then their markers must stay.
    fn renew_in(self, found: &FoundSpace<'_, '_, P>, range: VirtRange, size: HugeSize) -> bool {
        let tables = found.tables();
        tables.runs(range, |run| {
            if run.first.has(EntryFlags::ANON) {
                let first = run.first.frame();
                (0..run.count)
                    .for_each(|at| self.pages().frames().renew_huge(first.add(at * run.size.frames())));
            }
        });
        self.huge().reserve(self.pages(), size, tables.count_poison(range, size.leaf())).is_ok()
    }

    fn unmap_whole(self, found: &FoundSpace<'_, '_, P>, range: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        let done = found.tables().unmap(&Zap::leaves(range), gather);
        debug_assert_eq!(done, Ok(()), "huge pages are mapped whole");
        // Large leaves leave busy entries behind, which the next part must not meet.
        gather.flush();
    }
}

/// How to clear a page as a part of `whole` bytes that a call asks for.
fn part_of(size: HugeSize, frame: Frame, whole: u64) -> Extent {
    Extent::new(FrameRange::folio(frame, size.order()), TouchHint::Unknown).part_of(whole)
}
