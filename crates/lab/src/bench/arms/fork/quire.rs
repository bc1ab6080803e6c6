//! Quire's `fork`, on a hosted machine.

use std::time::Instant;

use quire::platform::Platform;
use quire::vm::{Access, Mm};

use super::Fork;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::memory::Memory;
use crate::bench::ours;
use crate::bench::ours::verbs::{Subject, Verb, at};

pub(super) struct Forking;

impl Verb for Forking {
    type Case = Fork;

    const ABOUT: &'static str = "Mm::fork on a bare hosted machine, with the flush of the modelled CPU that \
     runs the parent; then one copying Mm::fault in the child for each page written. No process, no system \
     call, no trap, no cgroup; `empty` is a fork with an untouched mapping.";

    const CLEARING: bool = true;

    fn memory(case: &Fork) -> Memory {
        case.memory
    }

    fn with_memory(case: &Fork, memory: Memory) -> Option<Fork> {
        case.every.is_none().then_some(Fork { memory, ..*case })
    }

    fn work<P: Platform>(case: &Fork, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let (child, forked) = counted.timed(|| subject.mm.fork())?;
        let child = child.map_err(|error| Skip::because("fork", error))?;
        let writes = match case.every {
            Some(_) => {
                subject.mm.switch_out();
                child.switch_in();
                let (written, time) = counted.timed(|| first_writes(case, &child))?;
                written.map(|()| time)?
            }
            None => 0.0,
        };
        let written = case.written().count() as u64;
        let sample = counted.sample(forked + writes, subject.pages + written);
        let pages = subject.pages;
        match (subject.mm.rss().anon, child.rss().anon) {
            both if both == (pages, pages) => {}
            both => {
                return Err(Skip(format!(
                    "parent and child map {both:?} pages where each should map {pages}"
                )));
            }
        }
        let manager = subject.manager;
        drop((child, subject));
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        ours::map(&mm, case.memory.bytes)?;
        let start = Instant::now();
        let child = mm.fork();
        let empty = start.elapsed().as_nanos() as f64;
        child.map_err(|error| Skip::because("fork of nothing", error))?;
        Ok(case.metrics(sample, forked, writes, empty))
    }
}

/// Writes to the child's pages of the case.
fn first_writes<P: Platform>(case: &Fork, child: &Mm<'_, P>) -> Result<(), Skip> {
    for page in case.written() {
        let outcome = child.fault(at(page * PAGE), Access::Write);
        outcome.map_err(|error| Skip(format!("fault of page {page} in the child: {error}")))?;
    }
    Ok(())
}
