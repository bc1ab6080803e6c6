//! The page descriptor: one for each frame of a block in small pieces, one for a folio of whole blocks.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::flags::flag_names;
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::RawLock;

/// A frame's use and condition. The frame's owner changes them by plain loads and stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DescriptorFlags(pub u32);

flag_names!(
    DescriptorFlags: TABLE, SLAB, CACHE, DIRTY, DEFERRED, MIXED, HUGE, LENT, RENEWED, SPLITTING,
    WANTED, ZEROED, ACCESSED
);

impl DescriptorFlags {
    /// The frame is a page-table page.
    pub const TABLE: Self = Self(2);
    /// The frame holds small objects.
    pub const SLAB: Self = Self(4);
    /// The frame belongs to the page cache.
    pub const CACHE: Self = Self(8);
    /// Page cache: the contents are newer than the file's.
    pub const DIRTY: Self = Self(16);
    /// The folio of order 9 waits to be split.
    pub(crate) const DEFERRED: Self = Self(32);
    /// The folio of several blocks is being split: its head no longer represents all of it.
    pub(crate) const SPLITTING: Self = Self(1024);
    /// The folio belongs to a pool of huge pages.
    pub const HUGE: Self = Self(128);
    /// Huge page: it returns to its pool when no leaf maps it any more.
    pub(crate) const LENT: Self = Self(256);
    /// Huge page: the reservation that it used is restored when it returns.
    pub(crate) const RENEWED: Self = Self(512);
    /// Huge page: it leaves its pool, and a CPU waits until no other clears a block of it.
    pub(crate) const WANTED: Self = Self(2048);
    /// Huge page: it is on the list of free pages that are known to be zero.
    pub(crate) const ZEROED: Self = Self(4096);
    /// Page cache: the page was accessed through a leaf that is gone.
    pub const ACCESSED: Self = Self(8192);
    /// Page table: it holds, or held, leaves other than of counted anonymous memory.
    pub(crate) const MIXED: Self = Self(64);
}

/// Of a page table's `previous`: its grain, and whether its leaves were compared.
const GRAIN: u64 = 0xf;
const COMPARED: u64 = 0x10;

/// A page descriptor. The frame's owner defines the fields; all are atomics because a stale reader may look.
/// A new owner finds the last owner's values until the library resets it.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Descriptor {
    flags: AtomicU32,
    lock: RawLock,
    /// The level of a page table.
    pub(crate) level: core::sync::atomic::AtomicU8,
    /// Non-empty entries of a page table, or objects in use in a slab frame.
    pub(crate) population: AtomicU16,
    /// The owner: a cache of small objects, or a file's page cache.
    pub(crate) owner: AtomicU64,
    /// The page's index within its owner, in 4 KiB pages; for a page table [`Self::sharers`].
    pub(crate) index: AtomicU64,
    /// Link of the list that the frame is on.
    pub(crate) next: AtomicU64,
    /// The other direction; for a page table `grain`.
    pub(crate) previous: AtomicU64,
    /// The owner's word: which objects of a slab frame are free; where a page table is installed.
    pub(crate) word: AtomicU64,
}

const _: () = assert!(size_of::<Descriptor>() == crate::limits::DESCRIPTOR_SIZE);

impl Descriptor {
    /// Clears everything that an earlier owner of the frame left, including the lock. The caller owns the
    /// frame, and no other code uses its descriptor yet.
    pub(crate) fn reset(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.level.store(0, Ordering::Relaxed);
        self.population.store(0, Ordering::Relaxed);
        for field in [&self.owner, &self.index, &self.next, &self.previous, &self.word] {
            field.store(0, Ordering::Relaxed);
        }
        self.lock.reset();
    }

    /// Whether all bits of `flags` are set.
    #[inline]
    pub fn has(&self, flags: DescriptorFlags) -> bool {
        self.flags.load(Ordering::Relaxed) & flags.0 == flags.0
    }

    /// Replaces all flags. The caller owns the frame, so no other code changes them.
    #[inline]
    pub(crate) fn set_flags(&self, flags: DescriptorFlags) {
        self.flags.store(flags.0, Ordering::Relaxed);
    }

    /// Clears all flags. The caller owns the frame.
    #[inline]
    pub(crate) fn clear_flags(&self) {
        self.flags.store(0, Ordering::Relaxed);
    }

    /// Clears flags while other flags may change.
    #[inline]
    pub(crate) fn take_flags(&self, flags: DescriptorFlags) {
        self.flags.fetch_and(!flags.0, Ordering::AcqRel);
    }

    /// Sets flags while other flags may change.
    #[inline]
    pub(crate) fn add_flags(&self, flags: DescriptorFlags) {
        self.flags.fetch_or(flags.0, Ordering::AcqRel);
    }

    /// How many address spaces besides one reach the page table in the frame.
    #[inline]
    pub(crate) fn sharers(&self) -> &AtomicU64 {
        &self.index
    }

    /// The grain of a lowest-level page table, as an order: each aligned group of so many entries is empty,
    /// or maps consecutive frames of one kind. Under the table's lock; 0 says nothing.
    #[inline]
    pub(crate) fn grain(&self) -> u64 {
        self.previous.load(Ordering::Relaxed) & GRAIN
    }

    /// Sets the grain, and forgets the comparison of the table. Under the table's lock.
    #[inline]
    pub(crate) fn set_grain(&self, order: u64) {
        self.previous.store(order, Ordering::Relaxed);
    }

    /// The history bits of the leaves of a lowest-level page table, if all were compared and found to be one
    /// run, and only hardware has changed them since.
    #[inline]
    pub fn compared(&self) -> Option<u64> {
        let word = self.previous.load(Ordering::Relaxed);
        (word & COMPARED != 0).then_some(word & !(GRAIN | COMPARED))
    }

    /// Records that all leaves are one run with this history, without the lowest five bits. Under the table's
    /// lock.
    pub(crate) fn note_compared(&self, recorded: u64) {
        let history = recorded & !(GRAIN | COMPARED);
        self.previous.store(history | COMPARED | u64::from(crate::limits::BLOCK_ORDER), Ordering::Relaxed);
    }

    /// Locks the page table in the frame.
    #[inline]
    pub(crate) fn lock_table<P: FramePlatform>(&self, platform: &P, rank: Rank) {
        self.lock.lock(platform, rank);
    }

    #[inline]
    pub(crate) fn unlock_table<P: FramePlatform>(&self, platform: &P, rank: Rank) {
        self.lock.unlock(platform, rank);
    }
}
