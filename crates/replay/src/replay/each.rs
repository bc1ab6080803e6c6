//! The memory of each process: the peak as `getrusage` counts it, and resident memory over time with its parts.

use std::collections::HashMap;

use hosted::Hosted;

use super::memory::Untouched;
use super::processes::Processes;
use super::verb::PAGE;
use crate::trace::PathId;

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The last program that it ran; `None` if its start is missing.
    pub(crate) program: Option<PathId>,
    /// The most resident bytes of all that it ran.
    pub(crate) peak: u64,
    /// The same of the last program alone.
    pub(crate) last_peak: u64,
    /// The first step of the recorded time at whose start it lived.
    pub(crate) first_step: u64,
    /// Resident bytes at the start of that step and of the following ones, while it lived.
    pub(crate) resident: Vec<u64>,
    /// The same of its page tables, and of private memory that it maps and no process has touched.
    pub(crate) page_tables: Vec<u64>,
    pub(crate) wasted: Vec<u64>,
}

/// All processes of a replay, in the order in which they were started.
#[derive(Default)]
pub(super) struct Each {
    /// The places of living ones, by number.
    living: HashMap<u32, usize>,
    all: Vec<Process>,
    steps: u64,
}

impl Each {
    /// Looks at all that live, at the start of so many steps.
    pub(super) fn look(
        &mut self,
        steps: u64,
        machine: &Hosted,
        processes: &Processes<'_>,
        untouched: &Untouched,
    ) {
        for pid in processes.pids() {
            let Some(key) = processes.key(pid) else { continue };
            let space = processes.get(key);
            let first_step = self.steps;
            let process = self.process(pid, space.parts.program);
            if process.resident.is_empty() {
                process.first_step = first_step;
            }
            let (root, wasted) = (space.mm.root(), untouched.each.get(&key).copied().unwrap_or(0));
            let seen = process.resident.len() + steps as usize;
            process.resident.resize(seen, space.mm.resident_frames() * PAGE);
            process.page_tables.resize(seen, machine.tables(root).len() as u64 * PAGE);
            process.wasted.resize(seen, wasted * PAGE);
        }
        self.steps += steps;
    }

    /// Notes a process that was forked, or starts a program.
    pub(super) fn started(&mut self, pid: u32) {
        self.process(pid, None);
    }

    /// Notes the most pages that an address space had which a process leaves. One that shared its parent's until it started a
    /// program has had those too, as Linux counts.
    pub(super) fn left(&mut self, pid: u32, program: Option<PathId>, pages: u64) {
        let process = self.process(pid, program);
        process.last_peak = pages * PAGE;
        process.peak = process.peak.max(process.last_peak);
    }

    /// Notes the end of a process, whose number may be reused.
    pub(super) fn ended(&mut self, pid: u32) {
        self.living.remove(&pid);
    }

    pub(super) fn end(self) -> Vec<Process> {
        self.all
    }

    fn process(&mut self, pid: u32, program: Option<PathId>) -> &mut Process {
        let all = &mut self.all;
        let place = *self.living.entry(pid).or_insert_with(|| {
            all.push(Process { pid, ..Process::default() });
            all.len() - 1
        });
        let process = &mut all[place];
        process.program = program.or(process.program);
        process
    }
}
