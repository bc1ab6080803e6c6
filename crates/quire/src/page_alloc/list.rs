//! One per-CPU list: an array of folios that one context at a time uses.
//!
//! # Invariants
//!
//! G1 and G2 stand in [`super::magazine`].
//!
//! G3. A list's length and its opening never exceed the number of its slots.

use crate::addr::Frame;
use crate::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::memmap::BootSlice;

/// A folio on a list, and where its state stands, so that taking it needs no look into the memory map.
#[derive(Default)]
pub(super) struct Slot {
    frame: AtomicU64,
    state: AtomicPtr<AtomicU8>,
}

impl Slot {
    #[inline(always)]
    pub(super) fn frame(&self) -> Frame {
        Frame(self.frame.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn set(&self, frame: Frame, state: &AtomicU8) {
        self.frame.store(frame.0, Ordering::Relaxed);
        self.state.store(core::ptr::from_ref(state).cast_mut(), Ordering::Relaxed);
    }

    /// The state of the folio on the slot.
    #[inline(always)]
    fn state(&self) -> &AtomicU8 {
        // SAFETY: G2: the slot was set from a reference to the folio's state, which stays where it is as long as the
        // folio is on a list.
        unsafe { &*self.state.load(Ordering::Relaxed) }
    }
}

/// One list, on a cache line of its own.
#[repr(align(64))]
pub(super) struct FrameList {
    slots: BootSlice<Slot>,
    len: AtomicU32,
    /// Slots that the common path may use: all, or none while the level's lease is guarded or revoked. That it must be
    /// read to stay within the slots makes it the flag of the lease's protocol as well, for nothing.
    open: AtomicU32,
    /// Folios to fetch at the next refill: doubles while refills follow each other, as in Linux since 6.7.
    pub(super) batch: AtomicU32,
    /// Folios that this CPU handed out by the order and group of this list.
    pub(super) allocated: AtomicU64,
    /// Folios that left the list for the store or were parked, less those that came from there. With it a free need not be
    /// counted: what came in is what went out and what is left.
    flow: AtomicI64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameList>() == 64);

impl FrameList {
    pub(super) fn new(slots: BootSlice<Slot>, guarded: bool) -> Self {
        Self {
            slots,
            len: AtomicU32::new(0),
            open: AtomicU32::new(if guarded { 0 } else { slots.len() as u32 }),
            batch: AtomicU32::new(4),
            allocated: AtomicU64::new(0),
            flow: AtomicI64::new(0),
        }
    }

    /// Folios on the list.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// How many it can hold.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Folios that are parked, or given back, together.
    #[inline]
    pub(super) fn magazine(&self) -> usize {
        self.slots.len() / 2
    }

    /// Folios that were handed out from the list so far.
    pub(super) fn handed_out(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Folios that were freed onto the list so far.
    pub(super) fn freed(&self) -> u64 {
        let out = self.allocated.load(Ordering::Relaxed) + self.len() as u64;
        out.wrapping_add_signed(self.flow.load(Ordering::Relaxed))
    }

    /// Takes the folio that came last off the list, if it has one and is open, and says where its state stands.
    #[inline(always)]
    pub(super) fn pop_open(&self) -> Option<(Frame, &AtomicU8)> {
        // The flag first, as the lease's protocol wants it: whoever enters while the list is being emptied, and is held up
        // until it is open again, must not go by the length of before. And within the slots, as no more are open.
        let open = self.open.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed).wrapping_sub(1);
        if len >= open {
            return None;
        }
        self.take_slot(len)
    }

    /// As [`Self::pop_open`], open or not. The list is the caller's.
    pub(super) fn pop(&self) -> Option<(Frame, &AtomicU8)> {
        self.take_slot(self.len.load(Ordering::Relaxed).checked_sub(1)?)
    }

    #[inline(always)]
    fn take_slot(&self, at: u32) -> Option<(Frame, &AtomicU8)> {
        // SAFETY: G3: `at` is below a length or an opening, and both are at most the number of slots.
        let slot = unsafe { self.slots.as_slice().get_unchecked(at as usize) };
        self.len.store(at, Ordering::Relaxed);
        Some((slot.frame(), slot.state()))
    }

    /// Puts a folio onto the list, if there is room and it is open.
    #[inline(always)]
    pub(super) fn push_open(&self, frame: Frame, state: &AtomicU8) -> bool {
        // The flag first, as in `pop_open`.
        let open = self.open.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        if len >= open {
            return false;
        }
        // SAFETY: G3, as above.
        unsafe { self.slots.as_slice().get_unchecked(len as usize) }.set(frame, state);
        self.len.store(len + 1, Ordering::Relaxed);
        true
    }

    /// As [`Self::push_open`], open or not. The list is the caller's.
    pub(super) fn push(&self, frame: Frame, state: &AtomicU8) -> bool {
        let Some(slot) = self.slots.get(self.len()) else { return false };
        slot.set(frame, state);
        self.len.store(self.len() as u32 + 1, Ordering::Relaxed);
        true
    }

    /// Opens the list to the common path, or shuts it.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(if open { self.capacity() as u32 } else { 0 }, Ordering::SeqCst);
    }

    /// The slots, those in use first. The list is the caller's.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Changes how many slots are in use: folios went to the store or were parked, or came from there. The list is the
    /// caller's.
    pub(super) fn set_len(&self, len: usize) {
        self.note_flow(self.len() as i64 - len as i64);
        self.len.store(len as u32, Ordering::Relaxed);
    }

    /// Counts folios that went out, otherwise than to an owner (or came in, when negative).
    pub(super) fn note_flow(&self, out: i64) {
        self.flow.store(self.flow.load(Ordering::Relaxed) + out, Ordering::Relaxed);
    }

    /// The folios on the list; for `validate`, at rest.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.slots[..self.len()].iter().map(Slot::frame)
    }
}

/// Adds to a counter that only the running code changes.
#[inline(always)]
pub(super) fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
