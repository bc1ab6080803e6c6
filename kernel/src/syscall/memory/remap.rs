//! `remap_file_pages`, which Linux too only emulates: a part of a shared mapping is replaced by one of other pages of the
//! same file.

use alloc::boxed::Box;

use linux_raw_sys::general as abi;
use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;
use quire::vm::{Advice, Backing, MapRequest, Placement, Remap, Sharing, VmaInfo};

use crate::errno::Errno;
use crate::files::node::Kind;
use crate::files::open::{File, Mapping, Opening};
use crate::ipc;
use crate::memory::manager::KernelFile;
use crate::observe::mapped_files::place_of;
use crate::syscall::{Answer, Call};

const ALL: Protection = Protection::from_bits(7);

impl Call<'_> {
    /// `remap_file_pages`
    pub(in crate::syscall) fn remap_file_pages(&self) -> Answer {
        let [start, bytes, prot, page, flags, _] = self.arguments;
        let (start, bytes) = (start & !(FRAME_SIZE - 1), bytes & !(FRAME_SIZE - 1));
        let end = start.checked_add(bytes).filter(|end| *end > start);
        let is_sound = prot == 0 && page.checked_add(bytes / FRAME_SIZE).is_some();
        let end = end.filter(|_| is_sound).ok_or(Errno::EINVAL)?;
        let range = VirtRange { start: VirtAddr(start), end: VirtAddr(end) };
        let vma = self.one_file(range).ok_or(Errno::EINVAL)?;
        let populate = flags as u32 & abi::MAP_NONBLOCK == 0;
        if let Some(segment) = ipc::of_file(vma.file_number) {
            // As in Linux: a segment that was removed goes with its last attachment, before the new one is made.
            if segment.is_removed() && segment.attachments() <= self.mappings_in(range) {
                drop(segment);
                self.space.munmap(range.start, range.len())?;
                ipc::collect();
                return Err(Errno::EINVAL);
            }
            return self.map_again(&vma, range, (&segment.file, page), populate);
        }
        if let Some(file) = open_again(vma.file_number)
            && let Ok(Mapping::File(pages)) = file.mapping()
            && pages.number() == vma.file_number
        {
            return self.map_again(&vma, range, (pages, page), populate);
        }
        self.show_again(&vma, range, page, populate)
    }

    /// The first mapping of a range that shared mappings of one file cover, all with the same rights.
    fn one_file(&self, range: VirtRange) -> Option<VmaInfo> {
        let at = |addr: VirtAddr| self.space.next_vma(addr).filter(|vma| vma.range.contains(addr));
        let first = at(range.start)?;
        let mut last = first;
        while last.range.end < range.end {
            last = at(last.range.end)?;
            if !is_alike(&first, &last) {
                return None;
            }
        }
        // In Linux a shared mapping of a file that was opened for reading alone counts as private here.
        let is_shared = first.flags.contains(VmaFlags::SHARED) && first.may.contains(Protection::WRITE);
        is_shared.then_some(first)
    }

    /// How many mappings are inside a range.
    fn mappings_in(&self, range: VirtRange) -> u64 {
        let mut count = 0;
        self.space.vmas_in(range, |vma| count += u64::from(range.covers(vma.range)));
        count
    }

    fn map_again(
        &self,
        vma: &VmaInfo,
        range: VirtRange,
        (file, page_offset): (&KernelFile, u64),
        populate: bool,
    ) -> Answer {
        self.map(&MapRequest {
            addr: range.start,
            len: range.len(),
            prot: vma.protection,
            forbid: Protection::from_bits(ALL.bits() & !vma.may.bits()),
            placement: Placement::Fixed,
            sharing: Sharing::Shared,
            backing: Backing::File { file, page_offset },
            populate,
            locked: vma.flags.contains(VmaFlags::LOCKED),
            ..MapRequest::default()
        })?;
        Ok(0)
    }

    /// For memory that has no name (`MAP_SHARED | MAP_ANONYMOUS`, removed files): a second view of a mapping that shows an
    /// earlier page or the wanted one. Without such a mapping there is no way to the page.
    fn show_again(&self, vma: &VmaInfo, range: VirtRange, page: u64, populate: bool) -> Answer {
        let (from, before) = self.earlier_view(vma, page).ok_or(Errno::EINVAL)?;
        let skipped = before.checked_mul(FRAME_SIZE).ok_or(Errno::EINVAL)?;
        let bytes = skipped.checked_add(range.len()).ok_or(Errno::EINVAL)?;
        let view = self.space.mremap(from, 0, bytes, Remap::MayMove)?;
        let shown = self.space.mremap(view.add(skipped), 0, range.len(), Remap::Fixed(range.start));
        self.space.munmap(view, bytes)?;
        shown?;
        ipc::collect();
        if populate {
            // As in Linux, the call has succeeded if some pages cannot be brought in.
            let _ = self.space.madvise(range.start, range.len(), Advice::PopulateRead);
        }
        Ok(0)
    }

    /// The address of a page of the same file in a mapping like this one, and how many pages before the wanted one it is:
    /// as few as possible.
    fn earlier_view(&self, vma: &VmaInfo, page: u64) -> Option<(VirtAddr, u64)> {
        let (mut best, mut at) = (None, VirtAddr(0));
        while let Some(other) = self.space.next_vma(at) {
            at = other.range.end;
            let Some((_, first)) = other.file.filter(|(_, first)| is_alike(vma, &other) && *first <= page)
            else {
                continue;
            };
            let inside = (page - first).min(other.range.pages() - 1);
            let found = (other.range.start.add(inside * FRAME_SIZE), page - first - inside);
            if best.is_none_or(|(_, before)| found.1 < before) {
                best = Some(found);
            }
        }
        best
    }
}

/// Whether two mappings are of one file, with the same rights.
fn is_alike(one: &VmaInfo, other: &VmaInfo) -> bool {
    one.file.is_some()
        && one.file_number == other.file_number
        && (one.flags, one.protection, one.may) == (other.flags, other.protection, other.may)
}

/// The regular file with this number, if it still has a place in the tree of files.
fn open_again(number: u64) -> Option<Box<dyn File>> {
    let place = place_of(number).filter(|place| place.node().kind() == Kind::Regular)?;
    place.node().clone().open(&Opening { place: &place, flags: abi::O_RDWR }).ok()
}
