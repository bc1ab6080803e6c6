//! One per-CPU list: arrays of folios that one context at a time uses.
//!
//! A list has an array of its own, its *home*, and at most one more, which stands in a free folio: a *magazine*
//! ([`super::magazine`]). One of the two is *loaded*: folios come and go at its end. The other is empty or full, so that
//! whoever goes to and fro about a full or an empty array only exchanges the two. Further full magazines are parked.
//!
//! # Invariants
//!
//! G1 and G2 stand in [`super::magazine`].
//!
//! G3. Every array of a list has as many slots as its home. A length and the opening never exceed that.

use core::ptr::NonNull;

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

/// Bytes of a slot.
const SLOT: u32 = size_of::<Slot>() as u32;

/// One list, on a cache line of its own.
#[repr(align(64))]
pub(super) struct FrameList {
    /// The first slot of the array at whose end folios come and go.
    loaded: AtomicPtr<Slot>,
    /// Bytes of its slots that are in use: a length that needs no multiplication.
    used: AtomicU32,
    /// Bytes of slots that the common path may use: all, or none while the level's lease is guarded or revoked. That it must be
    /// read to stay within the slots makes it the flag of the lease's protocol as well, for nothing.
    open: AtomicU32,
    /// Folios that this CPU handed out by the order and group of this list.
    pub(super) allocated: AtomicU64,
    /// Folios that left the loaded array otherwise than to an owner, less those that came otherwise than by a free. With
    /// it a free need not be counted: what came in is what went out and what is left.
    flow: AtomicI64,
    home: BootSlice<Slot>,
    /// The array that is not loaded: home if a magazine is, a magazine or none (null) otherwise.
    other: AtomicPtr<Slot>,
    /// Folios in it.
    other_len: AtomicU32,
    /// Folios to fetch at the next refill: doubles while refills follow each other, as in Linux since 6.7.
    pub(super) batch: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameList>() == 64);

impl FrameList {
    pub(super) fn new(home: BootSlice<Slot>, guarded: bool) -> Self {
        Self {
            loaded: AtomicPtr::new(home.as_slice().as_ptr().cast_mut()),
            used: AtomicU32::new(0),
            open: AtomicU32::new(if guarded { 0 } else { home.len() as u32 * SLOT }),
            allocated: AtomicU64::new(0),
            flow: AtomicI64::new(0),
            home,
            other: AtomicPtr::new(core::ptr::null_mut()),
            other_len: AtomicU32::new(0),
            batch: AtomicU32::new(4),
        }
    }

