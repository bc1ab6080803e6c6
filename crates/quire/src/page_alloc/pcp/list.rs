//! One per-CPU list: arrays of folios that one context at a time uses.
//!
//! A list owns one array, its *home*, and at most one more that stands in a free folio, a *magazine*
//! ([`super::parked`]). One of the two is *loaded*: folios are pushed and popped at its end. The other is
//! empty or full, so that a CPU whose loaded array runs full or empty exchanges the two. Others are parked.
//!
//! An array has a power of two of entries, and is aligned to its size. Entry 0, its *head*, has no folio to
//! allocate. So one pointer, the *cursor*, says which array is loaded, how many folios it has, and whether it
//! is full or empty: it points to the next free entry, and its low bits are entry 1's, or zero.
//!
//! # Invariants
//!
//! G1 and G2 stand in [`super::parked`].
//!
//! G3. Every array of a list has as many entries as its home, a power of two, and is aligned to their size. The
//!     cursor is at the entry after the head, or beyond it, up to the array's end.

use core::ptr::NonNull;

use crate::addr::{Frame, Order};
use crate::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::memmap::BootSlice;
use crate::sync::Lease;

/// A folio on a list and the address of its state, so that a pop needs no look into the memory map.
#[derive(Default)]
// Under loom atomics are larger; the size must be a power of two all the same.
#[cfg_attr(loom, repr(align(128)))]
pub(crate) struct ListEntry {
    frame: AtomicU64,
    state: AtomicPtr<AtomicU8>,
}

