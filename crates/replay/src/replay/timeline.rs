//! Memory over the recorded time, in equal steps: for `quire advise`.

use hosted::Hosted;
use quire::manager::MemoryManager;
use serde::Serialize;

use super::memory::records;
use super::verb::PAGE;

/// Steps of one replay.
pub(crate) const STEPS: u64 = 48;

/// Memory in one step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sample {
    /// The most of private, shared and file pages, and page tables.
    pub(crate) resident: u64,
    /// The most page tables.
    pub(crate) page_tables: u64,
    /// The private memory that no program has touched, when the step begins: to count it takes a look at every leaf.
    pub(crate) wasted: u64,
}

impl Sample {
    fn most(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            page_tables: self.page_tables.max(other.page_tables),
            wasted: self.wasted,
        }
    }
}

/// The steps so far.
pub(super) struct Timeline {
    first_ns: u64,
    span_ns: u128,
    /// Frames in use that no program has.
    held: u64,
    steps: Vec<Sample>,
    /// The step of the current event.
    step: usize,
}

impl Timeline {
    /// Those of a recording whose events have these first and last times, on a machine of which others hold so many frames.
    pub(super) fn new((first_ns, last_ns): (u64, u64), held: u64) -> Self {
        Self { first_ns, span_ns: u128::from(last_ns - first_ns) + 1, held, steps: Vec::new(), step: 0 }
    }

    /// Looks at memory before the first event of each step: the last step ends with it, and nothing changes
    /// it in the steps between. Returns how many these are.
    pub(super) fn before(&mut self, time_ns: u64, manager: &MemoryManager<'_, Hosted>) -> u64 {
        let passed = u128::from(time_ns.saturating_sub(self.first_ns)) * u128::from(STEPS);
        self.step = (passed / self.span_ns).min(u128::from(STEPS) - 1) as usize;
        let between = self.step.saturating_sub(self.steps.len());
        if self.step >= self.steps.len() {
            let now = look(manager, self.held);
            if let Some(last) = self.steps.last_mut() {
                *last = last.most(now);
            }
            self.steps.resize(self.step, now);
        }
        between as u64
    }

    /// Looks at memory behind the first event of each step. Returns whether this was one.
    pub(super) fn after(&mut self, manager: &MemoryManager<'_, Hosted>) -> bool {
        let begins = self.step == self.steps.len();
        if begins {
            self.steps.push(look(manager, self.held));
        }
        begins
    }

    /// Notes how many untouched pages there are when the last steps begin, so many of them.
    pub(super) fn wasted(&mut self, steps: u64, pages: u64) {
        self.steps.iter_mut().rev().take(steps as usize).for_each(|step| step.wasted = pages * PAGE);
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
    Sample { resident: resident * PAGE, page_tables: info.page_tables * PAGE, wasted: 0 }
}
