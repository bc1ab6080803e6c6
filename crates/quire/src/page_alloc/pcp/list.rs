//! One per-CPU list: arrays of folios that one context at a time uses.
//!
//! A list has an array of its own, its *home*, and at most one more, which stands in a free folio: a *magazine*
//! ([`super::parked`]). One of the two is *loaded*: folios come and go at its end. The other is empty or full, so
//! that a CPU that goes to and fro about a full or an empty array only exchanges the two. Further full magazines are
//! parked.
//!
//! An array's slots are a power of two, and it is aligned to its size; the first of them is its *head*, in which no folio
//! waits. So one pointer, the *cursor*, says which array is loaded, how many folios it has, and whether it is empty or
//! full: the low bits of where the next folio goes are those of slot 1, or none.
//!
//! # Invariants
//!
//! G1 and G2 stand in [`super::parked`].
//!
//! G3. Every array of a list has as many slots as its home, a power of two, and is aligned to their size. The cursor is at
//!     the slot behind the head, or after it, up to the array's end.

use core::ptr::NonNull;

use crate::addr::{Frame, Order};
use crate::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::memmap::BootSlice;

/// A folio on a list, and where its state stands, so that taking it needs no look into the memory map.
#[derive(Default)]
// What the checker of interleavings takes for an atomic is larger; the size must be a power of two all the same.
#[cfg_attr(loom, repr(align(128)))]
pub(crate) struct Slot {
    frame: AtomicU64,
    state: AtomicPtr<AtomicU8>,
}

impl Slot {
    #[inline(always)]
    pub(crate) fn frame(&self) -> Frame {
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
const SLOT: usize = size_of::<Slot>();
const _: () = assert!(SLOT.is_power_of_two());

/// One list, on a cache line of its own.
#[repr(align(64))]
pub(crate) struct FrameList {
    /// Where the next folio goes in the loaded array: behind the last.
    cursor: AtomicPtr<Slot>,
    /// The bits of an address that tell slots of an array apart; none while the level's lease is guarded or revoked, which
    /// makes the list look empty and full to the common path. That it must be read to stay within the slots makes it the
    /// flag of the lease's protocol as well, for nothing.
    open: AtomicU32,
    /// Folios in the array that is not loaded.
    other_len: AtomicU32,
    /// Folios that this CPU handed out by the order and group of this list.
    pub(crate) allocated: AtomicU64,
    /// Folios that left the loaded array otherwise than to an owner, less those that came otherwise than by a free. With
    /// it a free need not be counted: what came in is what went out and what is left.
    flow: AtomicI64,
    home: BootSlice<Slot>,
    /// The head of the array that is not loaded: home if a magazine is, a magazine or none (null) otherwise.
    other: AtomicPtr<Slot>,
    /// Folios to fetch at the next refill: doubles while refills follow each other, as in Linux since 6.7.
    pub(crate) batch: AtomicU32,
}

impl FrameList {
    /// A list over a home of no slots, or of a power of two that it is aligned to.
    pub(crate) fn new(home: BootSlice<Slot>, guarded: bool) -> Self {
        let head = home.as_slice().as_ptr().cast_mut();
        let list = Self {
            cursor: AtomicPtr::new(head.wrapping_add(1)),
            open: AtomicU32::new(0),
            other_len: AtomicU32::new(0),
            allocated: AtomicU64::new(0),
            flow: AtomicI64::new(0),
            home,
            other: AtomicPtr::new(core::ptr::null_mut()),
            batch: AtomicU32::new(4),
        };
        debug_assert!(head.addr() & list.mask() == 0 && (list.mask() + 1).is_power_of_two());
        list.set_open(!guarded);
        list
    }

    /// The bits of an address that tell slots of an array apart.
    #[inline]
    fn mask(&self) -> usize {
        (self.home.len() * SLOT).saturating_sub(1)
    }

    /// The head of the loaded array.
    fn loaded(&self) -> *mut Slot {
        self.cursor.load(Ordering::Relaxed).wrapping_sub(1).map_addr(|last| last & !self.mask())
    }

    /// Folios in the loaded array.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let last = self.cursor.load(Ordering::Relaxed).wrapping_sub(1);
        (last.addr() & self.mask()) / SLOT
    }

    /// Folios in both arrays, and the one that a magazine stands in. Exact for the list's user; for others a hint.
    pub(crate) fn cached(&self) -> usize {
        let other = self.other_len.load(Ordering::Relaxed) as usize;
        self.len() + other + usize::from(self.has_magazine())
    }

    /// Folios that each array has room for.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.home.len().saturating_sub(1)
    }

