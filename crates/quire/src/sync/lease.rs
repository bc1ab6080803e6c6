//! A CPU's lease on data that only it touches, and how another CPU revokes it.
//!
//! # The protocol
//!
//! The owner, pinned, *enters* before it touches the data and *leaves* afterwards: two plain stores and two
//! plain loads, no locked operation. Code that interrupts the owner in between finds the lease taken and must
//! do without the data; code on that CPU never waits for it.
//!
//! Another CPU *revokes*: it raises a flag, makes the owner's CPU execute a barrier
//! ([`FramePlatform::fence_cpus`]), and waits until the owner is not inside. The owner stores "taken" and
//! then loads the flag; the revoker stores the flag and then, after the barrier, loads "taken". Without a
//! barrier on the owner's side both could load the old value, since a store waits in the store buffer. The
//! revoker forces a barrier onto the owner's CPU. If it comes before the owner's store, the owner's load sees
//! the flag; if it comes after, the revoker sees the store. This is Dekker's algorithm with an asymmetric
//! fence (Dice, Huang, Yang: "Asymmetric Dekker synchronization", 2001; Linux: `membarrier`). Until the
//! revoker gives the lease back, the owner finds it revoked and does without.
//!
//! At most one CPU revokes at a time; a lock of the caller's ensures that.

use crate::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::platform::FramePlatform;

/// Another CPU has the data.
const REVOKED: u32 = 1;
/// Entering needs more than the lease: [`Lease::enter`] always refuses.
const GUARDED: u32 = 2;

/// The lease; the data is kept beside it.
pub struct Lease {
    taken: AtomicBool,
    gate: AtomicU32,
}

impl Lease {
    /// A free lease. With `guarded` only `enter_guarded` enters.
    pub fn new(guarded: bool) -> Self {
        Self { taken: AtomicBool::new(false), gate: AtomicU32::new(if guarded { GUARDED } else { 0 }) }
    }

    /// Takes the lease, unless it is taken or revoked. Only on the owner's CPU, pinned.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        self.enter_unless(u32::MAX)
    }

    /// As [`Self::enter`], after the caller has done what a guarded lease requires.
    #[inline(always)]
    pub(crate) fn enter_guarded(&self) -> bool {
        self.enter_unless(REVOKED)
    }

    /// Takes the lease unless it is taken. Insufficient alone: the data must have a flag of its own that says
    /// that the lease is neither guarded nor revoked, and that a revoker writes too, in sequentially
    /// consistent order. Before it touches anything, the caller reads this flag with acquire order, and
    /// leaves at once if the lease is shut.
    #[inline(always)]
    pub fn enter_open(&self) -> bool {
        if self.taken.load(Ordering::Relaxed) {
            return false;
        }
        self.taken.store(true, Ordering::Relaxed);
        owner_fence();
        true
    }

    #[inline(always)]
    fn enter_unless(&self, shut: u32) -> bool {
        if !self.enter_open() {
            return false;
        }
        let open = self.gate.load(Ordering::Acquire) & shut == 0;
        if !open {
            self.release();
        }
        open
    }

    /// Releases the lease.
    #[inline(always)]
    pub fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Whether the lease is guarded or revoked. In one total order with what a revoker does.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.gate.load(Ordering::SeqCst) != 0
    }

    /// Keeps the owner out from now on. After a barrier on its CPU, the revoker calls [`Self::wait_left`].
    pub fn revoke(&self) {
        self.gate.fetch_add(REVOKED, Ordering::SeqCst);
    }

    /// Waits until the owner is not inside. From then on the data is the caller's, until [`Self::give_back`].
    pub fn wait_left<P: FramePlatform>(&self, platform: &P) {
        while self.taken.load(Ordering::Acquire) {
            platform.relax();
        }
    }

    /// Lets the owner in again. The owner sees what the revoker did.
    pub fn give_back(&self) {
        self.gate.fetch_sub(REVOKED, Ordering::Release);
    }
}

/// The owner's side of the asymmetric fence: the CPU executes nothing, the compiler keeps the order. Under a
/// checker that knows no such fence it is a full one.
#[inline(always)]
fn owner_fence() {
    if cfg!(any(miri, loom)) {
        crate::atomic::fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}
