//! The reservations of private mappings of huge pages.
//!
//! Such a mapping ([`VmaFlags::RESERVED`]) has one page reserved for each place where the address space has
//! no page of its own. So no place needs a note of its own: unmapping looks which pages are there. If an own
//! page goes and the mapping stays, its reservation holds again. A child has no reservations: the pages that
//! it shares have used its parent's. (Linux: the reservation map of a private mapping; `HPAGE_RESV_OWNER`.)
//!
//! Reservations of shared mappings belong to the file, and go with its pages, not with the mapping.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, VirtRange};
use crate::arch::EntryFlags;
use crate::error::MmError;
use crate::filemap::FileKind;
use crate::hugetlb::{Account, HugeRequest, HugeSize};
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::Space;

handle! {
    /// The reservations of an address space's private mappings.
    Reservations of AddressSpace
}

impl<P: Platform> Reservations<'_, '_, P> {
    /// The account that is charged for huge pages that the mapping takes from now on.
    pub(in crate::vm) fn account_of(self, vma: &VmaAttributes) -> Account {
        Account { group: self.group(), fs: fs_of(vma) }
    }

    /// Asks for page `turn` of the mapping's file.
    pub(in crate::vm) fn request(self, vma: &VmaAttributes, reserved: bool, turn: u64) -> HugeRequest {
        let nodes = vma.nodes.unwrap_or_else(|| self.memory.platform().task_nodes());
        HugeRequest { account: self.account_of(vma), reserved, nodes, turn }
    }

    /// Gives back the unused reservations of a mapping, or a part of one, that is about to be unmapped for
    /// good. The used ones end with their pages.
    pub(in crate::vm) fn end_reservations(self, vma: &Vma) {
        let Some(size) = vma.attributes.huge_size() else { return };
        if !vma.attributes.flags.contains(VmaFlags::RESERVED) {
            return;
        }
        let (memory, mut own) = (self.memory, 0);
        self.each_own_page((vma.range, size), |_| own += 1);
        // Pages that went bad have used their reservations, and are back in the pool already.
        own += self.tables().count_poison(vma.range, size.leaf());
        let count = vma.range.len() / size.bytes();
        // The group that was charged for the reservations: this address space may be in another one now.
        let account = Account { group: vma.attributes.group, fs: fs_of(&vma.attributes) };
        memory.huge().uncharge_reservations(memory.pages(), size, account, (count, count - own));
        self.each_own_page((vma.range, size), |frame| memory.huge().offer(memory.pages(), frame, account.fs));
    }

    /// Makes the reservations of pages hold again that are about to be unmapped while their mappings stay.
    ///
    /// # Errors
    /// [`MmError::NoMemory`] if a child still maps some pages, or they are being moved, so that they do not go back
    /// to the pool at once, and the pool has no others to reserve. Nothing has changed then.
    pub(in crate::vm) fn renew_reservations(self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        if !space.huge {
            return Ok(());
        }
        let pages = self.memory.pages();
        let reserved = |vma: &&Vma| vma.attributes.flags.contains(VmaFlags::RESERVED);
        let part = |vma: &Vma| Some((vma.range.intersect(range), vma.attributes.huge_size()?));
        let parts = || space.tree.overlapping(range).filter(reserved).filter_map(part);
        let mut others = [0; HugeSize::ALL.len()];
        for (part, size) in parts() {
            let others = &mut others[size as usize];
            // Pages that went bad do not come back: reserve others.
            *others += self.tables().count_poison(part, size.leaf());
            self.each_own_page((part, size), |frame| match self.has_one_leaf(frame) {
                true => pages.frames().renew_huge(frame),
                false => *others += 1,
            });
        }
        let ([large, gigantic], huge) = (HugeSize::ALL, self.memory.huge());
        let reserved = huge.reserve(pages, large, others[0]).and_then(|()| {
            let reserved = huge.reserve(pages, gigantic, others[1]);
            reserved.inspect_err(|_| huge.unreserve(pages, large, others[0]))
        });
        if reserved.is_err() {
            for place in parts() {
                self.each_own_page(place, |frame| _ = pages.frames().take_renewed(frame));
            }
        }
        Ok(reserved?)
    }

    /// Whether a private page of the range is being moved.
    pub(in crate::vm) fn any_moves(self, space: &Space, range: VirtRange) -> bool {
        let mut any = false;
        for vma in space.tree.overlapping(range) {
            if let Some(size) = vma.attributes.huge_size() {
                let part = vma.range.intersect(range);
                let frames = self.memory.pages().frames();
                self.each_own_page((part, size), |frame| any |= frames.is_huge_moving(frame));
            }
        }
        any
    }

    /// Whether this address space's leaf is the only one of a private page, so that the page goes back when the leaf
    /// does. Of a page that moves, other leaves may map its copy.
    fn has_one_leaf(self, frame: Frame) -> bool {
        let pages = self.memory.pages();
        // In this order: a move marks the page before it counts down its leaves.
        pages.counts().mapcount(frame) == 1 && !pages.frames().is_huge_moving(frame)
    }

    /// Shows the first frame of each private huge page that one leaf maps in the range. A page in pieces goes back with
    /// its reservation when it is cancelled.
    fn each_own_page(self, (range, size): (VirtRange, HugeSize), mut show: impl FnMut(Frame)) {
        self.tables().runs(range, |run| {
            if run.first.has(EntryFlags::ANON) && run.size == size.leaf() {
                let frames = FrameRange::new(run.first.frame(), run.count * run.size.frames());
                (0..run.count).for_each(|at| show(frames.start.add(at * run.size.frames())));
            }
        });
    }
}

/// The number of the file system of a mapping's file (0: none).
fn fs_of(vma: &VmaAttributes) -> u8 {
    if let Backing::File { file, .. } = &vma.backing
        && let FileKind::Huge { fs, .. } = file.node().kind()
    {
        return fs;
    }
    0
}
