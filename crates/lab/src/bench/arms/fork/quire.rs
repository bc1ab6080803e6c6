//! Our own `fork`, on a hosted machine.

use std::time::Instant;

use quire::platform::Platform;
use quire::vm::{Access, Mm};

use super::Fork;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::memory::Memory;
use crate::bench::ours;
use crate::bench::ours::verbs::{Subject, Verb, at};

/// `Mm::fork`, and `Mm::fault` in the child for each page that it writes to.
pub(super) struct Forking;

impl Verb for Forking {
    type Case = Fork;

    const ABOUT: &'static str = "Mm::fork on a bare hosted machine: mappings, page tables, map counts, the flush of the modelled CPU that runs the \
            parent; then in the child one Mm::fault for each page written to, copying included. No process, no system call, \
            no trap, no cgroup. `empty` is the fork of an address space with a mapping that was never touched.";

    const CLEARING: bool = true;

    fn memory(case: &Fork) -> Memory {
        case.memory
    }

    fn work<P: Platform>(case: &Fork, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let (child, forked) = fork(&subject.mm)?;
        let writes = if case.every.is_some() { first_writes(case, &subject.mm, &child)? } else { 0.0 };
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
        let (_child, empty) = fork(&mm)?;
        Ok(case.metrics(sample, forked, writes, empty))
    }
}

/// The child, and nanoseconds.
fn fork<'m, P: Platform>(mm: &Mm<'m, P>) -> Result<(Mm<'m, P>, f64), Skip> {
    let start = Instant::now();
    let child = mm.fork();
    let time = start.elapsed().as_nanos() as f64;
    child.map(|child| (child, time)).map_err(|error| Skip::because("fork", error))
}

/// Lets the child run and write to its pages; nanoseconds of the faults.
fn first_writes<P: Platform>(case: &Fork, parent: &Mm<'_, P>, child: &Mm<'_, P>) -> Result<f64, Skip> {
    parent.switch_out();
    child.switch_in();
    let start = Instant::now();
    for page in case.written() {
        let outcome = child.fault(at(page * PAGE), Access::Write);
        outcome.map_err(|error| Skip(format!("fault of page {page} in the child: {error}")))?;
    }
    Ok(start.elapsed().as_nanos() as f64)
}
