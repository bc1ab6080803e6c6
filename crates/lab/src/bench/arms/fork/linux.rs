//! The running kernel's `fork`.

use std::time::Instant;

use super::Fork;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::child::Child;
use crate::bench::linux::verbs::{Subject, Verb};

pub(super) static FORK: Verb<Fork> = Verb {
    about: "fork of this process by the C library, without the hosted machine's memory; then the child \
     writes one byte to each page of the case and times that. `empty` is a fork without the memory, and is \
     not subtracted; folio sizes are forced and verified as in `unmap`.",
    memory: |case| case.memory,
    work,
};

fn work(case: &Fork, mut subject: Subject) -> Result<Sample, Skip> {
    let (case, region) = (*case, &subject.region);
    // SAFETY: C2: the child writes to memory of its own, reads the clock and writes to its pipe.
    let mut child = unsafe {
        Child::start(|line| {
            let start = Instant::now();
            case.written().for_each(|page| region.touch(page));
            line.say(start.elapsed().as_nanos() as u64)
        })
    }?;
    let writes = child.hear()? as f64;
    child.end()?;
    let forked = child.forked;
    subject.region.unmap().map_err(|error| Skip::because("munmap", error))?;
    // SAFETY: C2: the child does nothing.
    let mut nothing = unsafe { Child::start(|_| true) }?;
    nothing.end()?;
    let written = case.written().count() as u64;
    let time = if case.every.is_some() { forked + writes } else { forked };
    Ok(case.metrics(Sample::new(time, subject.pages + written), forked, writes, nothing.forked))
}
