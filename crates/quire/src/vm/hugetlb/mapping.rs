//! Mappings of huge pages: what they were promised, and what becomes of it when they go.
//!
//! A private mapping that reserves is *promised* a page for each of its places for which the address space has no page of its
//! own ([`VmaFlags::PROMISED`]). So nothing needs to be noted for a place: who unmaps looks which pages are there. A page
//! of its own that goes while the mapping stays makes its promise hold again. A child has no promises: its parent's have
//! been redeemed for both. (Linux: the reservation map of a private mapping; `HPAGE_RESV_OWNER`.)
//!
//! Promises of shared mappings belong to the file, and go with its pages, not with the mapping.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use crate::arch::{EntryFlags, Protection};
use crate::error::MmError;
use crate::filemap::{FileKind, FileNode};
use crate::hugetlb::{Account, HugeGroup, HugeSize};
use crate::platform::Platform;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::mm::{Mm, Space};
use crate::vm::tree::VmaBox;
use crate::vm::verbs::mmap::{MapRequest, Sharing};

impl<P: Platform> Mm<'_, P> {
    /// Says which group pays for huge pages from now on; a child of `fork` is in the same one.
    pub fn set_huge_group(&self, group: HugeGroup) {
        self.set_group(group);
    }

    /// Who pays for what a mapping of huge pages takes now.
    pub(in crate::vm) fn account_of(&self, vma: &VmaAttributes) -> Account {
        Account { group: self.group(), fs: fs_of(vma) }
    }

    /// Puts a mapping of huge pages into its place, with what it is promised; or discards it.
    pub(in crate::vm) fn map_huge_node(
        &self,
        request: &MapRequest<'_>,
        mut node: VmaBox,
        size: HugeSize,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let Backing::File { file, page_offset } = &node.attributes.backing else {
            return self.map_node(request, node);
        };
        let (file, first) = (file.again(), *page_offset / size.order().frames());
        let indices = first..first + node.range.len() / size.bytes();
        let account = self.account_of(&node.attributes);
        let writes = request.prot.contains(Protection::WRITE);
        let made = if request.noreserve {
            self.map_node(request, node)
        } else if request.sharing == Sharing::Private {
            node.attributes.group = account.group;
            node.attributes.flags = node.attributes.flags.union(VmaFlags::PROMISED);
            self.map_promised(request, node, size, account)
        } else {
            self.map_file_promised(request, node, file.node(), (size, indices.clone()), account)
        };
        if made.is_ok() {
            self.lengthen(file.node(), size, indices.end, writes);
        }
        self.memory.close(file);
        made
    }

    fn map_promised(
        &self,
        request: &MapRequest<'_>,
        node: VmaBox,
        size: HugeSize,
        account: Account,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let (memory, count) = (self.memory, node.range.len() / size.bytes());
        if let Err(error) = memory.huge().promise(memory.pages(), size, account, count) {
            memory.discard(node);
            return Err(error.into());
        }
        self.map_node(request, node).inspect_err(|_| {
            let kept = memory.huge().unpromise(memory.pages(), size, account, (count, count));
            debug_assert_eq!(kept, 0, "nothing was used");
        })
    }

    fn map_file_promised(
        &self,
        request: &MapRequest<'_>,
        node: VmaBox,
        file: &FileNode,
        part: (HugeSize, Range<u64>),
        account: Account,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let memory = self.memory;
        let right = file.resize(memory.platform());
        let promised = memory.huge().promise_pages(memory.pages(), memory.files(), right, part, account);
        let promises = match promised {
            Ok(promises) => promises,
            Err(error) => {
                memory.discard(node);
                return Err(error.into());
            }
        };
        let made = self.map_node(request, node);
        if made.is_ok() {
            memory.huge().keep_promises(memory.pages(), memory.files(), promises);
        } else {
            memory.huge().drop_promises(memory.pages(), memory.files(), promises);
        }
        made
    }

    /// Makes a file at least as long as a mapping of it that can be stored to, as `hugetlbfs` does.
    fn lengthen(&self, file: &FileNode, size: HugeSize, end: u64, writes: bool) {
        if !writes {
            return;
        }
        let right = file.resize(self.memory.platform());
        if file.size(self.memory.platform()) < end * size.bytes() {
            right.set_bytes(end * size.bytes());
        }
    }

    /// A mapping, or a part of one, is about to be unmapped for good: what it was promised and has not used goes back, and
    /// what it has used will.
    pub(in crate::vm) fn break_promises(&self, vma: &Vma) {
        let Some(size) = vma.attributes.huge_size() else { return };
        if !vma.attributes.flags.contains(VmaFlags::PROMISED) {
            return;
        }
        let (memory, mut own) = (self.memory, 0);
        self.each_own_page(vma.range, |_| own += 1);
        // What went bad was taken from the pool, and is back there already.
        own += self.tables().count_poison(vma.range, size.leaf());
        let count = vma.range.len() / size.bytes();
        // Whoever was asked to pay for the promises, whatever group this address space is in now.
        let account = Account { group: vma.attributes.group, fs: fs_of(&vma.attributes) };
        let mut kept = memory.huge().unpromise(memory.pages(), size, account, (count, count - own));
        // What the file system is to keep comes with the pages that are about to go, if nobody else maps them.
        self.each_own_page(vma.range, |frame| {
            if kept > 0 && memory.pages().mapcount(frame) == 1 {
                memory.pages().renew_huge(frame);
                kept -= 1;
            }
        });
        if kept > 0 {
            memory.huge().keep_fewer(memory.platform(), account.fs, kept);
        }
    }

    /// The pages of a range are about to be unmapped, while the mappings stay: their promises will hold again.
    ///
    /// # Errors
    /// [`MmError::NoMemory`] when a child maps some of them still, so that they do not go back, and the pool has no others to
    /// promise. Nothing has changed then.
    pub(in crate::vm) fn renew_promises(&self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        if !space.huge {
            return Ok(());
        }
        let pages = self.memory.pages();
        let promised = |vma: &&Vma| vma.attributes.flags.contains(VmaFlags::PROMISED);
        let part = |vma: &Vma| Some((vma.range.intersect(range), vma.attributes.huge_size()?));
        let parts = || space.tree.overlapping(range).filter(promised).filter_map(part);
        let mut others = [0; HugeSize::ALL.len()];
        for (part, size) in parts() {
            let others = &mut others[size as usize];
            // Of what went bad nothing comes back.
            *others += self.tables().count_poison(part, size.leaf());
            self.each_own_page(part, |frame| *others += u64::from(pages.mapcount(frame) > 1));
        }
        let [large, gigantic] = HugeSize::ALL;
        self.memory.huge().reserve(pages, large, others[0])?;
        self.memory.huge().reserve(pages, gigantic, others[1]).inspect_err(|_| {
            self.memory.huge().unreserve(pages, large, others[0]);
        })?;
        for (part, _) in parts() {
            self.each_own_page(part, |frame| {
                if pages.mapcount(frame) == 1 {
                    pages.renew_huge(frame);
                }
            });
        }
        Ok(())
    }

    /// Unmaps all huge pages: the end of the address space is near.
    pub(in crate::vm) fn unmap_huge(&self) {
        loop {
            let mut space = self.lock();
            if !space.huge {
                return;
            }
            let huge = |vma: &&Vma| vma.attributes.huge_size().is_some();
            let Some(range) = space.tree.iter().find(huge).map(|vma| vma.range) else { return };
            let gone = self.unmap_range(&mut space, range);
            drop(space);
            match gone {
                Ok(gone) => self.memory.discard_list(gone),
                // A whole mapping goes without needing memory.
                Err(_) => debug_assert!(false, "{range:?} is one mapping"),
            }
        }
    }

    /// Shows the first frame of each huge page of this address space's own that is mapped in the range.
    pub(in crate::vm) fn each_own_page(&self, range: VirtRange, mut show: impl FnMut(Frame)) {
        self.tables().runs(range, |run| {
            if run.first.has(EntryFlags::ANON) {
                let frames = FrameRange::new(run.first.frame(), run.count * run.size.frames());
                (0..run.count).for_each(|at| show(frames.start.add(at * run.size.frames())));
            }
        });
    }
}