    /// Folios in the loaded array.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.used.load(Ordering::Relaxed) / SLOT) as usize
    }

    /// Folios in both arrays, and the one that a magazine stands in. Exact for the list's user; for others a hint.
    pub(super) fn cached(&self) -> usize {
        let other = self.other_len.load(Ordering::Relaxed) as usize;
        self.len() + other + usize::from(self.has_magazine())
    }

    /// Slots of each array.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.home.len()
    }

    /// Folios of a full magazine, the one that it stands in included.
    #[inline]
    pub(super) fn magazine_folios(&self) -> usize {
        self.capacity() + 1
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

    /// Takes the folio that came last off the loaded array, if it has one and is open, and says where its state stands.
    #[inline(always)]
    pub(super) fn pop_open(&self) -> Option<(Frame, &AtomicU8)> {
        // The flag first, as the lease's protocol wants it: whoever enters while the list is being emptied, and is held up
        // until it is open again, must not go by the length of before. And within the slots, as no more are open.
        let open = self.open.load(Ordering::Acquire);
        let last = self.used.load(Ordering::Relaxed).wrapping_sub(SLOT);
        if last >= open {
            return None;
        }
        Some(self.take_slot(last))
    }

    /// As [`Self::pop_open`], open or not. The list is the caller's.
    pub(super) fn pop(&self) -> Option<(Frame, &AtomicU8)> {
        Some(self.take_slot(self.used.load(Ordering::Relaxed).checked_sub(SLOT)?))
    }

    #[inline(always)]
    fn take_slot(&self, last: u32) -> (Frame, &AtomicU8) {
        // SAFETY: G3: the slot is below a length or an opening, and both are at most the number of slots.
        let slot = unsafe { self.slot(last) };
        self.used.store(last, Ordering::Relaxed);
        (slot.frame(), slot.state())
    }

    /// Puts a folio at the end of the loaded array, if there is room and it is open.
    #[inline(always)]
    pub(super) fn push_open(&self, frame: Frame, state: &AtomicU8) -> bool {
        // The flag first, as in `pop_open`.
        let open = self.open.load(Ordering::Acquire);
        self.push_below(open, frame, state)
    }

    /// As [`Self::push_open`], open or not. The list is the caller's.
    pub(super) fn push(&self, frame: Frame, state: &AtomicU8) -> bool {
        self.push_below(self.capacity() as u32 * SLOT, frame, state)
    }

    #[inline(always)]
    fn push_below(&self, end: u32, frame: Frame, state: &AtomicU8) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        if used >= end {
            return false;
        }
        // SAFETY: G3, as above.
        unsafe { self.slot(used) }.set(frame, state);
        self.used.store(used + SLOT, Ordering::Relaxed);
        true
    }

    /// The slot of the loaded array that begins after so many bytes.
    ///
    /// # Safety
    /// There is one, and the list is the caller's.
    #[inline(always)]
    unsafe fn slot(&self, bytes: u32) -> &Slot {
        // SAFETY: G1: the array is the list's as long as it is loaded, and the list the caller's; the slot is part of it.
        unsafe { &*self.loaded.load(Ordering::Relaxed).byte_add(bytes as usize) }
    }

    /// Opens the list to the common path, or shuts it.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(if open { self.capacity() as u32 * SLOT } else { 0 }, Ordering::SeqCst);
    }

    /// Whether there is a magazine besides home.
    #[inline]
    fn has_magazine(&self) -> bool {
        !self.other.load(Ordering::Relaxed).is_null()
    }

    fn is_home_loaded(&self) -> bool {
        core::ptr::eq(self.loaded.load(Ordering::Relaxed), self.home.as_slice().as_ptr())
    }

    /// Whether the array that is not loaded has room, or no folio. The list is the caller's, as for all that follow.
    pub(super) fn other(&self) -> Other {
        match self.other_len.load(Ordering::Relaxed) as usize {
            _ if !self.has_magazine() => Other::None,
            len if len == self.capacity() => Other::Full,
            0 => Other::Empty,
            _ => Other::Partial,
        }
    }

    /// Exchanges the two arrays.
    pub(super) fn exchange(&self) {
        debug_assert!(self.has_magazine());
        let (loaded, len) = (self.loaded.load(Ordering::Relaxed), self.len());
        self.loaded.store(self.other.load(Ordering::Relaxed), Ordering::Relaxed);
        self.set_len(self.other_len.load(Ordering::Relaxed) as usize);
        self.other.store(loaded, Ordering::Relaxed);
        self.other_len.store(len as u32, Ordering::Relaxed);
    }

    /// Loads a magazine, empty or full; home, which was loaded, becomes the other array.
    pub(super) fn load(&self, magazine: Magazine, len: usize) {
        debug_assert!(!self.has_magazine());
        self.other.store(self.loaded.load(Ordering::Relaxed), Ordering::Relaxed);
        self.other_len.store(self.len() as u32, Ordering::Relaxed);
        self.loaded.store(magazine.0.as_ptr(), Ordering::Relaxed);
        self.set_len(len);
    }

    /// Takes the magazine off the list, with all that is in it: how many folios besides the one that it stands in. Home is
    /// loaded then.
    pub(super) fn unload(&self) -> Option<(Magazine, usize)> {
        if !self.has_magazine() {
            return None;
        }
        if !self.is_home_loaded() {
            self.exchange();
        }
        let magazine = NonNull::new(self.other.load(Ordering::Relaxed)).map(Magazine)?;
        let len = self.other_len.load(Ordering::Relaxed) as usize;
        self.other.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.other_len.store(0, Ordering::Relaxed);
        Some((magazine, len))
    }

    /// Changes how many folios the loaded array has, otherwise than by requests and frees.
    pub(super) fn set_len(&self, len: usize) {
        self.note_flow(self.len() as i64 - len as i64);
        self.used.store(len as u32 * SLOT, Ordering::Relaxed);
    }

    /// Counts folios that left the loaded array otherwise than to an owner (or came, when negative).
    pub(super) fn note_flow(&self, out: i64) {
        self.flow.store(self.flow.load(Ordering::Relaxed) + out, Ordering::Relaxed);
    }

    /// The folios in both arrays, and the one that a magazine stands in; for `validate`, at rest.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let of = |array: *mut Slot, len: usize| {
            // SAFETY: G1, G3: nobody uses the list meanwhile, and the array has that many slots.
            (0..len).map(move |at| unsafe { &*array.add(at) }.frame())
        };
        let (loaded, other) = (self.loaded.load(Ordering::Relaxed), self.other.load(Ordering::Relaxed));
        let magazine = if self.is_home_loaded() { other } else { loaded };
        let own = NonNull::new(magazine).map(|first| Magazine(first).own().0);
        of(loaded, self.len()).chain(of(other, self.other_len.load(Ordering::Relaxed) as usize)).chain(own)
    }
}

/// What the array that is not loaded has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Other {
    /// There is none.
    None,
    Empty,
    Partial,
    Full,
}

/// An array that stands in a free folio, by its first slot. The slot before that names the folio itself.
#[derive(Clone, Copy)]
pub(super) struct Magazine(NonNull<Slot>);

impl Magazine {
    /// The magazine in the free folio whose memory begins at `memory`.
    ///
    /// # Safety
    /// G1: the memory is 4 KiB or more, aligned, and the caller's as long as it uses the magazine.
    pub(super) unsafe fn at(memory: *mut u8) -> Self {
        // SAFETY: there is room for more than one slot, so what follows the first is not at null.
        Self(unsafe { NonNull::new_unchecked(memory.cast::<Slot>().add(1)) })
    }

    /// The slot before the first.
    fn head(&self) -> &Slot {
        // SAFETY: G1: it is part of the folio.
        unsafe { self.0.sub(1).as_ref() }
    }

    /// The folio that it stands in, and its state.
    pub(super) fn own(&self) -> (Frame, &AtomicU8) {
        (self.head().frame(), self.head().state())
    }

    /// Says which folio it stands in.
    pub(super) fn set_own(&self, frame: Frame, state: &AtomicU8) {
        self.head().set(frame, state);
    }

    /// Names another folio in the place of its own: while it is parked its own is known by where it is.
    pub(super) fn set_next(&self, next: Frame) {
        self.head().frame.store(next.0, Ordering::Relaxed);
    }

    /// The folios in its first `len` slots.
    pub(super) fn frames(&self, len: usize) -> impl Iterator<Item = Frame> + '_ {
        // SAFETY: G1, G3: the caller knows that there are so many.
        (0..len).map(|at| unsafe { self.0.add(at).as_ref() }.frame())
    }
}

/// Adds to a counter that only the running code changes.
#[inline(always)]
pub(super) fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
