//! Our own `munmap`, on a hosted machine.

use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours;
use crate::bench::ours::verbs::{Subject, Verb};

/// `Mm::munmap` of an address space that one CPU runs.
pub(super) static UNMAP: Verb<Memory> = Verb {
    about: "Mm::munmap on a bare hosted machine: mappings, whole tables detached by one exchange, one flush of the modelled \
            CPU that runs the address space, map counts, frames back to the store. No system call, no LRU, no cgroup, no \
            reverse map for anonymous folios yet. Its memory is populated without being touched (nothing is cleared).",
    memory: |memory| *memory,
    clearing: false,
    work,
};

fn work(memory: &Memory, subject: Subject<'_, '_>) -> Result<Sample, Skip> {
    let counted = subject.counted();
    let time = ours::unmap(&subject.mm, memory.bytes)?;
    let sample = counted.sample(time, subject.pages);
    subject.expect_mapped(0)?;
    Ok(sample)
}
