//! The running kernel, asked to map and unmap by several threads of this process.

use std::ffi::c_void;
use std::ptr::null_mut;

use nix::sys::prctl;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Churn, Stint};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::host::cycles::Moment;
use crate::host::threads::{Meeting, together};

#[derive(Default)]
pub(super) struct Linux;

impl Arm<Churn> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "mmap, one byte written to each page, munmap in this process, without transparent huge pages. With \
         two threads, a munmap interrupts the other CPU for its flush."
    }

    fn setup(&mut self, case: &Churn) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready { case: case.clone(), _small: SmallPages::only() }))
    }
}

struct Ready {
    case: Churn,
    _small: SmallPages,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = &self.case;
        let mut threads = vec![(); case.threads];
        let stints = together(&mut threads, &case.cpus, |(), meeting| work(case, meeting));
        case.sample(&stints)
    }
}

fn work(case: &Churn, meeting: &Meeting) -> Stint {
    meeting.wait();
    let start = Moment::now();
    let pieces = (0..case.rounds).map_while(|_| piece(case.bytes)).count() as u64;
    let end = Moment::now();
    // This CPU receives the other threads' flushes until all are done.
    meeting.wait();
    Stint { start, end, pieces }
}

/// Maps, touches and unmaps one piece; `None` if the kernel refuses.
pub(in crate::bench::arms) fn piece(bytes: usize) -> Option<()> {
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

/// Keeps transparent huge pages off for this process until dropped.
pub(in crate::bench::arms) struct SmallPages;

impl SmallPages {
    pub(in crate::bench::arms) fn only() -> Self {
        let _ = prctl::set_thp_disable(true);
        Self
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        let _ = prctl::set_thp_disable(false);
    }
}