/// The number of the file system that a mapping's file belongs to.
fn fs_of(vma: &VmaAttributes) -> u8 {
    match &vma.backing {
        Backing::File { file, .. } => match file.node().kind() {
            FileKind::Huge { fs, .. } => fs,
            FileKind::Paged(_) | FileKind::Nameless { .. } => 0,
        },
        Backing::Anonymous => 0,
    }
}

/// Refuses a range one of whose ends lies inside a huge page: these are mapped whole or not at all.
pub(in crate::vm) fn check_ends(space: &Space, range: VirtRange) -> Result<(), MmError> {
    if [range.start, range.end].into_iter().any(|at| cuts(space, at).is_some()) {
        return Err(MmError::Invalid);
    }
    Ok(())
}

/// Refuses a range one of whose ends lies inside a huge page, unless parts of that may be mapped by themselves.
pub(in crate::vm) fn check_parts(space: &Space, range: VirtRange) -> Result<(), MmError> {
    if [range.start, range.end].into_iter().any(|at| cuts_whole(space, at).is_some()) {
        return Err(MmError::Invalid);
    }
    Ok(())
}

/// As [`cuts`], of huge pages that are mapped whole or not at all.
fn cuts_whole(space: &Space, at: VirtAddr) -> Option<HugeSize> {
    let size = cuts(space, at)?;
    let split = space.tree.find(at)?.attributes.flags.contains(VmaFlags::SPLIT);
    (!split).then_some(size)
}

/// The size of the huge pages in one of which this address lies, not at its start.
pub(in crate::vm) fn cuts(space: &Space, at: VirtAddr) -> Option<HugeSize> {
    let mapping = if space.huge { space.tree.find(at) } else { None };
    let size = mapping?.attributes.huge_size()?;
    (!at.is_aligned(size.bytes())).then_some(size)
}

impl Space {
    /// What `MADV_DONTNEED` means by a range: whole huge pages, those that end in it, unless parts of them may be mapped by
    /// themselves. Where it starts must be such a page's start. (Linux rounds in the same way, so that a caller who knows nothing of huge pages loses nothing.)
    pub(in crate::vm) fn whole_pages(&self, range: VirtRange) -> Result<VirtRange, MmError> {
        if cuts_whole(self, range.start).is_some() {
            return Err(MmError::Invalid);
        }
        let end = match cuts_whole(self, range.end) {
            Some(size) => range.end.align_down(size.bytes()).max(range.start),
            None => range.end,
        };
        Ok(VirtRange::new(range.start, end))
    }
}
