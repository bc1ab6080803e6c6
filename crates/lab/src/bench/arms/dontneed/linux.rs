//! The running kernel's `MADV_DONTNEED`.

use std::time::Instant;

use rustix::mm::Advice;

use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::verbs::{Subject, Verb};
use crate::bench::memory::Memory;

pub(super) static DONTNEED: Verb<Memory> = Verb {
    about: "one madvise(MADV_DONTNEED) on one thread: zap, reverse map, flush, cgroup uncharge, LRU, frees; \
     page tables stay. Folio sizes are forced and verified as in `unmap`.",
    memory: |memory| *memory,
    work,
};

fn work(_: &Memory, subject: Subject) -> Result<Sample, Skip> {
    let start = Instant::now();
    let outcome = subject.region.advise(Advice::LinuxDontNeed);
    let time = start.elapsed().as_nanos() as f64;
    outcome.map_err(|error| Skip::because("MADV_DONTNEED", error))?;
    let pages = subject.region.pages();
    match (0..pages).step_by(1021).chain([pages - 1]).find(|page| subject.region.is_marked(*page)) {
        Some(page) => Err(Skip(format!("page {page} still holds what was written"))),
        None => Ok(Sample::new(time, subject.pages)),
    }
}
