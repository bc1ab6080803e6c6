//! The running kernel's `munmap`.

use std::time::Instant;

use super::{RunBy, Unmap, beside};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::verbs::{Subject, Verb};

pub(super) static UNMAP: Verb<Unmap> = Verb {
    about: "one munmap call on one thread: system call, VMA, zap, reverse map, flush, cgroup uncharge, LRU, \
     frames and page tables. Folio sizes are forced in /sys and verified in /proc/kpageflags; `2MiB-pte` is \
     a huge page whose PMD an madvise of one of its pages has split.",
    memory: |case| case.memory,
    work,
};

fn work(case: &Unmap, mut subject: Subject) -> Result<Sample, Skip> {
    let mut unmap = || {
        let start = Instant::now();
        let outcome = subject.region.unmap_each(case.each);
        (outcome, start.elapsed().as_nanos() as f64)
    };
    let (outcome, time) = match case.run_by {
        RunBy::One => unmap(),
        RunBy::Two(processor) => beside(processor, |spin| spin(), unmap),
        RunBy::NoCpu => {
            return Err(Skip(
                "munmap works on the caller's own address space, which a CPU always runs".to_owned(),
            ));
        }
    };
    outcome.map_err(|error| Skip::because("munmap", error))?;
    Ok(Sample::new(time, subject.pages))
}
