//! The signal of the timers, and its mask.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// The signal of the timers. No other part of a process counts virtual time by it nowadays.
pub(crate) const TICK: Signal = Signal::SIGVTALRM;

/// Lets ticks of other timers in while a tick is being handled, until dropped.
pub(super) struct TicksIn(Option<SigSet>);

impl TicksIn {
    pub(super) fn open() -> Self {
        let tick = SigSet::from_iter([TICK]);
        Self(tick.thread_swap_mask(SigmaskHow::SIG_UNBLOCK).ok())
    }
}

impl Drop for TicksIn {
    fn drop(&mut self) {
        // It cannot fail for a mask that the host gave.
        let _ = self.0.as_ref().map(SigSet::thread_set_mask);
    }
}
