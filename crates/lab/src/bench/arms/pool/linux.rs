//! The running kernel's pool, grown and shrunk.

use std::time::Instant;

use quire::hugetlb::HugeSize;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::busy::Busy;
use super::case::{PAGE_BYTES, Pools, REQUEST};
use super::kernel::{Kernel, check, resize, write};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

const SIZE: HugeSize = HugeSize::Size2M;

pub(super) struct Linux {
    pub(super) kernel: Kernel,
}

impl Arm<Pools> for Linux {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn about(&self) -> &'static str {
        self.kernel.about(
            "one write to nr_hugepages of the running kernel, with hugetlb_optimize_vmemmap \
         off: system call, page allocator, compaction where memory is fragmented. Both settings are put \
         back.",
        )
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        if !case.broadcast.is_zero() {
            return Err(Skip("the running kernel interrupts the processors that it has".to_owned()));
        }
        self.kernel.clear_for(&[SIZE], SIZE, case.pages)?;
        if case.churned {
            touch_small((case.pages * PAGE_BYTES) as usize)?;
        }
        Ok(Box::new(Ready { case: *case, kernel: &self.kernel }))
    }
}

struct Ready<'a> {
    case: Pools,
    kernel: &'a Kernel,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        self.kernel.choose_saving()?;
        let busy = case.busy.then(|| case.processors.1.map(Busy::on));
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(SIZE, from)?;
        let start = Instant::now();
        let written = write(SIZE, "nr_hugepages", to);
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let outcome = written.and_then(|()| check(SIZE, to));
        resize(SIZE, 0)?;
        drop(busy);
        outcome?;
        let sample = Sample::new(nanoseconds / case.pages as f64, case.pages);
        Ok(sample.metric(REQUEST, nanoseconds).count("pages", case.pages))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.kernel.empty(SIZE);
    }
}

/// Populates this much memory by 4 KiB pages, and unmaps it.
fn touch_small(bytes: usize) -> Result<(), Skip> {
    let flags = MapFlags::PRIVATE;
    // SAFETY: C1: the kernel chooses an address at which nothing is mapped.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = start.map_err(|error| Skip::because("memory to break up", error))?;
    // SAFETY: C1: the mapping is this function's, and no reference points into it.
    let touched = unsafe {
        madvise(start, bytes, Advice::LinuxNoHugepage)
            .and_then(|()| madvise(start, bytes, Advice::LinuxPopulateWrite))
    };
    // SAFETY: C1: the mapping is this function's, and no reference points into it.
    let unmapped = unsafe { munmap(start, bytes) };
    touched.and(unmapped).map_err(|error| Skip::because("memory to break up", error))
}
