//! The machine's handling of rules that the memory manager breaks.

use super::hosted::Hosted;
use crate::config::OnViolation;
use crate::violation::Violation;

/// Violations kept in full; more are only counted.
const KEPT: usize = 1024;

impl Hosted {
    /// Records all of them.
    pub(crate) fn all_violated(&self, violations: impl IntoIterator<Item = Violation>) {
        violations.into_iter().for_each(|violation| self.violated(violation));
    }

    /// Records a broken rule; panics if the machine was built so.
    pub(crate) fn violated(&self, violation: Violation) {
        self.violations.with(|list, count| {
            *count += 1;
            if list.len() < KEPT {
                list.push(violation);
            }
        });
        // While one panic unwinds, a second would end the process and hide the first.
        if self.config.on_violation == OnViolation::Panic && !std::thread::panicking() {
            panic!("{violation}");
        }
    }

    /// The rules broken so far, the first 1024 of them.
    pub fn violations(&self) -> Vec<Violation> {
        self.violations.with(|list, _| list.clone())
    }

    /// Takes the list of rules broken so far.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.violations.with(|list, count| {
            *count = 0;
            std::mem::take(list)
        })
    }

    /// The number of rules broken so far.
    pub fn violation_count(&self) -> u64 {
        self.violations.with(|_, count| *count)
    }

    /// Checks that no rule was broken.
    ///
    /// # Panics
    /// With the first violation, if there is one.
    pub fn assert_clean(&self) {
        let (first, count) = self.violations.with(|list, count| (list.first().copied(), *count));
        if let Some(first) = first {
            panic!("{count} rules were broken; the first: {first}");
        }
    }
}
