//! Magazines: free folios gathered by the hundred, that change hands whole (Bonwick, Adams: "Magazines and Vmem",
//! USENIX 2001).
//!
//! A magazine needs no memory of its own: the numbers of its folios are written into one of them. Its first folio names
//! it, and magazines of one list are chained through their first words. A list's parked magazines stand behind a lock of
//! their own, taken once for each magazine, so that other CPUs can take them without disturbing the list's owner.
//!
//! # Invariants
//!
//! G1. The words of a parked magazine stand in a free folio that is part of it, so they belong to whoever holds the lock
//!     of the list that it is parked at. The slots of a list belong to whoever holds its lease, or has revoked it.
//! G2. A slot, of a list or of a magazine, names a folio and the place of its state. The state stands in the block's
//!     descriptors or in its record; a block keeps its descriptors, and a record its folio, while any of it is on a list.
//! G4. There are lists for each CPU that the platform can name ([`Platform::cpu_count`]).
//! G5. A record that names descriptors, or has a folio in use, names a zone and a mobility group that exist, as it did
//!     before it did so.

use core::sync::atomic::{AtomicU64, Ordering};

use super::PageAllocator;
use super::list::{FrameList, Slot};
use crate::addr::Frame;
use crate::limits::{FRAME_SIZE, PCP_CAPACITY};
use crate::platform::Platform;

/// The magazines that a list has parked.
pub(super) struct Parked {
    /// The first folio of the magazine that was parked last, plus one.
    top: u64,
    /// Magazines.
    pub(super) count: u32,
    /// Magazines that may be parked: grows when the store was asked for what was given back to it a moment ago, and
    /// shrinks with time ([`PageAllocator::age_lists`]).
    pub(super) high: u32,
}

impl Parked {
    pub(super) const fn new() -> Self {
        Self { top: 0, count: 0, high: 0 }
    }
}

/// What stands in a magazine's first folio.
#[repr(C)]
struct Magazine {
    /// The magazine below, as [`Parked::top`].
    next: AtomicU64,
    /// Its folios. The first of them is the one that all this stands in, and has no slot.
    count: AtomicU64,
    slots: [Slot; MAGAZINE_SLOTS],
}

const MAGAZINE_SLOTS: usize = PCP_CAPACITY / 2 - 1;
const _: () = assert!(size_of::<Magazine>() as u64 <= FRAME_SIZE);

impl<P: Platform> PageAllocator<'_, P> {
    /// A magazine by its first folio.
    fn magazine(&self, first: Frame) -> &Magazine {
        // SAFETY: G1: the folio is free and on a magazine, so its memory is the lock holder's; it is aligned to 4 KiB and
        // no shorter, and all of it is atomics.
        unsafe { &*self.platform.direct_map(first.addr()).cast() }
    }

    /// Parks the oldest folios of a list's array; the recent ones are warm and stay. The list is the caller's, and has
    /// more than a magazine; `parked` is its own.
    pub(super) fn park_oldest(&self, list: &FrameList, parked: &mut Parked) {
        let (slots, len, count) = (list.slots(), list.len(), list.magazine());
        let first = slots[0].frame();
        let magazine = self.magazine(first);
        magazine.next.store(parked.top, Ordering::Relaxed);
        magazine.count.store(count as u64, Ordering::Relaxed);
        copy(&magazine.slots, &slots[1..count]);
        copy(slots, &slots[count..len]);
        list.set_len(len - count);
        parked.top = first.0 + 1;
        parked.count += 1;
    }

    /// Takes the magazine that was parked last into the empty array of a list, which is the caller's; how many folios.
    pub(super) fn unpark(&self, list: &FrameList, parked: &mut Parked) -> usize {
        let Some(first) = self.unchain(parked) else { return 0 };
        let magazine = self.magazine(first);
        let count = magazine.count.load(Ordering::Relaxed) as usize;
        copy(list.slots(), &magazine.slots[..count - 1]);
        list.set_len(count - 1);
        list.push(first, self.state_cell(self.memmap.block(first.block()), first));
        list.note_flow(-1);
        count
    }

    /// Takes the magazine that was parked last, as the numbers of its folios; how many.
    pub(super) fn take_magazine(&self, parked: &mut Parked, out: &mut [Frame; PCP_CAPACITY / 2]) -> usize {
        let Some(first) = self.unchain(parked) else { return 0 };
        let magazine = self.magazine(first);
        let count = magazine.count.load(Ordering::Relaxed) as usize;
        out[0] = first;
        for (frame, slot) in out[1..count].iter_mut().zip(&magazine.slots) {
            *frame = slot.frame();
        }
        count
    }

    /// Takes the magazine that was parked last off the chain; its first folio.
    fn unchain(&self, parked: &mut Parked) -> Option<Frame> {
        let first = parked.top.checked_sub(1).map(Frame)?;
        parked.top = self.magazine(first).next.load(Ordering::Relaxed);
        parked.count -= 1;
        Some(first)
    }

    /// Shows every folio of the parked magazines; for `validate`, at rest.
    pub(super) fn each_parked(&self, parked: &Parked, mut show: impl FnMut(Frame)) {
        let mut top = parked.top;
        while let Some(first) = top.checked_sub(1).map(Frame) {
            let magazine = self.magazine(first);
            show(first);
            let count = magazine.count.load(Ordering::Relaxed) as usize;
            magazine.slots[..count - 1].iter().for_each(|slot| show(slot.frame()));
            top = magazine.next.load(Ordering::Relaxed);
        }
    }
}

/// Copies slots. The two may overlap.
pub(super) fn copy(to: &[Slot], from: &[Slot]) {
    assert!(from.len() <= to.len());
    // SAFETY: G1: both are the caller's alone, so nobody reads or writes them meanwhile; all of a slot is atomics, which
    // may be changed behind a shared reference.
    unsafe { core::ptr::copy(from.as_ptr(), to.as_ptr().cast_mut(), from.len()) };
}
