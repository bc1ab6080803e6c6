//! What the machine says about memory that was cleared twice.

use quire::addr::FrameRange;
use quire::limits::FRAME_SIZE;

use super::hosted::Hosted;
use crate::cleared::{ClearedAgain, Ledger, is_zero};

impl Hosted {
    /// Counts a clear that comes next; returns its bytes.
    pub(crate) fn count_clear(&self, frames: FrameRange) -> u64 {
        let bytes = frames.count * FRAME_SIZE;
        self.own_counters().bytes_cleared.add(bytes);
        if let Some(ledger) = &self.ledger {
            ledger.cleared(&self.arena, frames);
        }
        bytes
    }

    /// The same for a copy to these frames.
    pub(crate) fn count_copy(&self, to: FrameRange) -> u64 {
        let bytes = to.count * FRAME_SIZE;
        self.own_counters().bytes_copied.add(bytes);
        self.count_store(to);
        bytes
    }

    /// Frames are stored to.
    pub(crate) fn count_store(&self, to: FrameRange) {
        if let Some(ledger) = &self.ledger {
            ledger.written(to);
        }
    }

    /// Memory is known to be zero, as firmware may promise it.
    ///
    /// # Panics
    /// When the frames are no memory of this machine.
    pub fn promise_zeroes(&self, frames: FrameRange) {
        assert!(self.arena.holds(frames), "{frames:?} is no memory of this machine");
        if let Some(ledger) = &self.ledger {
            ledger.set(frames);
        }
    }

    /// Frames that were cleared although they were still zero from an earlier clear, on a machine that
    /// [watches](crate::HostedConfig::watch_clears) them.
    pub fn frames_cleared_again(&self) -> u64 {
        self.ledger.as_ref().map_or(0, Ledger::again)
    }

    /// How many of these frames were cleared, or promised to be zero, and still are.
    pub fn frames_still_zero(&self, frames: FrameRange) -> u64 {
        let Some(ledger) = &self.ledger else { return 0 };
        // Whole blocks that the host has not populated are asked for once.
        let still = |run: FrameRange| {
            let populated = self.arena.is_populated(run.start.addr(), run.count * FRAME_SIZE);
            let zero = |frame| !populated || is_zero(&self.arena, frame);
            (run.start.0..run.end().0).filter(|&frame| ledger.is_set(frame) && zero(frame)).count() as u64
        };
        frames.by_block().map(still).sum()
    }

    /// Takes the list of frames that were cleared again, the first 256 runs of them, and puts their count to zero.
    pub fn take_cleared_again(&self) -> Vec<ClearedAgain> {
        self.ledger.as_ref().map_or_else(Vec::new, Ledger::take)
    }
}
