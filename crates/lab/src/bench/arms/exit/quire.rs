//! Quire's exit of an address space, on a hosted machine.

use std::time::Instant;

use quire::platform::Platform;
use quire::vm::Mm;

use super::EMPTY;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours;
use crate::bench::ours::verbs::{Subject, Verb};

/// `Mm::exit` of an address space that one CPU runs.
pub(super) struct Exit;

impl Verb for Exit {
    type Case = Memory;

    const ABOUT: &'static str = "Mm::exit on a bare hosted machine: it frees leaves by folio, tables, \
     mappings and frames, without a flush. No process, no system call, no LRU, no cgroup; `empty` is the \
     same with an untouched mapping.";

    fn memory(memory: &Memory) -> Memory {
        *memory
    }

    fn with_memory(_: &Memory, memory: Memory) -> Option<Memory> {
        Some(memory)
    }

    fn work<P: Platform>(memory: &Memory, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let counted = subject.counted();
        let Subject { mm, manager, pages, .. } = subject;
        let ((), time) = counted.timed(|| mm.exit())?;
        let sample = counted.sample(time, pages);
        match manager.meminfo() {
            left if left.anon + left.page_tables == 0 => {}
            left => {
                return Err(Skip(format!(
                    "{} pages and {} page tables are left",
                    left.anon, left.page_tables
                )));
            }
        }
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        ours::map(&mm, memory.bytes)?;
        Ok(sample.metric(EMPTY, exit(mm)))
    }
}

/// Exits; returns the nanoseconds.
fn exit<P: Platform>(mm: Mm<'_, P>) -> f64 {
    let start = Instant::now();
    mm.exit();
    start.elapsed().as_nanos() as f64
}
