//! Quire's `MADV_DONTNEED`, on a hosted machine.

use quire::platform::Platform;
use quire::vm::Advice;

use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::START;
use crate::bench::ours::verbs::{Subject, Verb};

/// `Mm::madvise` of an address space that one CPU runs.
pub(super) struct DontNeed;

impl Verb for DontNeed {
    type Case = Memory;

    const ABOUT: &'static str = "Mm::madvise(DontNeed) on a bare hosted machine; it detaches emptied tables, \
     as munmap does. No system call, no LRU, no cgroup; the memory is populated without touching or clearing \
     it.";

    fn memory(memory: &Memory) -> Memory {
        *memory
    }

    fn with_memory(_: &Memory, memory: Memory) -> Option<Memory> {
        Some(memory)
    }

    fn work<P: Platform>(memory: &Memory, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let verb = || subject.mm.madvise(START, memory.bytes as u64, Advice::DontNeed);
        let (outcome, time) = counted.timed(verb)?;
        outcome.map_err(|error| Skip::because("madvise", error))?;
        let sample = counted.sample(time, subject.pages);
        subject.expect_mapped(0)?;
        Ok(sample)
    }
}
