//! Our own `munmap`, on a hosted machine.

use quire::platform::Platform;

use super::Unmap;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{Subject, Verb, at};

/// `Mm::munmap` of an address space that one CPU runs.
pub(super) struct Munmap;

impl Verb for Munmap {
    type Case = Unmap;

    const ABOUT: &'static str = "Mm::munmap on a bare hosted machine: mappings, whole tables detached by one exchange, one flush of the modelled \
            CPU that runs the address space, map counts, frames back to the store. No system call, no LRU, no cgroup. The reverse map \
            of anonymous memory is a word for each folio, written when it is first mapped, and asks nothing here. The memory \
            is populated without being touched (nothing is cleared).";

    fn memory(case: &Unmap) -> Memory {
        case.memory
    }

    fn with_memory(case: &Unmap, memory: Memory) -> Unmap {
        let each = if case.each == case.memory.bytes { memory.bytes } else { case.each };
        Unmap { memory, each }
    }

    fn work<P: Platform>(case: &Unmap, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let (outcome, time) = counted.timed(|| {
            let calls = (0..case.memory.bytes).step_by(case.each);
            calls.map(|offset| subject.mm.munmap(at(offset), case.each as u64)).find(Result::is_err)
        })?;
        outcome.unwrap_or(Ok(())).map_err(|error| Skip::because("munmap", error))?;
        let sample = counted.sample(time, subject.pages);
        subject.expect_mapped(0)?;
        Ok(sample)
    }
}
