//! The running kernel's pool, with its saving of descriptors off and on.

use std::fs;
use std::path::Path;
use std::time::Instant;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::busy::Busy;
use super::{PAGE_BYTES, Pools, REQUEST};
use crate::bench::arms::clear::huge::Chooser;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const SAVING: &str = "/proc/sys/vm/hugetlb_optimize_vmemmap";

/// Writes `nr_hugepages`.
pub(super) struct Linux {
    chooser: Chooser,
    saving: bool,
}

impl Linux {
    pub(super) fn new(chooser: Chooser, saving: bool) -> Self {
        Self { chooser, saving }
    }

    /// Changes a setting, which is put back at the end.
    fn set(&self, path: &str, value: &str) -> Result<(), Skip> {
        let got = self.chooser.borrow_mut().settings()?.set(Path::new(path), value)?;
        if got == value { Ok(()) } else { Err(Skip(format!("{path} is {got}, where {value} was written"))) }
    }
}

impl Arm<Pools> for Linux {
    fn name(&self) -> &'static str {
        if self.saving { "linux-saving" } else { "linux" }
    }

    fn about(&self) -> &'static str {
        if self.saving {
            "the same with hugetlb_optimize_vmemmap on."
        } else {
            "one write to nr_hugepages of the running kernel, hugetlb_optimize_vmemmap off: system call, pages from its page allocator, compaction where memory is scattered. Both settings are put back."
        }
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
        let bytes = case.pages * PAGE_BYTES;
        if free.is_none_or(|kib| kib * 1024 < bytes + (1 << 30)) {
            return Err(Skip(format!("{} pages of 2 MiB are more memory than is available", case.pages)));
        }
        self.set(POOL, "0")?;
        if case.churned {
            touch_small(bytes as usize)?;
        }
        Ok(Box::new(Ready { case: *case, arm: self }))
    }
}

struct Ready<'a> {
    case: Pools,
    arm: &'a Linux,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        self.arm.set(SAVING, if self.arm.saving { "1" } else { "0" })?;
        let busy = case.busy.then(|| case.processors.1.map(Busy::on));
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(from)?;
        let start = Instant::now();
        let written = fs::write(POOL, to.to_string());
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let outcome = written.map_err(|error| Skip::because("nr_hugepages", error)).and_then(|()| check(to));
        resize(0)?;
        drop(busy);
        outcome?;
        let sample = Sample::new(nanoseconds / case.pages as f64, case.pages);
        Ok(sample.metric(REQUEST, nanoseconds).count("pages", case.pages))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        // What fails here is tried again, and said, when the settings are put back.
        let _ = self.arm.set(POOL, "0");
    }
}

fn resize(wanted: u64) -> Result<(), Skip> {
    fs::write(POOL, wanted.to_string()).map_err(|error| Skip::because("nr_hugepages", error))?;
    check(wanted)
}

/// Whether the pool is as large as was asked for.
fn check(wanted: u64) -> Result<(), Skip> {
    let got = fs::read_to_string(POOL).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if got == Some(wanted) {
        return Ok(());
    }
    let got = got.unwrap_or(0);
    Err(Skip(format!(
        "the kernel has {got} pages of 2 MiB instead of {wanted}: free or compact memory (/proc/sys/vm/compact_memory)"
    )))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Brings in this much memory in pages of 4 KiB, and gives it back.
fn touch_small(bytes: usize) -> Result<(), Skip> {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that exists.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = start.map_err(|error| Skip::because("memory to break up", error))?;
    // SAFETY: the mapping is this function's alone, and nothing refers into it.
    let touched = unsafe {
        madvise(start, bytes, Advice::LinuxNoHugepage)
            .and_then(|()| madvise(start, bytes, Advice::LinuxPopulateWrite))
    };
    // SAFETY: as above.
    let unmapped = unsafe { munmap(start, bytes) };
    touched.and(unmapped).map_err(|error| Skip::because("memory to break up", error))
}