    /// Folios of a full magazine, the one that it stands in included.
    #[inline]
    pub(crate) fn magazine_folios(&self) -> usize {
        self.capacity() + 1
    }

    /// Frames of a full magazine of folios of this order.
    pub(crate) fn magazine_frames(&self, order: Order) -> u64 {
        (self.magazine_folios() as u64) << order.get()
    }

    /// Folios that were handed out from the list so far.
    pub(crate) fn handed_out(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Folios that were freed onto the list so far.
    pub(crate) fn freed(&self) -> u64 {
        let out = self.allocated.load(Ordering::Relaxed) + self.len() as u64;
        out.wrapping_add_signed(self.flow.load(Ordering::Relaxed))
    }

    /// Takes the folio that came last off the loaded array, if it has one and is open, and says where its state stands.
    #[inline(always)]
    pub(crate) fn pop_open(&self) -> Option<(Frame, &AtomicU8)> {
        // The flag first, as the lease's protocol wants it: code that enters while the list is being emptied, and is
        // held up until it is open again, must not go by the cursor of before.
        let open = self.open.load(Ordering::Acquire) as usize;
        self.pop_within(open)
    }

    /// As [`Self::pop_open`], open or not. The list is the caller's.
    pub(crate) fn pop(&self) -> Option<(Frame, &AtomicU8)> {
        self.pop_within(self.mask())
    }

    #[inline(always)]
    fn pop_within(&self, bits: usize) -> Option<(Frame, &AtomicU8)> {
        let last = self.cursor.load(Ordering::Relaxed).wrapping_sub(1);
        if last.addr() & bits == 0 {
            return None;
        }
        self.cursor.store(last, Ordering::Relaxed);
        // SAFETY: G1, G3: the list is the caller's and with it the loaded array; the cursor was beyond the slot behind the
        // head, so that the one before it is a slot.
        let slot = unsafe { &*last };
        Some((slot.frame(), slot.state()))
    }

    /// Puts a folio at the end of the loaded array, if there is room and it is open.
    #[inline(always)]
    pub(crate) fn push_open(&self, frame: Frame, state: &AtomicU8) -> bool {
        // The flag first, as in `pop_open`.
        let open = self.open.load(Ordering::Acquire) as usize;
        self.push_within(open, frame, state)
    }

    /// As [`Self::push_open`], open or not. The list is the caller's.
    pub(crate) fn push(&self, frame: Frame, state: &AtomicU8) -> bool {
        self.push_within(self.mask(), frame, state)
    }

    #[inline(always)]
    fn push_within(&self, bits: usize, frame: Frame, state: &AtomicU8) -> bool {
        let cursor = self.cursor.load(Ordering::Relaxed);
        if cursor.addr() & bits == 0 {
            return false;
        }
        // SAFETY: G1, G3: the list is the caller's and with it the loaded array; the cursor is not at its end.
        unsafe { &*cursor }.set(frame, state);
        self.cursor.store(cursor.wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Opens the list to the common path, or shuts it.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(if open { self.mask() as u32 } else { 0 }, Ordering::SeqCst);
    }

    /// Whether there is a magazine besides home.
    #[inline]
    fn has_magazine(&self) -> bool {
        !self.other.load(Ordering::Relaxed).is_null()
    }

    fn is_home_loaded(&self) -> bool {
        core::ptr::eq(self.loaded(), self.home.as_slice().as_ptr())
    }

    /// Whether the array that is not loaded has room, or no folio. The list is the caller's, as for all that follow.
    pub(crate) fn other(&self) -> Other {
        match self.other_len.load(Ordering::Relaxed) as usize {
            _ if !self.has_magazine() => Other::None,
            len if len == self.capacity() => Other::Full,
            0 => Other::Empty,
            _ => Other::Partial,
        }
    }

    /// Exchanges the two arrays.
    pub(crate) fn exchange(&self) {
        debug_assert!(self.has_magazine());
        self.put_aside(self.other.load(Ordering::Relaxed), self.other_len.load(Ordering::Relaxed) as usize);
    }

    /// Loads a magazine, empty or full; home, which was loaded, becomes the other array.
    pub(crate) fn load(&self, magazine: Magazine, len: usize) {
        debug_assert!(!self.has_magazine());
        self.put_aside(magazine.0.as_ptr(), len);
    }

    /// Loads an array with `len` folios by its head, and makes the one that was loaded the other.
    fn put_aside(&self, head: *mut Slot, len: usize) {
        let (loaded, loaded_len) = (self.loaded(), self.len());
        self.note_flow(loaded_len as i64 - len as i64);
        self.cursor.store(head.wrapping_add(1 + len), Ordering::Relaxed);
        self.other.store(loaded, Ordering::Relaxed);
        self.other_len.store(loaded_len as u32, Ordering::Relaxed);
    }

    /// Takes the magazine off the list, with all that is in it: how many folios besides the one that it stands in. Home is
    /// loaded then.
    pub(crate) fn unload(&self) -> Option<(Magazine, usize)> {
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

    /// Counts folios that left the loaded array otherwise than to an owner (or came, when negative).
    pub(crate) fn note_flow(&self, out: i64) {
        self.flow.store(self.flow.load(Ordering::Relaxed) + out, Ordering::Relaxed);
    }

    /// The folios in both arrays, and the one that a magazine stands in; for `validate`, at rest.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let of = |head: *mut Slot, len: usize| {
            // SAFETY: G1, G3: the caller has the list's lease, or has revoked it, and the array has that many slots
            // besides its head.
            (0..len).map(move |at| unsafe { &*head.add(1 + at) }.frame())
        };
        let (loaded, other) = (self.loaded(), self.other.load(Ordering::Relaxed));
        let magazine = if self.is_home_loaded() { other } else { loaded };
        let own = NonNull::new(magazine).map(|head| Magazine(head).own().0);
        of(loaded, self.len()).chain(of(other, self.other_len.load(Ordering::Relaxed) as usize)).chain(own)
    }
}

/// What the array that is not loaded has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Other {
    /// There is none.
    None,
    Empty,
    Partial,
    Full,
}

