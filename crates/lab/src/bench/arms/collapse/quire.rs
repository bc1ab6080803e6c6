//! Quire's `MADV_COLLAPSE`, on a hosted machine.

use quire::arch::Protection;
use quire::platform::Platform;
use quire::stats::Stat;
use quire::vm::{Access, Backing, MapRequest, Placement, Sharing};

use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::memory::Memory;
use crate::bench::ours::START;
use crate::bench::ours::verbs::{self, Subject, Verb};

use super::Collapsing;

/// Counters beyond the usual ones.
const COUNTED: &[Stat] = &[
    Stat::ThpCollapseAlloc,
    Stat::ThpCollapseCopied,
    Stat::ThpCollapseFile,
    Stat::ThpCollapseShape,
    Stat::ThpCollapsePages,
    Stat::ThpCollapseRecopied,
];

/// `Mm::collapse` of an address space that one CPU runs.
pub(super) struct Collapse;

impl Verb for Collapse {
    type Case = Collapsing;

    const ABOUT: &'static str = "Mm::collapse on a bare hosted machine: for each 2 MiB it copies into a new \
     folio, flushes the modelled CPU twice and frees the old frames. No system call, no reverse map, no LRU, \
     no cgroup.";

    const CLEARING: bool = true;

    fn memory(case: &Collapsing) -> Memory {
        case.memory
    }

    fn with_memory(_: &Collapsing, _: Memory) -> Option<Collapsing> {
        None
    }

    fn work<P: Platform>(case: &Collapsing, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let memory = &case.memory;
        if case.file {
            share(memory, &subject)?;
        }
        let counted = subject.counted();
        let before = COUNTED.iter().map(|&stat| subject.manager.stat(stat)).collect::<Vec<_>>();
        let (report, time) = counted.timed(|| subject.mm.collapse(START, memory.bytes as u64))?;
        let report = report.map_err(|error| Skip::because("collapse", error))?;
        let sample = counted.sample(time, subject.pages);
        if report.collapsed() != memory.bytes as u64 >> 21 {
            return Err(Skip(format!("some memory was not collapsed: {report:?}")));
        }
        if case.file {
            let mapped = subject.mm.rss().shmem;
            if mapped != subject.pages {
                return Err(Skip(format!("{mapped} pages are mapped where {} should be", subject.pages)));
            }
        } else {
            subject.expect_mapped(subject.pages)?;
        }
        let named = COUNTED.iter().zip(before);
        Ok(named.fold(sample, |sample, (&stat, before)| {
            sample.count(stat.name(), subject.manager.stat(stat) - before)
        }))
    }
}

/// Replaces the mapping by shared memory and writes to each of its pages.
fn share<P: Platform>(memory: &Memory, subject: &Subject<'_, '_, P>) -> Result<(), Skip> {
    let bytes = memory.bytes as u64;
    subject.mm.munmap(START, bytes).map_err(|error| Skip::because("munmap", error))?;
    let file = subject.manager.shmem(bytes).map_err(|error| Skip::because("shmem", error))?;
    let request = MapRequest {
        addr: START,
        len: bytes,
        prot: Protection::READ.union(Protection::WRITE),
        placement: Placement::Fixed,
        sharing: Sharing::Shared,
        backing: Backing::File { file: &file, page_offset: 0 },
        ..MapRequest::default()
    };
    subject.mm.mmap(&request).map_err(|error| Skip::because("mmap", error))?;
    for page in 0..memory.pages() {
        let at = verbs::at(page * PAGE);
        subject
            .mm
            .fault(at, Access::Write)
            .map_err(|error| Skip(format!("fault at {:#x}: {error}", at.0)))?;
    }
    Ok(())
}
