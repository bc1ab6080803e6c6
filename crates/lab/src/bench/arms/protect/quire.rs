//! Quire's `mprotect`, on a hosted machine.

use quire::arch::Protection;
use quire::platform::Platform;

use super::{BACK, READ_ONLY};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::START;
use crate::bench::ours::counted::Counted;
use crate::bench::ours::verbs::{Subject, Verb};

/// `Mm::mprotect` of an address space that one CPU runs, read-only and back.
pub(super) struct Protect;

impl Verb for Protect {
    type Case = Memory;

    const ABOUT: &'static str = "two calls of Mm::mprotect on a bare hosted machine: mappings, every entry, \
     one flush of the modelled CPU. No system call.";

    fn memory(memory: &Memory) -> Memory {
        *memory
    }

    fn with_memory(_: &Memory, memory: Memory) -> Option<Memory> {
        Some(memory)
    }

    fn work<P: Platform>(memory: &Memory, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let read_only = protect(&counted, &subject, memory, Protection::READ)?;
        let writable = subject.machine.leaves(subject.mm.root()).iter().any(|leaf| leaf.write);
        let back = protect(&counted, &subject, memory, Protection::READ | Protection::WRITE)?;
        if writable {
            return Err(Skip("a page can be written while it is read-only".to_owned()));
        }
        let sample =
            counted.sample(read_only + back, subject.pages).metric(READ_ONLY, read_only).metric(BACK, back);
        let leaves = subject.machine.leaves(subject.mm.root());
        let writable = leaves.iter().filter(|leaf| leaf.write).map(|leaf| leaf.frames).sum();
        subject.expect_mapped(subject.pages)?;
        Ok(sample.count("writable_without_a_fault", writable))
    }
}

fn protect<P: Platform>(
    counted: &Counted<'_, '_, P>,
    subject: &Subject<'_, '_, P>,
    memory: &Memory,
    prot: Protection,
) -> Result<f64, Skip> {
    let (outcome, time) = counted.timed(|| subject.mm.mprotect(START, memory.bytes as u64, prot))?;
    outcome.map_err(|error| Skip::because("mprotect", error)).map(|()| time)
}
