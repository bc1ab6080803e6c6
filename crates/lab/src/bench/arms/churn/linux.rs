//! The running kernel, asked to map and unmap by several threads of this process.

use std::ffi::c_void;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use super::pieces::{SmallPages, linux_piece};
use super::{Churn, ChurnSpan, Drop, Work};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::region::Region;
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
         two threads, a munmap interrupts the other CPU for its flush. Where threads share a range, \
         MADV_POPULATE_WRITE touches, which fails where a store would end the process."
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
        let region =
            Region::map(case.range_bytes().max(PAGE)).map_err(|error| Skip::because("mmap", error))?;
        let mut threads: Vec<usize> = (0..case.threads).collect();
        let threads =
            together(&mut threads, &case.cpus, |thread, meeting| work(case, &region, *thread, meeting));
        case.sample(&threads)
    }
}

fn work(case: &Churn, region: &Region, thread: usize, meeting: &Meeting) -> ChurnSpan {
    meeting.wait();
    let start = Moment::now();
    let one = |round| match case.work {
        Work::Map => linux_piece(case.bytes),
        _ => touch_and_drop(case, region, case.piece(thread, round)),
    };
    let pieces = (0..case.rounds).map_while(one).count() as u64;
    let end = Moment::now();
    // This CPU receives the other threads' flushes until all are done.
    meeting.wait();
    ChurnSpan { start, end, pieces }
}

/// Touches one piece of the region, and drops its pages; `None` if the kernel refuses.
fn touch_and_drop(case: &Churn, region: &Region, (offset, drop): (usize, Drop)) -> Option<()> {
    let (first, count) = (offset / PAGE, case.bytes / PAGE);
    if case.work == Work::Overlapping {
        // Another thread may just have taken the right to store.
        let _ = region.advise_pages(first, count, Advice::LinuxPopulateWrite);
    } else {
        (first..first + count).for_each(|page| region.touch(page));
    }
    let at = (region.start() + offset) as *mut c_void;
    match drop {
        Drop::DontNeed => region.advise_pages(first, count, Advice::LinuxDontNeed).ok(),
        Drop::Protect => {
            for rights in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                // SAFETY: C1: the range is the region's, and no reference into it exists. A thread that stores to
                // the region by itself has a range of its own.
                unsafe { mprotect(at, case.bytes, rights) }.ok()?;
            }
            region.advise_pages(first, count, Advice::LinuxDontNeed).ok()
        }
        Drop::MapOver => {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: C1: the fixed range is the region's, mapped as before, and no reference into it exists.
            unsafe { mmap_anonymous(at, case.bytes, rights, flags) }.ok().map(|_| ())
        }
    }
}
