//! What callers see of an address space.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::fault::access::Access;
use crate::vm::mm::facade::Mm;
use crate::vm::observe::info::{MmFault, Rss, VmaInfo};
use crate::vm::observe::mapped::Mapped;
use crate::vm::observe::pagemap::PageWord;
use crate::vm::observe::smaps::Usage;
use crate::vm::observe::translate::Translated;
use crate::vm::observe::view::Observation;

impl<P: Platform> Mm<'_, P> {
    /// Whether this address space alone maps the folio, some of which it maps at `addr`: however often, and
    /// whatever part of it (Linux: the opposite of `folio_maybe_mapped_shared`). `None` where nothing is
    /// mapped, or zeroes that are not counted, and where the folio changes as fast as it is looked at. Of the
    /// page alone that is at the address, [`Self::mapped`] says how often it is mapped.
    ///
    /// Never `Some(true)` while another address space maps any of it; of a folio of several blocks each block
    /// at one moment of the call, so others that map and unmap parts of it meanwhile may be missed.
    /// `Some(false)` also while another address space that has just unmapped it has not counted yet. Takes
    /// the address-space lock for writing; the caller holds none. A look at each leaf of its own, and at the
    /// folio's counts ([`MapCounts::folio_maps`](crate::page_alloc::MapCounts::folio_maps)).
    pub fn maps_exclusively(&self, addr: VirtAddr) -> Option<bool> {
        Observation::of(&self.space).maps_exclusively(addr)
    }

    /// Shows every mapping in ascending order. The address space cannot change meanwhile, so `visit` must not
    /// call its verbs.
    pub fn vmas(&self, visit: impl FnMut(&VmaInfo)) {
        Observation::of(&self.space).vmas(visit)
    }

    /// How many mappings there are.
    pub fn mappings(&self) -> usize {
        Observation::of(&self.space).mappings()
    }

    /// Resident memory by kind.
    pub fn rss(&self) -> Rss {
        Observation::of(&self.space).rss()
    }

    /// Checks the mappings, and the page table against them, while no other task uses the address space.
    ///
    /// # Errors
    /// The first [`MmFault`] found.
    pub fn validate(&self) -> Result<(), MmFault> {
        Observation::of(&self.space).validate()
    }

    /// Shows what is mapped in the range, in ascending order; pages behind the user half are none. Exact
    /// while no mapping changes, here or in address spaces of the same family; otherwise each run is as it
    /// was at some moment.
    pub fn mapped(&self, range: VirtRange, show: impl FnMut(&Mapped)) {
        Observation::of(&self.space).mapped(range, show)
    }

    /// Shows the word of every page of the range that is in memory, in ascending order. Pages that are not
    /// shown have a word of zero. Exact while no mapping changes ([`Self::mapped`]). The caller holds no
    /// lock.
    pub fn pagemap(&self, range: VirtRange, show: impl FnMut(VirtAddr, PageWord)) {
        Observation::of(&self.space).pagemap(range, show)
    }

    /// Shows every mapping that has a part in the range, in ascending order, and how much of that part is in
    /// memory. Exact while no mapping changes ([`Self::mapped`]). Holds no lock while it shows; the caller
    /// holds none, either.
    pub fn smaps(&self, range: VirtRange, show: impl FnMut(&VmaInfo, &Usage)) {
        Observation::of(&self.space).smaps(range, show)
    }

    /// How much of a range is in memory: the sum of [`Self::smaps`] over its mappings, what
    /// `/proc/PID/smaps_rollup` says of all.
    pub fn usage(&self, range: VirtRange) -> Usage {
        Observation::of(&self.space).usage(range)
    }

    /// How much of all of the address space is in memory.
    pub fn usage_of_all(&self) -> Usage {
        Observation::of(&self.space).usage_of_all()
    }

    /// Forgets which of the pages mapped in `len` bytes (rounded up to pages) from `addr` were stored to:
    /// from now on each is soft-dirty again once it is. What 4, written to `/proc/PID/clear_refs`, does for
    /// all of an address space.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, a range that leaves the user half, or one that ends
    /// inside a huge page that is mapped whole; [`MmError::NoMemory`] when a large leaf would have to be
    /// split. Nothing has changed then.
    pub fn clear_soft_dirty(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(&self.space).clear_soft_dirty(addr, len)
    }

    /// Whether the page at `addr` is mapped and was stored to, as far as is known, since
    /// [`Self::clear_soft_dirty`] (bit 55 of `/proc/PID/pagemap`).
    pub fn is_soft_dirty(&self, addr: VirtAddr) -> bool {
        Observation::of(&self.space).is_soft_dirty(addr)
    }

    /// Marks the pages mapped in `len` bytes (rounded up to pages) from `addr` for a handler: a store to one
    /// faults with [`FaultError::Marked`](crate::error::FaultError::Marked) until the mark is taken off,
    /// whatever else the verbs do with it. Unmapping takes the mark along; a child has none. As
    /// `UFFDIO_WRITEPROTECT` with `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn write_protect_marked(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(&self.space).write_protect_marked(addr, len)
    }

    /// Takes such marks off. As `UFFDIO_WRITEPROTECT` without `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn remove_write_protect_marks(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(&self.space).remove_write_protect_marks(addr, len)
    }

    /// The leaf that makes an access at `addr` good, marked as hardware would mark it: accessed, and dirty
    /// for a store. `None` where there is none, or it does not allow the access: [`Self::fault`] makes it
    /// good, or says why not. A leaf that allows stores and was not stored through yet is not `writable` to a
    /// load, so that the first store is noticed.
    ///
    /// For a secondary MMU that is [registered](Self::register_secondary). The answer is as old as its
    /// return, so it counts its brackets
    /// ([`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start)): it reads
    /// their number before the call, when none is open that covers the address, and keeps a copy only if,
    /// under a lock that the start of a bracket takes too, that number is the same.
    ///
    /// Takes the address-space lock for reading; waits where a leaf is being replaced. The caller holds no
    /// lock, and none that the start of a bracket waits for.
    pub fn translate(&self, addr: VirtAddr, access: Access) -> Option<Translated> {
        Observation::of(&self.space).translate(addr, access)
    }
}