impl ListEntry {
    #[inline(always)]
    pub(crate) fn frame(&self) -> Frame {
        Frame(self.frame.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn set(&self, frame: Frame, state: &AtomicU8) {
        self.frame.store(frame.0, Ordering::Relaxed);
        self.state.store(core::ptr::from_ref(state).cast_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn state(&self) -> &AtomicU8 {
        // SAFETY: G2: the entry was set from a reference to the state, which stays while the folio is listed.
        unsafe { &*self.state.load(Ordering::Relaxed) }
    }
}

const SLOT: usize = size_of::<ListEntry>();
const _: () = assert!(SLOT.is_power_of_two());

/// One list, on a cache line of its own.
#[repr(align(64))]
pub(crate) struct FrameList {
    /// The next free entry of the loaded array.
    cursor: AtomicPtr<ListEntry>,
    /// The address bits that differ between entries of an array; zero while the list is *shut*, which makes it
    /// look empty and full to the common path. The common path must read the mask anyway, so it serves as the
    /// flag of the lease's protocol at no cost. A list is shut while its level's lease is guarded or revoked,
    /// and from then on until the slow path puts a folio onto it.
    open: AtomicU32,
    /// Folios in the other array.
    other_len: AtomicU32,
    /// Folios that this CPU allocated from this list.
    pub(crate) allocated: AtomicU64,
    /// Folios that left the loaded array other than by an allocation, less those that entered it other than
    /// by a free. So frees need no counter: they are allocations, plus this flow, plus the array's folios.
    flow: AtomicI64,
    home: BootSlice<ListEntry>,
    /// The head of the other array: home if a magazine is loaded, else a magazine or null.
    other: AtomicPtr<ListEntry>,
    /// Folios to fetch at the next refill: doubles while refills follow each other, as in Linux since 6.7.
    pub(crate) batch: AtomicU32,
}

impl FrameList {
    /// A shut list whose home has no entries, or a power of two to whose size it is aligned.
    pub(crate) fn new(home: BootSlice<ListEntry>) -> Self {
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
        list
    }

    /// The address bits that differ between entries of an array.
    #[inline]
    fn mask(&self) -> usize {
        (self.home.len() * SLOT).saturating_sub(1)
    }

    fn loaded(&self) -> *mut ListEntry {
        self.cursor.load(Ordering::Relaxed).wrapping_sub(1).map_addr(|last| last & !self.mask())
    }

    /// Folios in the loaded array.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let last = self.cursor.load(Ordering::Relaxed).wrapping_sub(1);
        (last.addr() & self.mask()) / SLOT
    }

    /// Folios in both arrays, plus the one that a magazine stands in. Exact for the list's user, else a hint.
    pub(crate) fn cached(&self) -> usize {
        let other = self.other_len.load(Ordering::Relaxed) as usize;
        self.len() + other + usize::from(self.has_magazine())
    }

    /// Folios that fit in each array.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.home.len().saturating_sub(1)
    }

    /// Folios of a full magazine, with the one that it stands in.
    #[inline]
    pub(crate) fn magazine_folios(&self) -> usize {
        self.capacity() + 1
    }

    /// Frames of a full magazine of folios of this order.
    pub(crate) fn magazine_frames(&self, order: Order) -> u64 {
        (self.magazine_folios() as u64) << order.get()
    }

    pub(crate) fn handed_out(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    pub(crate) fn freed(&self) -> u64 {
        let out = self.allocated.load(Ordering::Relaxed) + self.len() as u64;
        out.wrapping_add_signed(self.flow.load(Ordering::Relaxed))
    }

    /// Pops the last folio off the loaded array, with its state, if there is one and the list is open.
    #[inline(always)]
    pub(crate) fn pop_open(&self) -> Option<(Frame, &AtomicU8)> {
        // The lease's protocol reads the flag before the cursor: code that enters while the list is being
        // emptied, and is delayed until it is open again, must not use the old cursor.
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
        // SAFETY: G1, G3: the list and its loaded array are the caller's; the cursor was beyond the entry
        // after the head, so the one before it is an entry.
        let slot = unsafe { &*last };
        Some((slot.frame(), slot.state()))
    }

    /// Pushes a folio onto the loaded array, if it has a free entry and the list is open.
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

    /// As [`Self::push`], for folios that all have a free entry in the loaded array.
    #[inline(always)]
    pub(crate) fn push_all<'s>(&self, folios: impl Iterator<Item = (Frame, &'s AtomicU8)>) {
        let (mut cursor, bits) = (self.cursor.load(Ordering::Relaxed), self.mask());
        for (frame, state) in folios {
            if cursor.addr() & bits == 0 {
                debug_assert!(false, "a folio more than there are free entries would be lost");
                break;
            }
            // SAFETY: G1, G3: the list and its loaded array are the caller's; the cursor is not at the end.
            unsafe { &*cursor }.set(frame, state);
            cursor = cursor.wrapping_add(1);
        }
        self.cursor.store(cursor, Ordering::Relaxed);
    }

    #[inline(always)]
    fn push_within(&self, bits: usize, frame: Frame, state: &AtomicU8) -> bool {
        let cursor = self.cursor.load(Ordering::Relaxed);
        if cursor.addr() & bits == 0 {
            return false;
        }
        // SAFETY: G1, G3: the list and its loaded array are the caller's; the cursor is not at the end.
        unsafe { &*cursor }.set(frame, state);
        self.cursor.store(cursor.wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Shuts the list to the common path.
    pub(crate) fn shut(&self) {
        if self.open.load(Ordering::SeqCst) != 0 {
            self.open.store(0, Ordering::SeqCst);
        }
    }

    /// Opens the list to the common path, unless `lease`, which the caller has entered, is guarded or revoked.
    pub(crate) fn open(&self, lease: &Lease) {
        if self.open.load(Ordering::Relaxed) != 0 || lease.is_shut() {
            return;
        }
        self.open.store(self.mask() as u32, Ordering::SeqCst);
        // A revoker raises its flag before it shuts the list. Either it finds the list open, or its flag is
        // seen here.
        if lease.is_shut() {
            self.shut();
        }
    }

    #[inline]
    fn has_magazine(&self) -> bool {
        !self.other.load(Ordering::Relaxed).is_null()
    }

    fn is_home_loaded(&self) -> bool {
        core::ptr::eq(self.loaded(), self.home.as_slice().as_ptr())
    }

    /// How full the other array is. The list is the caller's, as for all methods below.
    pub(crate) fn other(&self) -> Other {
        match self.other_len.load(Ordering::Relaxed) as usize {
            _ if !self.has_magazine() => Other::None,
            len if len == self.capacity() => Other::Full,
            0 => Other::Empty,
            _ => Other::Partial,
        }
    }

    pub(crate) fn exchange(&self) {
        debug_assert!(self.has_magazine());
        self.put_aside(self.other.load(Ordering::Relaxed), self.other_len.load(Ordering::Relaxed) as usize);
    }

    /// Loads an empty or full magazine in place of home, which becomes the other array.
    pub(crate) fn load(&self, magazine: Magazine, len: usize) {
        debug_assert!(!self.has_magazine());
        self.put_aside(magazine.0.as_ptr(), len);
    }

    /// Loads the array at `head`, with `len` folios; the loaded one becomes the other.
    fn put_aside(&self, head: *mut ListEntry, len: usize) {
        let (loaded, loaded_len) = (self.loaded(), self.len());
        self.note_flow(loaded_len as i64 - len as i64);
        self.cursor.store(head.wrapping_add(1 + len), Ordering::Relaxed);
        self.other.store(loaded, Ordering::Relaxed);
        self.other_len.store(loaded_len as u32, Ordering::Relaxed);
    }

    /// Takes the magazine off the list, and says how many folios it has besides its own. Leaves home loaded.
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

    /// Counts folios that left the loaded array other than by an allocation (or entered, when negative).
    pub(crate) fn note_flow(&self, out: i64) {
        self.flow.store(self.flow.load(Ordering::Relaxed) + out, Ordering::Relaxed);
    }

    /// The folios in both arrays, and the one that a magazine stands in; for `validate`, at rest.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let of = |head: *mut ListEntry, len: usize| {
            // SAFETY: G1, G3: the caller has the lease or has revoked it; `len` entries follow the head.
            (0..len).map(move |at| unsafe { &*head.add(1 + at) }.frame())
        };
        let (loaded, other) = (self.loaded(), self.other.load(Ordering::Relaxed));
        let magazine = if self.is_home_loaded() { other } else { loaded };
        let own = NonNull::new(magazine).map(|head| Magazine(head).own().0);
        of(loaded, self.len()).chain(of(other, self.other_len.load(Ordering::Relaxed) as usize)).chain(own)
    }
}

/// How full the array that is not loaded is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Other {
    /// There is none.
    None,
    Empty,
    Partial,
    Full,
}

