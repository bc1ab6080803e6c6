//! Our own `fork`, on a hosted machine.

use std::time::Instant;

use hosted::Bare;
use quire::vm::{Access, Mm};

use super::Fork;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours;
use crate::bench::ours::verbs::{Subject, Verb, at};

/// `Mm::fork`, and `Mm::fault` in the child for each page that it writes to.
pub(super) static FORK: Verb<Fork> = Verb {
    about: "Mm::fork on a bare hosted machine: mappings, page tables, map counts, the flush of the modelled CPU that runs the \
            parent; then in the child one Mm::fault for each page written to, copying included. No process, no system call, \
            no trap, no cgroup. `empty` is the fork of an address space with a mapping that was never touched.",
    memory: |case| case.memory,
    clearing: true,
    work,
};

fn work(case: &Fork, subject: Subject<'_, '_>) -> Result<Sample, Skip> {
    let counted = subject.counted();
    let (child, forked) = fork(&subject.mm)?;
    let mut sample = None;
    let mut writes = 0.0;
    let mut written = 0;
    match case.every {
        None => sample = Some(counted.sample(forked, subject.pages)),
        Some(_) => {
            subject.mm.switch_out();
            child.switch_in();
            let start = Instant::now();
            for page in case.written() {
                let outcome = child.fault(at(page * PAGE), Access::Write);
                outcome.map_err(|error| Skip(format!("fault of page {page} in the child: {error}")))?;
                written += 1;
            }
            writes = start.elapsed().as_nanos() as f64;
        }
    }
    let sample = sample.unwrap_or_else(|| counted.sample(forked + writes, subject.pages + written));
    let pages = subject.pages;
    match (subject.mm.rss().anon, child.rss().anon) {
        both if both == (pages, pages) => {}
        both => {
            return Err(Skip(format!("parent and child map {both:?} pages where each should map {pages}")));
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

/// The child, and nanoseconds.
fn fork<'m>(mm: &Mm<'m, Bare>) -> Result<(Mm<'m, Bare>, f64), Skip> {
    let start = Instant::now();
    let child = mm.fork();
    let time = start.elapsed().as_nanos() as f64;
    child.map(|child| (child, time)).map_err(|error| Skip::because("fork", error))
}
