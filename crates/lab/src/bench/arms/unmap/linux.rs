//! The running kernel's `munmap`.

use std::time::Instant;

use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::verbs::{Subject, Verb};
use crate::bench::memory::Memory;

/// `munmap` in this process.
pub(super) static UNMAP: Verb<Memory> = Verb {
    about: "one munmap call: system call, VMA, zap, reverse map, flush, cgroup uncharge, LRU, frames and page tables. \
            Folio sizes are forced in /sys and verified in /proc/kpageflags; `2MiB-pte` is a huge page whose PMD was \
            split by advice on one of its pages. One thread: no other CPU has to flush.",
    memory: |memory| *memory,
    work,
};

fn work(_: &Memory, mut subject: Subject) -> Result<Sample, Skip> {
    let start = Instant::now();
    let outcome = subject.region.unmap();
    let time = start.elapsed().as_nanos() as f64;
    outcome.map_err(|error| Skip::because("munmap", error))?;
    Ok(Sample::new(time, subject.pages))
}
