//! How many bytes a machine clears for the bytes that a program gets.

use hosted::Hosted;
use quire::addr::Frame;

use crate::bench::experiment::Counters;
use crate::bench::folio::PAGE;

/// The bytes that a machine had cleared at two moments.
pub struct Cleared {
    begun: u64,
    used: u64,
}

impl Cleared {
    /// Once a manager has the machine: it clears the page that all reads of fresh memory share.
    pub fn begin(machine: &Hosted) -> Self {
        let begun = machine.counters().bytes_cleared;
        Self { begun, used: begun }
    }

    /// Before the program gets memory. What was cleared until now was cleared ahead.
    pub fn before_use(&mut self, machine: &Hosted) {
        self.used = machine.counters().bytes_cleared;
    }

    /// The counts, with the bytes that leaves map under `root`.
    pub fn counts(&self, machine: &Hosted, root: Frame) -> Counters {
        let cleared = machine.counters().bytes_cleared - self.used;
        let frames: u64 = machine.leaves(root).iter().map(|leaf| leaf.frames).sum();
        let counts = [
            ("bytes_handed_out", frames * PAGE as u64),
            ("bytes_cleared", cleared),
            ("bytes_cleared_ahead", self.used - self.begun),
        ];
        counts.map(|(name, count)| (name.to_owned(), count)).into()
    }
}
