//! Our own `MADV_COLLAPSE`, on a hosted machine.

use quire::platform::Platform;
use quire::stats::Stat;

use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::START;
use crate::bench::ours::verbs::{Subject, Verb};

/// What is counted beside the usual.
const COUNTED: &[Stat] = &[
    Stat::ThpCollapseAlloc,
    Stat::ThpCollapseCopied,
    Stat::ThpCollapseShape,
    Stat::ThpCollapsePages,
    Stat::ThpCollapseRecopied,
];

/// `Mm::collapse` of an address space that one CPU runs.
pub(super) struct Collapse;

impl Verb for Collapse {
    type Case = Memory;

    const ABOUT: &'static str = "Mm::collapse on a bare hosted machine: folios of 2 MiB, copying, page tables, map counts, two flushes of the modelled \
            CPU for each 2 MiB, and giving the old frames back. No system call, no reverse map, no LRU, no cgroup.";

    const CLEARING: bool = true;

    fn memory(memory: &Memory) -> Memory {
        *memory
    }

    fn with_memory(_: &Memory, _: Memory) -> Option<Memory> {
        None
    }

    fn work<P: Platform>(memory: &Memory, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let before = COUNTED.iter().map(|&stat| subject.manager.stat(stat)).collect::<Vec<_>>();
        let (report, time) = counted.timed(|| subject.mm.collapse(START, memory.bytes as u64))?;
        let report = report.map_err(|error| Skip::because("collapse", error))?;
        let sample = counted.sample(time, subject.pages);
        if report.collapsed() != memory.bytes as u64 >> 21 {
            return Err(Skip(format!("some memory was not collapsed: {report:?}")));
        }
        subject.expect_mapped(subject.pages)?;
        let named = COUNTED.iter().zip(before);
        Ok(named.fold(sample, |sample, (&stat, before)| {
            sample.count(stat.name(), subject.manager.stat(stat) - before)
        }))
    }
}
