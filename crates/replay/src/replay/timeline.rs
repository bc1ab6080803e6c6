//! Memory over the recorded time, in equal steps: for `quire advise`.

use hosted::Hosted;
use quire::manager::MemoryManager;
use serde::Serialize;

use super::memory::records;
use super::verb::PAGE;

/// Steps of one replay.
pub(crate) const STEPS: u64 = 48;

/// The most memory in one step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sample {
    /// Private, shared and file pages, and page tables.
    pub(crate) resident: u64,
    /// Page tables alone.
    pub(crate) page_tables: u64,
}

impl Sample {
    fn most(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            page_tables: self.page_tables.max(other.page_tables),
        }
    }
}

/// The steps so far.
pub(super) struct Timeline {
    first_ns: u64,
    span_ns: u64,
    /// Frames in use that no program has.
    held: u64,
    steps: Vec<Sample>,
}

impl Timeline {
    /// Those of a recording whose events have these first and last times, on a machine of which others hold so many frames.
    pub(super) const fn new((first_ns, last_ns): (u64, u64), held: u64) -> Self {
        Self { first_ns, span_ns: last_ns - first_ns + 1, held, steps: Vec::new() }
    }

    /// Looks at memory at the first event of each step. Returns how many steps have begun since the last event.
    pub(super) fn pass(&mut self, time_ns: u64, manager: &MemoryManager<'_, Hosted>) -> u64 {
        let passed = u128::from(time_ns.saturating_sub(self.first_ns)) * u128::from(STEPS);
        let step = (passed / u128::from(self.span_ns)).min(u128::from(STEPS) - 1) as usize;
        let begun = (step + 1).saturating_sub(self.steps.len());
        if begun > 0 {
            // Nothing happened in the steps between.
            let before = self.steps.last().copied().unwrap_or_default();
            self.steps.resize(step, before);
            self.steps.push(look(manager, self.held));
        }
        begun as u64
    }

    /// Looks at memory before some of it is freed.
    pub(super) fn before_release(&mut self, manager: &MemoryManager<'_, Hosted>) {
        if let Some(step) = self.steps.last_mut() {
            *step = step.most(look(manager, self.held));
        }
    }

    pub(super) fn end(self) -> Vec<Sample> {
        self.steps
    }
}

fn look(manager: &MemoryManager<'_, Hosted>, held: u64) -> Sample {
    let info = manager.meminfo();
    let resident = info.frames.used.saturating_sub(records(manager, &info) + held);
    Sample { resident: resident * PAGE, page_tables: info.page_tables * PAGE }
}
