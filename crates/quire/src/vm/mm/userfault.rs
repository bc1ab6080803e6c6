//! Registration of ranges with handlers of faults, and the handlers' answers.
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
    /// Maps pages with given contents in `len` bytes from `addr`, where none exist yet. Calls `fill` for each
    /// page, with the page's distance from `addr` in bytes; `fill` must write all of the page. Programs see a
    /// page whole or not at all. In a shared mapping the file gets the page. As `UFFDIO_COPY`. The caller
    /// holds no lock; `fill` must not call this address space.
    ///
    /// Huge pages are filled whole, with the address-space lock held for reading. Where parts of them may be
    /// mapped by themselves (`MADV_SPLIT`), any part that is not mapped here can be filled, whatever the file
    /// has.
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
        Answers::of(self.sleepable()).userfault_copy(addr, len, mode, fill)
    }

    /// Marks `len` bytes from `addr`, where nothing is mapped, as lost: accesses get
    /// [`FaultError::Poisoned`](crate::error::FaultError::Poisoned), in this address space and its children,
    /// until the address is unmapped. As `UFFDIO_POISON`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Exists`](crate::error::UserfaultError::Exists) where something is
    /// mapped; [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid) for private huge pages that
    /// were reserved, since a marker there means that the page left for its pool; and as for
    /// [`Self::userfault_copy`].
    pub fn userfault_poison(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(self.sleepable()).userfault_poison(addr, len, mode)
    }

    /// Registers this handler for faults on `len` bytes from `addr`, of the kinds in `modes` only. Registers
    /// all mappings in the range, and skips holes. Mapped pages stay mapped; a task that waits for a page of
    /// the range with the same handler faults anew. As `UFFDIO_REGISTER`. The caller holds no lock.
    ///
    /// Private anonymous memory and private huge pages have no [`MINOR`](UserfaultModes::MINOR). Files of the
    /// pager have no [`MISSING`](UserfaultModes::MISSING), since the pager supplies their pages: any fault on
    /// an unmapped page is minor, whether the page is in memory or not.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned or empty range, one that ends inside a huge page or in which
    /// nothing is mapped, no modes, modes that a mapping cannot have, and a closed handler; [`MmError::Busy`]
    /// when another handler is registered for a part of it; [`MmError::NoMemory`]. Nothing has changed then.
    pub fn userfault_register(
        &self,
        handler: &Userfault<'_, P>,
        addr: VirtAddr,
        len: u64,
        modes: UserfaultModes,
    ) -> Result<(), MmError> {
        Registrations::of(self.sleepable()).userfault_register(handler, addr, len, modes)
    }

    /// Ends the registration of `len` bytes from `addr`. Removes marks of write protection; a task that waits
    /// for a page of the range faults anew. As `UFFDIO_UNREGISTER`. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] as for [`Self::userfault_register`]; [`MmError::NoMemory`]. Nothing has changed
    /// then.
    pub fn userfault_unregister(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        Registrations::of(self.sleepable()).userfault_unregister(addr, len)
    }

    /// Makes this the handler of every mapping whose own handler is gone, with the same modes. Returns how
    /// many bytes these mappings have. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a closed handler.
    pub fn userfault_adopt(&self, handler: &Userfault<'_, P>) -> Result<u64, MmError> {
        Registrations::of(self.sleepable()).userfault_adopt(handler)
    }

    /// Gives all ranges of one handler to another one, with the same modes and marks, or ends their registration: then
    /// marks go, and tasks that wait for a page fault anew. Returns how many bytes these mappings have. A kernel whose
    /// handlers are those of one address space, as Linux' are, calls it for a child, or before the handler is closed.
    /// The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] if the other handler is closed; [`MmError::NoMemory`]; some mappings have changed then.
    pub fn userfault_hand_over(
        &self,
        from: &Userfault<'_, P>,
        to: Option<&Userfault<'_, P>>,
    ) -> Result<u64, MmError> {
        Registrations::of(self.sleepable()).userfault_hand_over(from, to)
    }

    /// Maps the pages that the file has for `len` bytes from `addr`, as they are. Pages of the pager are read
    /// if they are not in memory. Huge pages that may be mapped in parts get the largest leaves that fit the
    /// range. As `UFFDIO_CONTINUE`. The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::NotThere`](crate::error::UserfaultError::NotThere) where the file has
    /// no page, [`UserfaultError::Exists`](crate::error::UserfaultError::Exists) where one is mapped,
    /// [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid) for anonymous memory and ranges
    /// that are unaligned, empty or end inside a huge page, and as for [`Self::userfault_copy`].
    pub fn userfault_continue(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(self.sleepable()).userfault_continue(addr, len, mode)
    }

    /// Wakes every thread that waits for a page of `len` bytes from `addr`; it waits again if its fault still
    /// has no answer. As `UFFDIO_WAKE`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Invalid`](crate::error::UserfaultError::Invalid).
    pub fn userfault_wake(&self, addr: VirtAddr, len: u64) -> Answer {
        Answers::of(self.sleepable()).userfault_wake(addr, len)
    }

    /// Marks the pages that are mapped in `len` bytes from `addr`, or removes such marks, which answers the
    /// tasks that wait to store. Pages that are not mapped get no mark, so a first store to them does not ask
    /// the handler. As `UFFDIO_WRITEPROTECT`. The caller holds no lock.
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
        Answers::of(self.sleepable()).userfault_write_protect(addr, len, protect, mode)
    }

    /// Maps zeroes in `len` bytes from `addr`, where no pages exist yet; private memory gets the zero frame,
    /// which the first store copies. As `UFFDIO_ZEROPAGE`, but for huge pages too, as with
    /// [`Self::userfault_copy`]. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer, as for [`Self::userfault_copy`].
    pub fn userfault_zeropage(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        Answers::of(self.sleepable()).userfault_zeropage(addr, len, mode)
    }
}
