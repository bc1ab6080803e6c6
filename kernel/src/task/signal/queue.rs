//! Signals that were sent and not yet taken.

use alloc::collections::VecDeque;

use super::info::SigInfo;
use super::{SYNCHRONOUS, SignalSet, set_of};

/// The first signal of which several can wait (`SIGRTMIN` of the kernel).
pub const FIRST_QUEUED: u32 = 32;

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
    /// when its own is taken. Where `most` wait, what it says about its cause is not kept. Returns `false` if it is lost.
    pub fn add(&mut self, info: SigInfo, most: u64) -> bool {
        let bit = set_of(info.signal);
        if info.signal < FIRST_QUEUED && self.set & bit != 0 && info.timer_number().is_none() {
            return true;
        }
        let has_place = (self.infos.len() as u64) < most && self.infos.try_reserve(1).is_ok();
        if has_place {
            self.infos.push_back(info);
        } else if info.is_lost() {
            return false;
        }
        self.set |= bit;
        true
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
