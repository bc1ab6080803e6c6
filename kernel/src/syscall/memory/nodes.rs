//! Memory nodes, and the calls that move pages between them: `move_pages`, `migrate_pages` and `mbind`.
//!
//! A page that several address spaces map moves only if the caller says so (`MPOL_MF_MOVE_ALL`).

use alloc::sync::Arc;

use linux_raw_sys::mempolicy as abi;
use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::error::MigrateError;
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{NodePolicy, NodeSet};
use quire::vm::{PageFlags, PageWord};

use crate::cpu::topology;
use crate::errno::Errno;
use crate::memory::manager::{Space, manager};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};
use crate::task::{sched, table};

/// The flags that `move_pages` knows.
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

/// The nodes that have memory and are not in the set.
fn others(nodes: NodeSet) -> NodeSet {
    with_memory().iter().filter(|&node| !nodes.contains(node)).collect()
}

/// The nodes that a policy names; all of them if it names none.
fn named_by(policy: Option<NodePolicy>) -> NodeSet {
    match policy {
        Some(NodePolicy::Preferred(node)) => NodeSet::one(node),
        Some(NodePolicy::Bind(set) | NodePolicy::Interleave(set) | NodePolicy::PreferredMany(set)) => set,
        Some(NodePolicy::Local) | None => NodeSet::ALL,
    }
}

/// Whether a page of the range is in memory of a node that the policy does not name.
pub(super) fn has_misplaced(space: &Space, range: VirtRange, policy: Option<NodePolicy>) -> bool {
    count_on(space, range, others(named_by(policy))) > 0
}

/// How many pages of the range are in memory of these nodes.
fn count_on(space: &Space, range: VirtRange, nodes: NodeSet) -> u64 {
    let mut found = 0;
    space.pagemap(range, |_, word| found += u64::from(frame_on(word, nodes).is_some()));
    found
}

/// The frame of a page, if it is in memory of one of these nodes. The page of zeroes is no program's, and never moves.
fn frame_on(word: PageWord, nodes: NodeSet) -> Option<Frame> {
    word.frame().filter(|&frame| nodes.contains(node_of(frame)) && !is_zero_page(frame))
}

/// Moves pages of the range from some nodes to those that the policy names; of the pages that other address spaces map
/// as well only if `all`. Returns how many stay.
///
/// # Errors
/// [`Errno::EINTR`]: a signal ends the process.
fn move_range(
    space: &Space,
    range: VirtRange,
    (from, to): (NodeSet, NodePolicy),
    all: bool,
) -> Result<u64, Errno> {
    if from.is_empty() {
        return Ok(0);
    }
    let mut must_end = false;
    // One look at all tables, since most of a range may have none.
    space.pagemap(range, |_, word| {
        must_end = must_end || sched::call_must_end();
        // Those of a folio that has moved are free.
        if !must_end
            && let Some(frame) = frame_on(word, from)
            && (all || manager().folio_spaces(frame).is_some_and(|spaces| spaces <= 1))
        {
            let _ = manager().migrate_to(frame, to);
        }
    });
    if must_end { Err(Errno::EINTR) } else { Ok(count_on(space, range, from)) }
}

/// Moves pages of the range to the nodes that the policy names. Returns how many are elsewhere.
///
/// # Errors
/// As for [`move_range`].
pub(super) fn move_misplaced(
    space: &Space,
    range: VirtRange,
    policy: Option<NodePolicy>,
    all: bool,
) -> Result<u64, Errno> {
    policy.map_or(Ok(0), |to| move_range(space, range, (others(named_by(policy)), to), all))
}

impl Call<'_> {
    /// `migrate_pages`: the number of pages that stay on the old nodes.
    pub(in crate::syscall) fn migrate_pages(&self) -> Answer {
        let [pid, bits, old, new, ..] = self.arguments;
        let (old, new) = (self.load_mask(old, bits)?, self.load_mask(new, bits)?);
        let space = self.space_of(pid)?;
        let new = new.intersection(with_memory());
        if new.is_empty() {
            return Err(Errno::EINVAL);
        }
        let from = old.intersection(others(new));
        let all = self.process().has(Right::Nice);
        let range = VirtRange::new(VirtAddr(0), space.layout().user.end);
        move_range(&space, range, (from, NodePolicy::Bind(new)), all)
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
            if sched::call_must_end() {
                return Err(Errno::EINTR);
            }
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
                    let all = flags as u32 & abi::MPOL_MF_MOVE_ALL != 0;
                    answer = move_to(&space, VirtAddr(page), node as u8, all);
                }
            }
            self.memory.write(VirtAddr(at(status, 4)?), &answer.to_le_bytes())?;
        }
        Ok(0)
    }

    fn space_of(&self, pid: u64) -> Result<Arc<Space>, Errno> {
        let process = match pid as u32 {
            0 => self.process().clone(),
            pid => table::process_of(pid).ok_or(Errno::ESRCH)?,
        };
        let space = self.process().traced_space(&process, Errno::EPERM);
        space.map_err(|errno| if errno == Errno::ESRCH { Errno::EINVAL } else { errno })
    }
}

/// Moves a page to a node; returns that node, or a negated error: `EACCES` where other address spaces map it too.
fn move_to(space: &Space, at: VirtAddr, node: u8, all: bool) -> i32 {
    let at = at.align_down(FRAME_SIZE);
    let mut found = None;
    space.pagemap(VirtRange::from_len(at, FRAME_SIZE), |_, word| found = word.frame());
    let Some(frame) = found else { return -Errno::ENOENT.number() };
    if !all && manager().folio_spaces(frame).is_some_and(|spaces| spaces > 1) {
        return -Errno::EACCES.number();
    }
    match manager().migrate_to(frame, NodePolicy::Bind(NodeSet::one(node))) {
        Ok(_) => i32::from(node),
        Err(MigrateError::OutOfMemory) => -Errno::ENOMEM.number(),
        Err(MigrateError::NotMovable | MigrateError::Busy) => -Errno::EBUSY.number(),
    }
}

/// Whether a frame is the one of zeroes that all programs share.
fn is_zero_page(frame: Frame) -> bool {
    let mut found = false;
    manager().kpageflags(FrameRange::new(frame, 1), |_, flags| found = flags.0 & PageFlags::ZERO_PAGE != 0);
    found
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
        answer = match word.frame() {
            Some(frame) if is_zero_page(frame) => -Errno::EFAULT.number(),
            Some(frame) => i32::from(node_of(frame)),
            None => answer,
        };
    });
    answer
}
