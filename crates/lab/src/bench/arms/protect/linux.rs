//! The running kernel's `mprotect`.

use std::time::Instant;

use rustix::mm::ProtFlags;

use super::{BACK, READ_ONLY};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::populate::minor_faults;
use crate::bench::linux::verbs::{Subject, Verb};
use crate::bench::memory::Memory;

pub(super) static PROTECT: Verb<Memory> = Verb {
    about: "two mprotect calls on one thread, for every entry; the second also reads each folio's \
     descriptor, to see whether a write may skip its fault. Folio sizes are forced and verified as in \
     `unmap`.",
    memory: |memory| *memory,
    work,
};

fn work(_: &Memory, subject: Subject) -> Result<Sample, Skip> {
    let read_only = protect(&subject, ProtFlags::READ)?;
    let back = protect(&subject, ProtFlags::READ | ProtFlags::WRITE)?;
    let before = minor_faults()?;
    subject.region.touch_all();
    let faults = minor_faults()? - before;
    let pages = subject.region.marked();
    Ok(Sample::new(read_only + back, pages)
        .metric(READ_ONLY, read_only)
        .metric(BACK, back)
        .count("writable_without_a_fault", pages.saturating_sub(faults)))
}

fn protect(subject: &Subject, rights: ProtFlags) -> Result<f64, Skip> {
    let start = Instant::now();
    let outcome = subject.region.protect(rights);
    let time = start.elapsed().as_nanos() as f64;
    outcome.map_err(|error| Skip::because("mprotect", error)).map(|()| time)
}
