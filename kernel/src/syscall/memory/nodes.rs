//! Memory nodes, and the calls that move pages between them: `move_pages` and `migrate_pages`.
//!
//! Quire chooses a node when memory is first touched and does not move pages to other nodes. So these calls tell where
//! pages are, and that pages elsewhere cannot be moved.

use alloc::sync::Arc;

use linux_raw_sys::mempolicy as abi;
use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{NodePolicy, NodeSet};

use crate::cpu::topology;
use crate::errno::Errno;
use crate::memory::manager::{Space, manager};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};
use crate::task::table;

/// The most pages of one call that Linux looks at before it checks the next.
const FLAGS: u32 = abi::MPOL_MF_MOVE | abi::MPOL_MF_MOVE_ALL;

/// The nodes that have memory.
pub(super) fn with_memory() -> NodeSet {
    let nodes: NodeSet = topology::get().memory().iter().map(|memory| memory.node).collect();
    if nodes.is_empty() { NodeSet::one(0) } else { nodes }
}

/// The node of a frame.
pub(super) fn node_of(frame: Frame) -> u8 {
    manager().pages().store().node_of_frame(frame)
}

/// Whether a page of the range is in memory of a node that the policy does not name.
pub(super) fn has_misplaced(space: &Space, range: VirtRange, policy: Option<NodePolicy>) -> bool {
    let allowed = match policy {
        Some(NodePolicy::Preferred(node)) => NodeSet::one(node),
        Some(NodePolicy::Bind(set) | NodePolicy::Interleave(set)) => set,
        Some(NodePolicy::Local) | None => return false,
    };
    let mut found = false;
    space.pagemap(range, |_, word| {
        found |= word.frame().is_some_and(|frame| !allowed.contains(node_of(frame)));
    });
    found
}

impl Call<'_> {
    /// `migrate_pages`: the number of pages that are on the old nodes and stay there.
    pub(in crate::syscall) fn migrate_pages(&self) -> Answer {
        let [pid, bits, old, new, ..] = self.arguments;
        let (old, new) = (self.load_mask(old, bits)?, self.load_mask(new, bits)?);
        let space = self.space_of(pid)?;
        let new = new.intersection(with_memory());
        if new.is_empty() {
            return Err(Errno::EINVAL);
        }
        let mut left = 0;
        space.pagemap(VirtRange::new(VirtAddr(0), space.layout().user.end), |_, word| {
            let node = word.frame().map(node_of);
            left += u64::from(node.is_some_and(|node| old.contains(node) && !new.contains(node)));
        });
        Ok(left)
    }

    /// `move_pages`: for each page its node, or why it is not where it should be.
    pub(in crate::syscall) fn move_pages(&self) -> Answer {
        let [pid, count, pages, wanted, status, flags] = self.arguments;
        if flags as u32 & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        if flags as u32 & abi::MPOL_MF_MOVE_ALL != 0 {
            credentials::check(Right::Nice)?;
        }
        let space = self.space_of(pid)?;
        for index in 0..count {
            let at = |base: u64, bytes: u64| {
                index.checked_mul(bytes).and_then(|offset| base.checked_add(offset)).ok_or(Errno::EFAULT)
            };
            let [page] = self.load_words(at(pages, 8)?)?;
            let mut answer = node_or_error(&space, VirtAddr(page));
            if wanted != 0 {
                let node = self.memory.read_u32(VirtAddr(at(wanted, 4)?))?;
                if u8::try_from(node).is_err() || !with_memory().contains(node as u8) {
                    return Err(Errno::ENODEV);
                }
                if answer >= 0 && answer != node as i32 {
                    answer = -Errno::EBUSY.number();
                }
            }
            self.memory.write(VirtAddr(at(status, 4)?), &answer.to_le_bytes())?;
        }
        Ok(0)
    }

    fn space_of(&self, pid: u64) -> Result<Arc<Space>, Errno> {
        let process = match pid as u32 {
            0 => self.process().clone(),
            pid => table::task(pid).ok_or(Errno::ESRCH)?.process.clone(),
        };
        if pid as u32 != 0 && !self.process().credentials().may_trace(&process.credentials()) {
            return Err(Errno::EPERM);
        }
        let space = process.space_handle();
        space.ok_or(Errno::EINVAL)
    }
}

/// The node of a page, or a negated error: `EFAULT` where nothing is mapped or only zeroes are, `ENOENT` where no page
/// is in memory.
fn node_or_error(space: &Space, at: VirtAddr) -> i32 {
    let at = at.align_down(FRAME_SIZE);
    if space.next_vma(at).is_none_or(|vma| !vma.range.contains(at)) {
        return -Errno::EFAULT.number();
    }
    let mut answer = -Errno::ENOENT.number();
    space.pagemap(VirtRange::from_len(at, FRAME_SIZE), |_, word| {
        answer = word.frame().map_or(answer, |frame| i32::from(node_of(frame)));
    });
    answer
}
