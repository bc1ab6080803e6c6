//! Registration of ranges with handlers of faults, and the answers of these.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::mm::facade::Mm;
use crate::vm::userfault::answer::Answers;
use crate::vm::userfault::bytes::PageBytes;
use crate::vm::userfault::register::Registrations;
use crate::vm::userfault::{Answer, AnswerMode, Userfault, UserfaultModes};

impl<P: Platform> Mm<'_, P> {
    /// Gives `len` bytes from `addr`, of which nothing is there yet, the contents that `fill` writes: it is
    /// called for each page, with the page's distance from `addr` in bytes, and must fill all of it. A page
    /// is seen whole or not at all. In a shared mapping it is the file's from then on. As `UFFDIO_COPY`. The
    /// caller holds no lock; `fill` calls nothing of this address space.
    ///
    /// Huge pages are copied whole, and the address-space lock is held for reading meanwhile. Where parts of
    /// them may be mapped by themselves (`MADV_SPLIT`) any part can be copied that is not mapped here,
    /// whatever the file's page holds there.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Exists`](crate::error::UserfaultError::Exists) where there is a page,
    /// [`UserfaultError::NotRegistered`](crate::error::UserfaultError::NotRegistered),
    /// [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid) for a range that is unaligned,
    /// empty or ends inside a huge page and for files of the pager,
    /// [`UserfaultError::BeyondEnd`](crate::error::UserfaultError::BeyondEnd),
    /// [`UserfaultError::Again`](crate::error::UserfaultError::Again),
    /// [`UserfaultError::OutOfMemory`](crate::error::UserfaultError::OutOfMemory),
    /// [`UserfaultError::NoHugePage`](crate::error::UserfaultError::NoHugePage).
    pub fn userfault_copy(
        &self,
        addr: VirtAddr,
        len: u64,
        mode: AnswerMode,
        fill: impl FnMut(u64, &mut PageBytes),
    ) -> Answer {
        Answers::of(&self.space).userfault_copy(addr, len, mode, fill)
    }

    /// Says of `len` bytes from `addr`, of which nothing is mapped, that they are lost: accesses get
    /// [`FaultError::Poisoned`](crate::error::FaultError::Poisoned), in this address space and its children,
    /// until the address is unmapped. As `UFFDIO_POISON`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Exists`](crate::error::UserfaultError::Exists) where something is
    /// mapped; [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid) for private huge pages that
    /// were reserved, as a marker there stands for a page that went back to the pool; and as for
    /// [`Self::userfault_copy`].
    pub fn userfault_poison(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(&self.space).userfault_poison(addr, len, mode)
    }

    /// Has this handler told of faults on `len` bytes from `addr`: what `modes` says, and nothing else. All
    /// mappings in the range are registered, and holes are passed over. What is mapped already stays; a task
    /// that waits for a page of the range with the same handler faults anew. As `UFFDIO_REGISTER`. The caller
    /// holds no lock.
    ///
    /// Private anonymous memory has no [`MINOR`](UserfaultModes::MINOR), nor have private huge pages; files
    /// of the pager have no [`MISSING`](UserfaultModes::MISSING), since the pager is asked: there a fault on
    /// what is not mapped is minor, whether the page is in memory or not.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned or empty range, one that ends inside a huge page or in which
    /// nothing is mapped, no modes, modes that a mapping cannot have, and a handler that was closed;
    /// [`MmError::Busy`] when another one is registered for a part of it; [`MmError::NoMemory`]. Nothing has
    /// changed then.
    pub fn userfault_register(
        &self,
        handler: &Userfault<'_, P>,
        addr: VirtAddr,
        len: u64,
        modes: UserfaultModes,
    ) -> Result<(), MmError> {
        Registrations::of(&self.space).userfault_register(handler, addr, len, modes)
    }

    /// Ends that a handler is told of faults on `len` bytes from `addr`. Marks of write protection are taken
    /// off, and a task that waits for a page of the range faults anew. As `UFFDIO_UNREGISTER`. The caller
    /// holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] as for [`Self::userfault_register`]; [`MmError::NoMemory`]. Nothing has changed
    /// then.
    pub fn userfault_unregister(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Registrations::of(&self.space).userfault_unregister(addr, len)
    }

    /// Makes this handler that of every mapping whose own one is gone, with the modes that it has. How many
    /// bytes that are. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a handler that was closed.
    pub fn userfault_adopt(&self, handler: &Userfault<'_, P>) -> Result<u64, MmError> {
        Registrations::of(&self.space).userfault_adopt(handler)
    }

    /// Maps the pages that the file has for `len` bytes from `addr`, as they are. Of a file of the pager they
    /// are read if they are not in memory; of huge pages that may be mapped in parts the largest leaves come
    /// that fit the range. As `UFFDIO_CONTINUE`. The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::NotThere`](crate::error::UserfaultError::NotThere) where the file has
    /// no page, [`UserfaultError::Exists`](crate::error::UserfaultError::Exists) where one is mapped,
    /// [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid) for anonymous memory and ranges
    /// that are unaligned, empty or end inside a huge page, and as for [`Self::userfault_copy`].
    pub fn userfault_continue(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(&self.space).userfault_continue(addr, len, mode)
    }

    /// Lets every thread go on that waits for a page of `len` bytes from `addr`; one that finds nothing new
    /// waits again. As `UFFDIO_WAKE`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid).
    pub fn userfault_wake(&self, addr: VirtAddr, len: u64) -> Answer {
        Answers::of(&self.space).userfault_wake(addr, len)
    }

    /// Marks the pages that are mapped in `len` bytes from `addr`, or takes such marks off, which answers the
    /// tasks that wait to store. What is not mapped gets no mark: its first store finds, or makes, a page
    /// without one. As `UFFDIO_WRITEPROTECT`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer, with nothing changed:
    /// [`UserfaultError::NotRegistered`](crate::error::UserfaultError::NotRegistered) unless all of the range
    /// is registered with [`WRITE_PROTECT`](UserfaultModes::WRITE_PROTECT),
    /// [`UserfaultError::Again`](crate::error::UserfaultError::Again),
    /// [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid),
    /// [`UserfaultError::OutOfMemory`](crate::error::UserfaultError::OutOfMemory).
    pub fn userfault_write_protect(
        &self,
        addr: VirtAddr,
        len: u64,
        protect: bool,
        mode: AnswerMode,
    ) -> Answer {
        Answers::of(&self.space).userfault_write_protect(addr, len, protect, mode)
    }

    /// Gives `len` bytes from `addr`, of which nothing is there yet, zeroes: in private memory by the frame
    /// of zeroes, which the first store copies. As `UFFDIO_ZEROPAGE`; of huge pages too, as
    /// [`Self::userfault_copy`] takes them. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer, as for [`Self::userfault_copy`].
    pub fn userfault_zeropage(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(&self.space).userfault_zeropage(addr, len, mode)
    }
}
