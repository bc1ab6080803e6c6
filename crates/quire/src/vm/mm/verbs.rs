//! The verbs of an address space: what a program asks for, the fault, and collapse.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::arch::Protection;
use crate::error::{FaultError, MmError};
use crate::platform::Platform;
use crate::vm::collapse::call::CollapseCall;
use crate::vm::collapse::{CollapseSteps, Collapsed};
use crate::vm::fault::access::Access;
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
use crate::vm::verbs::munmap::Munmap;
use crate::vm::verbs::request::MapRequest;

impl<P: Platform> Mm<'_, P> {
    /// Maps memory or a file and says where.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (no bytes, an unaligned fixed address, growing down on what is not private
    /// anonymous; for huge pages an address or offset off their size, or a file of others),
    /// [`MmError::NoMemory`] (no memory, no room, too many mappings, too few huge pages to reservation),
    /// [`MmError::Exists`], [`MmError::NotPermitted`] (below the lowest address), [`MmError::Overflow`]
    /// (behind the last file offset). Nothing has changed then. A mapping whose pages could not all be
    /// brought in is made all the same.
    pub fn mmap(&self, request: &MapRequest<'_>) -> Result<VirtAddr, MmError> {
        Mmap::of(&self.space).mmap(request)
    }

    /// Unmaps `len` bytes (rounded up to pages) from `addr`. Holes are fine. A handler of faults that wants
    /// to read of it has done so when this returns.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, no bytes, a range that leaves the user half or that
    /// ends inside a huge page; [`MmError::NoMemory`] when a mapping would have to be split and there is no
    /// memory for it, or there are too many. Nothing has changed then.
    pub fn munmap(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Munmap::of(&self.space).munmap(addr, len)
    }

    /// Gives the `old_len` bytes mapped at `addr` the size `new_len`, as `to` says at another address, and
    /// says where they are. With `old_len` 0 a shared mapping is mapped a second time. Several mappings can
    /// move at once if their size stays.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (unaligned, empty, overlapping, huge pages that would become more or leave a
    /// mapping behind, a size that changes with an empty mapping left behind), [`MmError::Fault`] (not
    /// mapped, or not by one mapping), [`MmError::NoMemory`] (no memory, no room, too many mappings). Nothing
    /// has changed then, save that a fixed target may have been unmapped and, where several mappings move,
    /// that the first of them may have moved: as with Linux, the mappings tell which.
    pub fn mremap(&self, addr: VirtAddr, old_len: u64, new_len: u64, to: Remap) -> Result<VirtAddr, MmError> {
        Mremap::of(&self.space).mremap(addr, old_len, new_len, to)
    }

    /// Changes the protection of `len` bytes (rounded up to pages) from `addr`.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an end inside a huge page; [`MmError::NoMemory`] for
    /// a hole, after everything before it was changed, or without any change when there is no memory;
    /// [`MmError::Access`] for a mapping that may not be accessed like that, after everything before it was
    /// changed.
    pub fn mprotect(&self, addr: VirtAddr, len: u64, prot: Protection) -> Result<(), MmError> {
        Mprotect::of(&self.space).mprotect(addr, len, prot)
    }

    /// Advises about `len` bytes (rounded up to pages) from `addr`. Mappings are advised one after the other;
    /// holes are passed over and reported at the end.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address (in huge pages: one off their size) or an overflow, for
    /// [`Advice::DontNeed`] and [`Advice::Free`] of locked memory, for [`Advice::Free`] of what is not
    /// private anonymous memory, for populating what does not allow the access, for [`Advice::Split`] of what
    /// is not shared huge pages; [`MmError::NoMemory`] for a hole or when memory is out; [`MmError::Fault`]
    /// for populating behind the end of a file; for [`Advice::Collapse`] what
    /// [`Refusal::error`](crate::vm::Refusal::error) says of the last range that was refused, the others
    /// being collapsed; [`MmError::Io`]. Mappings before the one that failed have been advised.
    pub fn madvise(&self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), MmError> {
        Madvise::of(&self.space).madvise(addr, len, advice)
    }

    /// Says which folio orders the mappings of a range use, beyond the machine-wide policy.
    ///
    /// # Errors
    /// As [`Self::madvise`] with [`Advice::HugePage`].
    pub fn set_folios(&self, addr: VirtAddr, len: u64, folios: FolioOverride) -> Result<(), MmError> {
        Madvise::of(&self.space).set_folios(addr, len, folios)
    }

    /// Locks the pages of `len` bytes from `addr`, extended to whole pages, and brings them in (`on_fault`:
    /// as they are touched).
    ///
    /// # Errors
    /// [`MmError::Invalid`] when the end passes the last address; [`MmError::NoMemory`] for a hole, after
    /// what is before it was locked, for pages that cannot be brought in, after everything was locked, and
    /// when there is no memory for mappings; [`MmError::Again`] when there is none for pages, after
    /// everything was locked.
    pub fn mlock(&self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), MmError> {
        Mlock::of(&self.space).mlock(addr, len, on_fault)
    }

    /// Takes the lock off.
    ///
    /// # Errors
    /// As [`Self::mlock`].
    pub fn munlock(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Mlock::of(&self.space).munlock(addr, len)
    }

    /// Locks what is mapped (`current`), what will be mapped (`future`), or both. Pages that cannot be
    /// brought in are passed over.
    ///
    /// # Errors
    /// [`MmError::Invalid`] when neither is asked for, [`MmError::NoMemory`].
    pub fn mlockall(&self, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        Mlock::of(&self.space).mlockall(current, future, on_fault)
    }

    /// Takes the lock off everything, and off what will be mapped.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn munlockall(&self) -> Result<(), MmError> {
        Mlock::of(&self.space).munlockall()
    }

    /// Says where the heap starts; it is empty then. What was mapped as heap before stays mapped.
    pub fn set_brk_start(&self, addr: VirtAddr) {
        Brk::of(&self.space).set_brk_start(addr)
    }

    /// Moves the end of the heap to the byte `addr` and says where it is now. It has not moved when that
    /// would be below the start, would come within a page of another mapping or into the guard gap of a
    /// stack, when nothing is mapped that it would leave, or when there is no memory.
    pub fn brk(&self, addr: VirtAddr) -> VirtAddr {
        Brk::of(&self.space).brk(addr)
    }

    /// Makes an access at `addr` good. A kernel calls it from its page-fault handler with the address and the
    /// kind that hardware reports; any number of CPUs may do so at once.
    ///
    /// # Errors
    /// [`FaultError`]: the signal that the access deserves, or [`FaultError::OutOfMemory`] after page cache and lazily
    /// freed memory were given up in vain. Where a handler of faults is registered the caller waits for its
    /// answer, or gets [`FaultError::NoHandler`].
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<FaultOutcome, FaultError> {
        Faults::of(&self.space).fault(addr, access)
    }

    /// Makes one folio, mapped by one leaf, of each aligned 2 MiB of private anonymous memory in `len` bytes
    /// (rounded up to pages) from `addr`, whatever the folio policy says and however many holes there are;
    /// not where [`Advice::NoHugePage`] was given. Pages of files are brought into one block in order, for
    /// all that map them, and mapped by one leaf: those of shared anonymous memory, and of others where the
    /// mapping cannot store to them; what is missing of them is read. In mappings of huge pages whose parts
    /// may be mapped by themselves ([`Advice::Split`]) the largest leaves that the range covers come in the
    /// places of smaller ones. What became of each is in the answer. As `MADV_COLLAPSE`.
    ///
    /// Programs go on using the memory: a task that touches a page of a file that moves waits for at most
    /// [`COLLAPSE_FILE_PAGES`](crate::limits::COLLAPSE_FILE_PAGES) to be copied. A task that touches other
    /// memory waits for a flush and at most [`COLLAPSE_RECOPIED`](crate::limits::COLLAPSE_RECOPIED) pages to
    /// be copied, more only if a program stores faster than
    /// [`COLLAPSE_ROUNDS`](crate::limits::COLLAPSE_ROUNDS) rounds can copy.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an overflow, [`MmError::NoMemory`] where nothing is
    /// mapped in a part of the range; the rest was collapsed then.
    pub fn collapse(&self, addr: VirtAddr, len: u64) -> Result<Collapsed, MmError> {
        CollapseCall::of(&self.space).collapse(addr, len)
    }

    /// As [`Self::collapse`], with pages of 1 GiB in these steps.
    ///
    /// # Errors
    /// As [`Self::collapse`].
    pub fn collapse_in(&self, addr: VirtAddr, len: u64, steps: CollapseSteps) -> Result<Collapsed, MmError> {
        CollapseCall::of(&self.space).collapse_in(addr, len, steps)
    }
}
