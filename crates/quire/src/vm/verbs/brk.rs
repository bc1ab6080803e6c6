//! `brk`: the heap, one anonymous mapping that grows and shrinks at its end.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaAttributes};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::{LockMode, Space};
use crate::vm::tree::{VmaList, edit};
use crate::vm::userfault::changes::Notices;
use crate::vm::verbs::munmap::Munmap;
use crate::vm::verbs::populate::Populate;

handle! { Brk of AddressSpace }

impl<P: Platform> Brk<'_, '_, P> {
    pub(in crate::vm) fn set_brk_start(self, addr: VirtAddr) {
        self.lock().brk = (addr, addr);
    }

    pub(in crate::vm) fn brk(self, addr: VirtAddr) -> VirtAddr {
        let mut space = self.lock();
        match self.move_break(&mut space, addr) {
            Ok((grown, gone)) => {
                space.brk.1 = addr;
                let now = space.lock_future == LockMode::Now;
                Notices::of(self.0).announce_unmapped(&gone);
                drop(space);
                Notices::of(self.0).discard_unmapped(gone);
                if now && !grown.is_empty() {
                    // As in Linux, pages that cannot be brought in are left to their first access.
                    let _stopped = Populate::of(self.0).populate(grown);
                }
                addr
            }
            Err(_) => space.brk.1,
        }
    }

    /// Changes the mappings. Returns the range that was added, and nodes to discard.
    fn move_break(self, space: &mut Space, addr: VirtAddr) -> Result<(VirtRange, VmaList), MmError> {
        let (start, now) = space.brk;
        let page_up = |addr: VirtAddr| addr.align_up(FRAME_SIZE).ok_or(MmError::NoMemory);
        if addr < start || addr > space.layout.user.end {
            return Err(MmError::Invalid);
        }
        let (old, new) = (page_up(now)?, page_up(addr)?);
        let none = VirtRange::new(new, new);
        // As in Linux, a heap whose end was unmapped or moved away does not shrink over the hole.
        if new < old && space.tree.first_in(VirtRange::new(new, old)).is_none() {
            return Err(MmError::Invalid);
        }
        if new <= old {
            return Ok((none, Munmap::of(self.0).unmap_range(space, VirtRange::new(new, old))?));
        }
        let limit = space.tree.find_from(old).map(Vma::guarded_start);
        let full = space.tree.len() > space.mapping_limit;
        if full || new > space.layout.user.end || limit.is_some_and(|limit| new.add(FRAME_SIZE) > limit) {
            return Err(MmError::NoMemory);
        }
        if addr.0 - start.0 > space.limits.data {
            return Err(MmError::NoMemory);
        }
        space.check_limits(new.0 - old.0, true, none)?;
        let mut node = self.memory.blank()?;
        let mut attributes = VmaAttributes::anonymous(Protection::READ | Protection::WRITE);
        attributes.flags = space.lock_future.flags();
        let grown = VirtRange::new(old, new);
        *node = Vma::new(grown, attributes);
        let mut gone = VmaList::new();
        match edit::insert(&mut space.tree, node, &mut gone) {
            Ok(()) => Ok((grown, gone)),
            Err(node) => {
                self.memory.discard(node);
                Err(MmError::NoMemory)
            }
        }
    }
}
