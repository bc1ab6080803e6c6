//! One piece of memory, mapped, touched and unmapped by the running kernel or by Quire. The experiment
//! `hugetlb-churn` does the same beside a pool.

use std::ffi::c_void;
use std::ptr::null_mut;

use hosted::Bare;
use nix::sys::prctl;
use quire::arch::Protection;
use quire::vm::{Access, MapRequest, Mm};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::bench::folio::PAGE;

/// Maps, touches and unmaps one piece; `None` if the kernel refuses.
pub(in crate::bench::arms) fn linux_piece(bytes: usize) -> Option<()> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: C1: the kernel chooses an address at which nothing is mapped.
    let at = unsafe { mmap_anonymous(null_mut(), bytes, rights, MapFlags::PRIVATE) }.ok()?;
    for offset in (0..bytes).step_by(PAGE) {
        // SAFETY: C1: the byte lies in the mapping just made, which is writable and which this function alone
        // knows.
        unsafe { at.cast::<u8>().add(offset).write_volatile(1) };
    }
    // SAFETY: C1: the mapping is this function's, and no reference into it was made.
    unsafe { munmap(at.cast::<c_void>(), bytes) }.ok()
}

/// Maps, touches and unmaps one piece; `None` if memory runs out.
pub(in crate::bench::arms) fn quire_piece(mm: &Mm<'_, Bare>, bytes: usize) -> Option<()> {
    let prot = Protection::READ | Protection::WRITE;
    let at = mm.mmap(&MapRequest { len: bytes as u64, prot, ..MapRequest::default() }).ok()?;
    for offset in (0..bytes).step_by(PAGE) {
        mm.fault(at.add(offset as u64), Access::Write).ok()?;
    }
    mm.munmap(at, bytes as u64).ok()
}

/// Keeps transparent huge pages off for this process until dropped.
pub(in crate::bench::arms) struct SmallPages;

impl SmallPages {
    pub(in crate::bench::arms) fn only() -> Self {
        let _ = prctl::set_thp_disable(true);
        Self
    }
}

impl std::ops::Drop for SmallPages {
    fn drop(&mut self) {
        let _ = prctl::set_thp_disable(false);
    }
}
