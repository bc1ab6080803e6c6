//! The signals of one task: those sent to it alone, its mask, and its stack for handlers.

use linux_raw_sys::general as abi;

use super::SignalSet;
use super::queue::Pending;
use crate::sync::Mutex;

/// A stack for handlers (`sigaltstack(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AltStack {
    /// Its lowest address.
    pub start: u64,
    /// Its size in bytes; 0 for none.
    pub bytes: u64,
    /// `SS_AUTODISARM`.
    pub flags: u32,
}

impl AltStack {
    /// Whether a handler may be running on it. While one runs on a stack with `SS_AUTODISARM`, the task has none.
    pub fn is_used(&self, stack_pointer: u64) -> bool {
        let is_inside = stack_pointer > self.start && stack_pointer - self.start <= self.bytes;
        is_inside && self.flags & abi::SS_AUTODISARM == 0
    }
}

/// What the lock guards.
#[derive(Default)]
pub struct Own {
    /// What was sent to the task.
    pub pending: Pending,
    /// What it blocks. The running task changes it by `super::send::change`.
    pub mask: SignalSet,
    /// What the call waits for in which it is (`sigtimedwait(2)`). None of it is ignored meanwhile.
    pub awaited: SignalSet,
    /// The mask to restore after a call that changed it for its duration (`sigsuspend(2)`, `ppoll(2)`).
    pub saved_mask: Option<SignalSet>,
    /// Its stack for handlers.
    pub alt_stack: AltStack,
}

impl Own {
    /// What the task takes when it is sent.
    pub fn takes(&self) -> SignalSet {
        !self.mask | self.awaited
    }

    /// Sets the mask for the duration of a call: it is restored once the call's signals are delivered.
    pub fn set_mask_for_call(&mut self, mask: SignalSet) {
        let old = core::mem::replace(&mut self.mask, mask);
        self.saved_mask.get_or_insert(old);
    }

    /// The call for which the mask was set has ended: the old one is restored.
    pub fn restore_mask(&mut self) {
        if let Some(old) = self.saved_mask.take() {
            self.mask = old;
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct OwnSignals(pub Mutex<Own>);

impl OwnSignals {
    /// A new task has its maker's mask, and its stack for handlers unless both run in one address space.
    pub fn inherit(&self, maker: &Self, is_thread: bool) {
        let (mask, alt_stack) = {
            let maker = maker.0.lock();
            (maker.mask, maker.alt_stack)
        };
        let mut own = self.0.lock();
        own.mask = mask;
        own.alt_stack = if is_thread { AltStack::default() } else { alt_stack };
    }

    /// A new program has no stack for handlers. Its mask and what is pending stay.
    pub fn reset_for_program(&self) {
        self.0.lock().alt_stack = AltStack::default();
    }

    /// What the task blocks.
    pub fn mask(&self) -> SignalSet {
        self.0.lock().mask
    }

    /// What the task blocks, and what it waits for.
    pub fn mask_and_awaited(&self) -> (SignalSet, SignalSet) {
        let own = self.0.lock();
        (own.mask, own.awaited)
    }
}