/// An array that stands in a free folio, by its head, which names the folio itself.
#[derive(Clone, Copy)]
pub(crate) struct Magazine(NonNull<Slot>);

impl Magazine {
    /// The magazine in the free folio whose memory begins at `memory`.
    ///
    /// # Safety
    /// G1: the memory is 4 KiB or more, aligned, and the caller's as long as it uses the magazine.
    pub(crate) unsafe fn at(memory: *mut u8) -> Self {
        // SAFETY: G1: memory is not at null.
        Self(unsafe { NonNull::new_unchecked(memory.cast()) })
    }

    fn head(&self) -> &Slot {
        // SAFETY: G1: it is part of the folio.
        unsafe { self.0.as_ref() }
    }

    /// The folio that it stands in, and its state.
    pub(crate) fn own(&self) -> (Frame, &AtomicU8) {
        (self.head().frame(), self.head().state())
    }

    /// Says which folio it stands in.
    pub(crate) fn set_own(&self, frame: Frame, state: &AtomicU8) {
        self.head().set(frame, state);
    }

    /// Names another folio in the place of its own: while it is parked its own is known by where it is.
    pub(crate) fn set_next(&self, next: Frame) {
        self.head().frame.store(next.0, Ordering::Relaxed);
    }

    /// The first `len` folios in it.
    pub(crate) fn frames(&self, len: usize) -> impl Iterator<Item = Frame> + '_ {
        // SAFETY: G1, G3: the caller knows that there are so many.
        (0..len).map(|at| unsafe { self.0.add(1 + at).as_ref() }.frame())
    }
}

/// Adds to a counter that only the running code changes.
#[inline(always)]
pub(crate) fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