/// An array in a free folio, by its head, which names that folio.
#[derive(Clone, Copy)]
pub(crate) struct Magazine(NonNull<ListEntry>);

impl Magazine {
    /// The magazine in the free folio at `memory`.
    ///
    /// # Safety
    /// G1: the memory is 4 KiB or more, aligned, and the caller's as long as it uses the magazine.
    pub(crate) unsafe fn at(memory: *mut u8) -> Self {
        // SAFETY: G1: a folio's memory is not at null.
        Self(unsafe { NonNull::new_unchecked(memory.cast()) })
    }

    fn head(&self) -> &ListEntry {
        // SAFETY: G1: the head is part of the folio, which is the caller's.
        unsafe { self.0.as_ref() }
    }

    /// The magazine's own folio, and its state.
    pub(crate) fn own(&self) -> (Frame, &AtomicU8) {
        (self.head().frame(), self.head().state())
    }

    pub(crate) fn set_own(&self, frame: Frame, state: &AtomicU8) {
        self.head().set(frame, state);
    }

    /// Links the next magazine in place of its own folio, which a parked magazine's address tells.
    pub(crate) fn set_next(&self, next: Frame) {
        self.head().frame.store(next.0, Ordering::Relaxed);
    }

    /// The first `len` folios in it.
    pub(crate) fn frames(&self, len: usize) -> impl Iterator<Item = Frame> + '_ {
        // SAFETY: G1, G3: the caller knows that the array has `len` folios.
        (0..len).map(|at| unsafe { self.0.add(1 + at).as_ref() }.frame())
    }
}

/// Adds to a counter that only the running code changes.
#[inline(always)]
pub(crate) fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
