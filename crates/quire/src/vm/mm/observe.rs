//! Calls that show the state of an address space.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Access;
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::mm::facade::Mm;
use crate::vm::observe::info::{MmFault, Rss, VmaInfo};
use crate::vm::observe::mapped::Mapped;
use crate::vm::observe::pagemap::PageWord;
use crate::vm::observe::smaps::Usage;
use crate::vm::observe::translate::Translated;
use crate::vm::observe::view::Observation;

impl<P: Platform> Mm<'_, P> {
    /// Whether no other address space maps any part of the folio at `addr` (Linux: the opposite of
    /// `folio_maybe_mapped_shared`). `None` where nothing is mapped, or only the zero page, which has no
    /// count, and where the folio changes too fast to tell. [`Self::mapped`] says how often one page is
    /// mapped.
    ///
    /// Never `Some(true)` while another address space maps any of it. Of a folio of several blocks, each
    /// block is checked at one moment of the call, so mappings that come and go meanwhile may be missed.
    /// `Some(false)` also while another address space has unmapped the folio and not yet counted it down.
    /// Takes the address-space lock for writing; the caller holds none. Reads each of its own leaves of the
    /// folio, and the folio's counts ([`MapCounts::folio_maps`](crate::page_alloc::MapCounts::folio_maps)).
    pub fn maps_exclusively(&self, addr: VirtAddr) -> Option<bool> {
        Observation::of(self.sleepable()).maps_exclusively(addr)
    }

    /// Shows every mapping in ascending order, under the address-space lock, so `visit` must not call verbs.
    pub fn vmas(&self, visit: impl FnMut(&VmaInfo)) {
        Observation::of(self.sleepable()).vmas(visit)
    }

    /// Shows the mappings that share a byte with the range, as [`Self::vmas`] does.
    pub fn vmas_in(&self, range: VirtRange, visit: impl FnMut(&VmaInfo)) {
        Observation::of(self.sleepable()).vmas_in(range, visit)
    }

    /// The first mapping that ends above `addr`, as of now. A walk by it holds no lock between its steps.
    pub fn next_vma(&self, addr: VirtAddr) -> Option<VmaInfo> {
        Observation::of(self.sleepable()).next_vma(addr)
    }

    /// How many mappings there are.
    pub fn mappings(&self) -> usize {
        Observation::of(self.sleepable()).mappings()
    }

    /// Resident memory by kind.
    pub fn rss(&self) -> Rss {
        Observation::of(self.sleepable()).rss()
    }

    /// Resident frames: anonymous, of files and shared. They are only counted, so unlike [`Mm::rss`] this does not
    /// look at every mapping.
    pub fn resident_frames(&self) -> u64 {
        Observation::of(self.sleepable()).resident_frames()
    }

    /// Checks the mappings, and the page table against them, while no other task uses the address space.
    ///
    /// # Errors
    /// The first [`MmFault`] found.
    pub fn validate(&self) -> Result<(), MmFault> {
        Observation::of(self.sleepable()).validate()
    }

    /// Shows what is mapped in the range, in ascending order; nothing is mapped behind the user half. Exact
    /// while no mapping changes, here or in address spaces of the same family; otherwise each run is as it
    /// once was.
    pub fn mapped(&self, range: VirtRange, show: impl FnMut(&Mapped)) {
        Observation::of(self.sleepable()).mapped(range, show)
    }

    /// Shows the word of every page of the range that is in memory, in ascending order; all other words are
    /// zero. Exact while no mapping changes ([`Self::mapped`]). The caller holds no lock.
    pub fn pagemap(&self, range: VirtRange, show: impl FnMut(VirtAddr, PageWord)) {
        Observation::of(self.sleepable()).pagemap(range, show)
    }

    /// Writes for each page from `addr` on whether it is in memory: mapped, or in the page cache of its file.
    /// As `mincore`. Exact while no page comes or goes. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address; [`MmError::NoMemory`] when part of the range is not
    /// mapped.
    pub fn mincore(&self, addr: VirtAddr, resident: &mut [bool]) -> Result<(), MmError> {
        Observation::of(self.sleepable()).mincore(addr, resident)
    }

    /// Shows every mapping that has a part in the range, in ascending order, and how much of that part is in
    /// memory. Exact while no mapping changes ([`Self::mapped`]). Neither it nor the caller holds a lock
    /// while it shows.
    pub fn smaps(&self, range: VirtRange, show: impl FnMut(&VmaInfo, &Usage)) {
        Observation::of(self.sleepable()).smaps(range, show)
    }

    /// How much of a range is in memory: the sum of [`Self::smaps`], like `/proc/PID/smaps_rollup`.
    pub fn usage(&self, range: VirtRange) -> Usage {
        Observation::of(self.sleepable()).usage(range)
    }

    /// How much of the whole address space is in memory.
    pub fn usage_of_all(&self) -> Usage {
        Observation::of(self.sleepable()).usage_of_all()
    }

    /// Clears the soft-dirty bit of the pages mapped in `len` bytes (rounded up to pages) from `addr`; the
    /// next store to a page sets it again. Writing 4 to `/proc/PID/clear_refs` does this for all pages.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, a range that leaves the user half, or one that ends
    /// inside a huge page that is mapped whole; [`MmError::NoMemory`] when a large leaf cannot be split.
    /// Nothing has changed then.
    pub fn clear_soft_dirty(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(self.sleepable()).clear_soft_dirty(addr, len)
    }

    /// Whether the page at `addr` is mapped and was stored to, as far as is known, since
    /// [`Self::clear_soft_dirty`] (bit 55 of `/proc/PID/pagemap`).
    pub fn is_soft_dirty(&self, addr: VirtAddr) -> bool {
        Observation::of(self.sleepable()).is_soft_dirty(addr)
    }

    /// Marks the pages mapped in `len` bytes (rounded up to pages) from `addr` for a handler: a store to one
    /// faults with [`FaultError::Marked`](crate::error::FaultError::Marked) until the mark is removed. Verbs
    /// keep the mark, except that unmapping removes it and a child does not inherit it. As
    /// `UFFDIO_WRITEPROTECT` with `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn write_protect_marked(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(self.sleepable()).write_protect_marked(addr, len)
    }

    /// Removes such marks. As `UFFDIO_WRITEPROTECT` without `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn remove_write_protect_marks(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Observation::of(self.sleepable()).remove_write_protect_marks(addr, len)
    }

    /// The leaf for an access at `addr`, after marking it as hardware would: accessed, and dirty for a store.
    /// `None` where no leaf allows the access: [`Self::fault`] makes it possible, or says why not. A leaf
    /// that allows stores but is not dirty yet is not `writable` to a load, so the first store asks again.
    ///
    /// For a secondary MMU that is [registered](Self::register_secondary). The answer may be outdated when
    /// this returns, so the secondary MMU counts its brackets
    /// ([`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start)). It reads
    /// their number before the call, while no open bracket covers the address. It keeps a copy only if the
    /// number is the same afterwards, under a lock that the start of a bracket takes too.
    ///
    /// Takes the address-space lock for reading; waits where a leaf is being replaced. The caller holds no
    /// lock, and none that the start of a bracket waits for.
    pub fn translate(&self, addr: VirtAddr, access: Access) -> Option<Translated> {
        Observation::of(self.sleepable()).translate(addr, access)
    }
}
