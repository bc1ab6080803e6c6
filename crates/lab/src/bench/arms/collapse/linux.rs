//! The running kernel's `MADV_COLLAPSE`.

use super::Collapsing;
use super::call::{by_kernel, timed};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::census;
use crate::bench::linux::verbs::{Subject, Verb};

pub(super) static COLLAPSE: Verb<Collapsing> = Verb {
    about: "one madvise(MADV_COLLAPSE): for each 2 MiB the kernel isolates the pages from the LRU, unmaps \
     and flushes the range, copies it into a new folio and frees the old frames. Folio sizes before and PMD \
     mappings after are verified.",
    memory: |case| case.memory,
    work,
};

fn work(case: &Collapsing, mut subject: Subject) -> Result<Sample, Skip> {
    if !case.file {
        return by_kernel(subject);
    }
    subject.region.share().map_err(|error| Skip::because("memfd_create, ftruncate, mmap", error))?;
    subject.region.touch_all();
    timed(&subject, census::shared_pmd_mapped)
}
