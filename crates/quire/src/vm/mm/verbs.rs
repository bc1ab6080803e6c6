//! The verbs of an address space, the fault, and collapse.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::arch::Access;
use crate::arch::Protection;
use crate::error::{FaultError, MmError};
use crate::nodes::{NodeNames, NodePolicy};
use crate::platform::Platform;
use crate::vm::collapse::call::CollapseCall;
use crate::vm::collapse::{CollapseSteps, Collapsed};
use crate::vm::fault::faults::Faults;
use crate::vm::fault::step::FaultOutcome;
use crate::vm::mapping::policy::FolioOverride;
use crate::vm::mm::facade::Mm;
use crate::vm::verbs::brk::Brk;
use crate::vm::verbs::madvise::{Advice, Madvise};
use crate::vm::verbs::mlock::Mlock;
use crate::vm::verbs::mmap::Mmap;
use crate::vm::verbs::mprotect::Mprotect;
use crate::vm::verbs::mremap::{Mremap, Remap};
use crate::vm::verbs::msync::Msync;
use crate::vm::verbs::munmap::Munmap;
use crate::vm::verbs::nodes::Nodes;
use crate::vm::verbs::request::MapRequest;

impl<P: Platform> Mm<'_, P> {
    /// Maps memory or a file, and returns the address.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (no bytes, an unaligned fixed address, growing down on memory that is not private
    /// anonymous; for huge pages an address or offset off their size, or a file of another size),
    /// [`MmError::NoMemory`] (no memory, no room, too many mappings, too few huge pages to reserve),
    /// [`MmError::Exists`], [`MmError::NotPermitted`] (below the lowest address), [`MmError::Overflow`]
    /// (behind the last file offset). Nothing has changed then. A mapping stays even if populating it fails.
    pub fn mmap(&self, request: &MapRequest<'_>) -> Result<VirtAddr, MmError> {
        Mmap::of(self.sleepable()).mmap(request)
    }

    /// Unmaps `len` bytes (rounded up to pages) from `addr`. Holes are fine. A handler of faults that asked
    /// for the event has read it when this returns.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, no bytes, a range that leaves the user half or ends
    /// inside a huge page; [`MmError::NoMemory`] when a mapping would have to be split and memory is out or
    /// there are too many mappings. Nothing has changed then.
    pub fn munmap(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Munmap::of(self.sleepable()).munmap(addr, len)
    }

    /// Resizes the `old_len` bytes mapped at `addr` to `new_len`, moves them as `to` says, and returns their
    /// address. `old_len` 0 maps a shared mapping a second time. Several mappings can move at once, at their
    /// size.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (unaligned, empty, overlapping, huge pages that would grow or leave a mapping
    /// behind, a size that changes with an empty mapping left behind), [`MmError::Fault`] (not mapped, or not
    /// by one mapping), [`MmError::NoMemory`] (no memory, no room, too many mappings). Nothing has changed
    /// then, except that a fixed target may have been unmapped and, of several mappings, the first may have
    /// moved: as with Linux, the mappings tell which.
    pub fn mremap(&self, addr: VirtAddr, old_len: u64, new_len: u64, to: Remap) -> Result<VirtAddr, MmError> {
        Mremap::of(self.sleepable()).mremap(addr, old_len, new_len, to)
    }

    /// Changes the protection of `len` bytes (rounded up to pages) from `addr`.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an end inside a huge page; [`MmError::NoMemory`] for
    /// a hole, after everything before it was changed, or when memory is out, after nothing was changed or,
    /// of many locked mappings, the first were: as with Linux, the mappings tell which; [`MmError::Access`]
    /// for a mapping that forbids the protection, after everything before it was changed.
    pub fn mprotect(&self, addr: VirtAddr, len: u64, prot: Protection) -> Result<(), MmError> {
        Mprotect::of(self.sleepable()).mprotect(addr, len, prot)
    }

    /// Advises about `len` bytes (rounded up to pages) from `addr`. Mappings are advised one after the other;
    /// holes are skipped and reported at the end.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address (in huge pages: one off their size) or an overflow, for
    /// [`Advice::DontNeed`], [`Advice::Free`], [`Advice::Remove`], [`Advice::Cold`] and [`Advice::PageOut`] of
    /// locked memory, for [`Advice::Remove`] and [`Advice::WipeOnFork`] of memory that has no file or has one, for the
    /// last two of huge pages of a pool, for [`Advice::Free`] of memory that is not
    /// private anonymous, for populating a mapping that does not allow the access, for [`Advice::Split`] of
    /// anything but shared huge pages; [`MmError::NoMemory`] for a hole or when memory is out;
    /// [`MmError::Access`] for [`Advice::Remove`] unless a mapping is shared and writable, and
    /// [`MmError::NotSupported`] for files of the pager; [`MmError::Fault`] for populating behind the end of a file; for [`Advice::Collapse`] the
    /// [`Refusal::error`](crate::vm::Refusal::error) of the last refused range, while the others were
    /// collapsed; [`MmError::Io`]. Mappings before the failed one have been advised.
    pub fn madvise(&self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), MmError> {
        Madvise::of(self.sleepable()).madvise(addr, len, advice)
    }

    /// Sets which folio orders the mappings of a range use, beyond the machine-wide policy.
    ///
    /// # Errors
    /// As [`Self::madvise`] with [`Advice::HugePage`].
    pub fn set_folios(&self, addr: VirtAddr, len: u64, folios: FolioOverride) -> Result<(), MmError> {
        Madvise::of(self.sleepable()).set_folios(addr, len, folios)
    }

    /// Writes back what shared mappings of pages in `len` bytes from `addr` stored: all dirty pages of the
    /// files that they show. The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address; [`MmError::NoMemory`] when part of the range is not
    /// mapped, after the rest was written; [`MmError::Io`] when the pager fails.
    pub fn msync(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Msync::of(self.sleepable()).msync(addr, len)
    }

    /// Sets from which nodes private pages and huge pages of `len` bytes (rounded up to pages) from `addr` come from now
    /// on; `None` leaves it to [`Platform::task_nodes`]. Pages that are there stay; other shared memory does not obey.
    /// A huge page comes from the nodes that the mapping names which touches it first. As `mbind`.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, an overflow or an end inside a huge page; [`MmError::Fault`] for
    /// a hole; [`MmError::NoMemory`]. Nothing has changed then.
    pub fn set_nodes(&self, addr: VirtAddr, len: u64, nodes: Option<NodePolicy>) -> Result<(), MmError> {
        self.set_named_nodes(addr, len, nodes, NodeNames::Plain)
    }

    /// [`Self::set_nodes`] of nodes that the program named in its own way, which
    /// [`VmaInfo`](crate::vm::VmaInfo) tells. Mappings whose nodes were named differently stay apart. Without
    /// `nodes` the names do not matter.
    ///
    /// # Errors
    /// As for [`Self::set_nodes`].
    pub fn set_named_nodes(
        &self,
        addr: VirtAddr,
        len: u64,
        nodes: Option<NodePolicy>,
        names: NodeNames,
    ) -> Result<(), MmError> {
        Nodes::of(self.sleepable()).set_nodes(addr, len, nodes, names)
    }

    /// Locks the pages of `len` bytes from `addr`, extended to whole pages, and brings them in (`on_fault`:
    /// as they are touched).
    ///
    /// # Errors
    /// [`MmError::Invalid`] when the end passes the last address; [`MmError::NoMemory`] for a hole, after
    /// everything before it was locked, for pages that cannot be brought in, after everything was locked, and
    /// when memory for mappings is out; [`MmError::Again`] when memory for pages is out, after everything is
    /// locked.
    pub fn mlock(&self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), MmError> {
        Mlock::of(self.sleepable()).mlock(addr, len, on_fault)
    }

    /// Unlocks the pages of `len` bytes from `addr`, extended to whole pages.
    ///
    /// # Errors
    /// As [`Self::mlock`].
    pub fn munlock(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Mlock::of(self.sleepable()).munlock(addr, len)
    }

    /// Locks what is mapped (`current`), what will be mapped (`future`), or both. Skips pages that fail.
    ///
    /// # Errors
    /// [`MmError::Invalid`] when neither is asked for, [`MmError::NoMemory`].
    pub fn mlockall(&self, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        Mlock::of(self.sleepable()).mlockall(current, future, on_fault)
    }

    /// Unlocks everything that is mapped, and stops locking new mappings.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn munlockall(&self) -> Result<(), MmError> {
        Mlock::of(self.sleepable()).munlockall()
    }

    /// Sets the start of the heap, which is then empty. Memory of an earlier heap stays mapped.
    pub fn set_brk_start(&self, addr: VirtAddr) {
        Brk::of(self.sleepable()).set_brk_start(addr)
    }

    /// Moves the end of the heap to the byte `addr`, and returns where it is now. It does not move below the
    /// start, within a page of another mapping or into the guard gap of a stack. Nor does it move when
    /// nothing is mapped in the part that would be unmapped, or when memory is out.
    pub fn brk(&self, addr: VirtAddr) -> VirtAddr {
        Brk::of(self.sleepable()).brk(addr)
    }

    /// Makes an access at `addr` possible. A kernel calls it from its page-fault handler with the address and
    /// the kind that hardware reports ([`PageFault`](crate::arch::PageFault)); any number of CPUs may do so at
    /// once. The caller is a task with interrupts on, not pinned, that holds no lock of the library: the fault
    /// may flush other CPUs, read a file, or sleep until a handler answers.
    ///
    /// # Errors
    /// [`FaultError`]: the signal for the program, or [`FaultError::OutOfMemory`] when reclaim found no more
    /// memory. Where a handler of faults is registered the caller waits for its answer, or gets
    /// [`FaultError::NoHandler`].
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<FaultOutcome, FaultError> {
        Faults::of(self.sleepable()).fault(addr, access)
    }

    /// Makes one folio, mapped by one leaf, of each aligned 2 MiB of private anonymous memory in `len` bytes
    /// (rounded up to pages) from `addr`. It does so whatever the folio policy says and however many holes
    /// there are, but not where [`Advice::NoHugePage`] was given. Pages of shared anonymous memory, and of
    /// files that the mapping cannot store to, are moved into one block in order, for all that map them, and
    /// mapped by one leaf; missing pages are read. In mappings of huge pages whose parts may be mapped by
    /// themselves ([`Advice::Split`]) the largest leaves that the range covers replace smaller ones. The
    /// answer says what became of each. As `MADV_COLLAPSE`.
    ///
    /// Programs go on using the memory. A task that touches a page of a file that moves waits for at most
    /// [`COLLAPSE_FILE_PAGES`](crate::limits::COLLAPSE_FILE_PAGES) to be copied. A task that touches other
    /// memory waits for a flush and at most [`COLLAPSE_RECOPIED`](crate::limits::COLLAPSE_RECOPIED) copied
    /// pages, more only if a program stores faster than [`COLLAPSE_ROUNDS`](crate::limits::COLLAPSE_ROUNDS)
    /// rounds can copy.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an overflow, [`MmError::NoMemory`] when part of the
    /// range is not mapped; the rest was collapsed then.
    pub fn collapse(&self, addr: VirtAddr, len: u64) -> Result<Collapsed, MmError> {
        CollapseCall::of(self.sleepable()).collapse(addr, len)
    }

    /// As [`Self::collapse`], with pages of 1 GiB in these steps.
    ///
    /// # Errors
    /// As [`Self::collapse`].
    pub fn collapse_in(&self, addr: VirtAddr, len: u64, steps: CollapseSteps) -> Result<Collapsed, MmError> {
        CollapseCall::of(self.sleepable()).collapse_in(addr, len, steps)
    }
}
