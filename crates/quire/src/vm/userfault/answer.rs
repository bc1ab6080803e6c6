//! The part that all answers share: go page by page up to the first that cannot be answered, then wake tasks.
#![forbid(unsafe_code)]

use super::changes::Handlers;
use crate::addr::{VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::{FaultError, MapError, UserfaultError};
use crate::limits::POPULATE_FAULTS;
use crate::platform::Platform;
use crate::vm::fault::faults::Faults;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::Step;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::Space;
use crate::vm::userfault::register::Registrations;

/// How a fault is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerMode {
    /// Wakes the tasks that wait for a page of the range. Otherwise
    /// [`Mm::userfault_wake`](crate::vm::Mm::userfault_wake) must wake them (`*_MODE_DONTWAKE`).
    pub wake: bool,
    /// Write-protects the pages for the handler at once (`*_MODE_WP`), where that mode is registered.
    pub write_protected: bool,
}

/// How far an answer went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an answer may have stopped halfway"]
pub struct Answer {
    /// Bytes answered, from the start of the range on.
    pub bytes: u64,
    /// Why it stopped before the end of the range.
    pub stopped: Option<UserfaultError>,
}

/// Why a page was not answered, for now or for good.
pub(in crate::vm) enum Stop {
    /// Something changed meanwhile: try again.
    Again,
    /// The table is shared with another address space: unshare it, and try again.
    Shared,
    /// Take this step of a fault, holding no lock, and try again.
    Step(Step),
    Error(UserfaultError),
}

impl Default for AnswerMode {
    fn default() -> Self {
        Self::WAKE
    }
}

impl AnswerMode {
    /// Waiting tasks go on, and may store.
    pub const WAKE: Self = Self { wake: true, write_protected: false };
    /// No task is woken.
    pub const QUIET: Self = Self { wake: false, write_protected: false };
    /// Waiting tasks go on; the first store is an event of its own.
    pub const PROTECTED: Self = Self { wake: true, write_protected: true };
}

impl Answer {
    const fn none(error: UserfaultError) -> Self {
        Self { bytes: 0, stopped: Some(error) }
    }

    /// The bytes of the range, if all were answered.
    ///
    /// # Errors
    /// Why not all were.
    pub fn all(self) -> Result<u64, UserfaultError> {
        self.stopped.map_or(Ok(self.bytes), Err)
    }
}

impl From<UserfaultError> for Stop {
    fn from(error: UserfaultError) -> Self {
        Self::Error(error)
    }
}

impl From<MapError> for Stop {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Shared => Self::Shared,
            MapError::Occupied => Self::Error(UserfaultError::Exists),
            MapError::OutOfMemory => Self::Error(UserfaultError::OutOfMemory),
            MapError::Unaligned | MapError::BadAddress => Self::Error(UserfaultError::Invalid),
        }
    }
}

impl From<FaultError> for Stop {
    fn from(error: FaultError) -> Self {
        Self::Error(error.into())
    }
}

handle! {
    /// Answers of handlers: they map a page where none is mapped, and wake.
    Answers of AddressSpace
}

impl<P: Platform> Answers<'_, '_, P> {
    /// Answers a range page by page, then wakes. `one` gets a page's address and the bytes left of the range,
    /// and returns the bytes that it answered (0: call it again). No lock is held on entry, nor when it is
    /// called.
    pub(super) fn answer_range(
        self,
        addr: VirtAddr,
        len: u64,
        mode: AnswerMode,
        mut one: impl FnMut(VirtAddr, u64) -> Result<u64, Stop>,
    ) -> Answer {
        let range = self.layout().range(addr, len);
        let Some(range) = range.filter(|range| range.len() == len && !range.is_empty()) else {
            return Answer::none(UserfaultError::Invalid);
        };
        let (mut at, mut stopped, mut pages) = (range.start, None, 0);
        while at < range.end && stopped.is_none() {
            match one(at, range.end.0 - at.0) {
                Ok(bytes) => at = at.add(bytes),
                Err(stop) => stopped = self.go_on(at, stop),
            }
            pages += 1;
            if pages % POPULATE_FAULTS == 0 {
                self.memory.platform().reschedule_point();
            }
        }
        let bytes = at.0 - range.start.0;
        if mode.wake && bytes > 0 {
            self.wake_range(VirtRange::from_len(range.start, bytes));
        }
        Answer { bytes, stopped }
    }

    /// Prepares another attempt at a page; returns the error if there must be none.
    fn go_on(self, at: VirtAddr, stop: Stop) -> Option<UserfaultError> {
        let step = match stop {
            Stop::Error(error) => return Some(error),
            Stop::Again => Step::Again,
            Stop::Shared => Step::Shared,
            Stop::Step(step) => step,
        };
        Faults::of(self.0).prepare_retry(step, at).err().map(UserfaultError::from)
    }

    /// The mapping around `at`, if `left` bytes there may be answered: it has a handler, and no change must
    /// be read first. The caller holds the lock for reading.
    pub(super) fn answerable(
        self,
        space: &Space,
        at: VirtAddr,
        left: u64,
        mode: AnswerMode,
    ) -> Result<&Vma, UserfaultError> {
        let vma = space.tree.find(at).filter(|vma| vma.attributes.handler.is_some());
        let vma = vma.ok_or(UserfaultError::NotRegistered)?;
        let handler = vma.attributes.handler;
        if self.memory.userfaults().is_changing(handler) {
            return Err(UserfaultError::Again);
        }
        if let Some(size) = vma.attributes.whole_size()
            && (!at.is_aligned(size.bytes()) || left < size.bytes())
        {
            return Err(UserfaultError::Invalid);
        }
        let protects = handler.catches(super::registration::UserfaultModes::WRITE_PROTECT);
        if mode.write_protected && !protects { Err(UserfaultError::Invalid) } else { Ok(vma) }
    }

    /// Wakes the tasks that wait for a page of the range. The caller holds no lock.
    pub(in crate::vm) fn wake_range(self, range: VirtRange) {
        let space = self.space.read(self.memory.platform());
        let handlers = Handlers::of(&space, range);
        drop(space);
        Registrations::of(self.0).wake_all(&handlers, range);
    }
}

/// The bits of an answer's leaf: `writable` lets tasks store through it, unless the answer write-protects it.
pub(super) fn answer_flags(vma: &Vma, writable: bool, mode: AnswerMode) -> EntryFlags {
    if mode.write_protected {
        leaf_flags(&vma.attributes, false).union(EntryFlags::UFFD_WP)
    } else {
        leaf_flags(&vma.attributes, writable)
    }
}
