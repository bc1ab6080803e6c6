//! Signals that were sent and not yet taken.

use alloc::collections::VecDeque;

use super::info::SigInfo;
use super::{SYNCHRONOUS, SignalSet, set_of};

/// The first signal of which several can wait (`SIGRTMIN` of the kernel).
const FIRST_QUEUED: u32 = 32;
/// The most that wait, as `RLIMIT_SIGPENDING` bounds it.
const MOST: usize = 1024;

/// Signals in the order in which they came.
#[derive(Default)]
pub struct Pending {
    set: SignalSet,
    infos: VecDeque<SigInfo>,
}

impl Pending {
    /// Which signals wait.
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Adds a signal. One of the standard signals that waits already is not added again, except a timer's, which goes on
    /// when its own is taken. Returns `false` if too many wait.
    pub fn add(&mut self, info: SigInfo) -> bool {
        let bit = set_of(info.signal);
        if info.signal < FIRST_QUEUED && self.set & bit != 0 && info.timer_number().is_none() {
            return true;
        }
        self.set |= bit;
        let room = self.infos.len() < MOST;
        if room {
            self.infos.push_back(info);
        }
        room
    }

    /// Takes a signal of the set: those of faults first, then by number.
    pub fn take(&mut self, wanted: SignalSet) -> Option<SigInfo> {
        let ready = self.set & wanted;
        if ready == 0 {
            return None;
        }
        let first = if ready & SYNCHRONOUS != 0 { ready & SYNCHRONOUS } else { ready };
        let signal = first.trailing_zeros() + 1;
        let at = self.infos.iter().position(|info| info.signal == signal);
        let info = at.and_then(|at| self.infos.remove(at)).unwrap_or(SigInfo::kernel(signal));
        if !self.infos.iter().any(|info| info.signal == signal) {
            self.set &= !set_of(signal);
        }
        Some(info)
    }

    /// Forgets signals.
    pub fn remove(&mut self, set: SignalSet) {
        self.set &= !set;
        self.infos.retain(|info| set & set_of(info.signal) == 0);
    }
}
