//! The calls about memory. Each is one verb of Quire; flags are checked and errors named here.

mod brk;
mod madvise;
mod membarrier;
mod mincore;
mod mlock;
mod mmap;
mod mprotect;
mod mremap;
mod msync;
mod nodes;
mod policy;
mod process_vm;
mod remap;
mod shm;
mod userfaultfd;

pub(super) use mmap::huge_size;
use quire::addr::{VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;

/// The pages of a range, if it wraps nowhere: the length is rounded up.
fn page_range(start: VirtAddr, len: u64) -> Option<VirtRange> {
    let len = VirtAddr(len).align_up(FRAME_SIZE)?.0;
    let end = start.0.checked_add(len)?;
    Some(VirtRange { start, end: VirtAddr(end) })
}
