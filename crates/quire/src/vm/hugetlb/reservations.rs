//! Mappings of huge pages: what they were reserved, and what becomes of it when they go.
//!
//! A private mapping that reserves is *reserved* a page for each of its places for which the address space
//! has no page of its own ([`VmaFlags::RESERVED`]). So nothing needs to be noted for a place: unmapping looks
//! which pages are there. A page of its own that goes while the mapping stays makes its reservation hold
//! again. A child has no reservations: its parent's have been redeemed for both. (Linux: the reservation map
//! of a private mapping; `HPAGE_RESV_OWNER`.)
//!
//! Reservations of shared mappings belong to the file, and go with its pages, not with the mapping.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, VirtRange};
use crate::arch::EntryFlags;
use crate::error::MmError;
use crate::filemap::FileKind;
use crate::hugetlb::{Account, HugeSize};
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::Space;

handle! {
    /// Pages of pools that private mappings of an address space have reserved.
    Reservations of AddressSpace
}

impl<P: Platform> Reservations<'_, '_, P> {
    /// What is charged for pages that a mapping of huge pages takes now.
    pub(in crate::vm) fn account_of(self, vma: &VmaAttributes) -> Account {
        Account { group: self.group(), fs: fs_of(vma) }
    }

    /// A mapping, or a part of one, is about to be unmapped for good: what it was reserved and has not used
    /// goes back, and what it has used will.
    pub(in crate::vm) fn end_reservations(self, vma: &Vma) {
        let Some(size) = vma.attributes.huge_size() else { return };
        if !vma.attributes.flags.contains(VmaFlags::RESERVED) {
            return;
        }
        let (memory, mut own) = (self.memory, 0);
        self.each_own_page(vma.range, |_| own += 1);
        // What went bad was taken from the pool, and is back there already.
        own += self.tables().count_poison(vma.range, size.leaf());
        let count = vma.range.len() / size.bytes();
        // The group that was charged for the reservations, whatever group this address space is in now.
        let account = Account { group: vma.attributes.group, fs: fs_of(&vma.attributes) };
        let mut kept =
            memory.huge().uncharge_reservations(memory.pages(), size, account, (count, count - own));
        // What the file system is to keep comes with the pages that are about to go, if no other leaf maps
        // them.
        self.each_own_page(vma.range, |frame| {
            if kept > 0 && memory.pages().counts().mapcount(frame) == 1 {
                memory.pages().frames().renew_huge(frame);
                kept -= 1;
            }
        });
        if kept > 0 {
            memory.huge().keep_fewer(memory.platform(), account.fs, kept);
        }
    }

    /// The pages of a range are about to be unmapped, while the mappings stay: their reservations will hold
    /// again.
    ///
    /// # Errors
    /// [`MmError::NoMemory`] when a child maps some of them still, so that they do not go back, and the pool
    /// has no others to reservation. Nothing has changed then.
    pub(in crate::vm) fn renew_reservations(self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        if !space.huge {
            return Ok(());
        }
        let pages = self.memory.pages();
        let reserved = |vma: &&Vma| vma.attributes.flags.contains(VmaFlags::RESERVED);
        let part = |vma: &Vma| Some((vma.range.intersect(range), vma.attributes.huge_size()?));
        let parts = || space.tree.overlapping(range).filter(reserved).filter_map(part);
        let mut others = [0; HugeSize::ALL.len()];
        let mut alone = others;
        for (part, size) in parts() {
            let (others, alone) = (&mut others[size as usize], &mut alone[size as usize]);
            // Of what went bad nothing comes back.
            *others += self.tables().count_poison(part, size.leaf());
            self.each_own_page(part, |frame| match pages.counts().mapcount(frame) {
                1 => *alone += 1,
                _ => *others += 1,
            });
        }
        let [large, gigantic] = HugeSize::ALL;
        self.memory.huge().reserve(pages, large, others[0])?;
        self.memory.huge().reserve(pages, gigantic, others[1]).inspect_err(|_| {
            self.memory.huge().unreserve(pages, large, others[0]);
        })?;
        // A child may have unmapped a page since. Another one was reserved for that, so as many are renewed as were
        // counted, and no more.
        for (part, size) in parts() {
            let alone = &mut alone[size as usize];
            self.each_own_page(part, |frame| {
                if *alone > 0 && pages.counts().mapcount(frame) == 1 {
                    pages.frames().renew_huge(frame);
                    *alone -= 1;
                }
            });
        }
        Ok(())
    }

    /// Shows the first frame of each huge page of this address space's own that is mapped in the range.
    pub(in crate::vm) fn each_own_page(self, range: VirtRange, mut show: impl FnMut(Frame)) {
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
            FileKind::Paged(_) | FileKind::Shmem { .. } => 0,
        },
        Backing::Anonymous => 0,
    }
}
