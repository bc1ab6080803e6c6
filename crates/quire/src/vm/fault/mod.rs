//! The page fault: makes an access good, or says why not. The flow is told in `docs/flows/page_fault.md`.

mod anon;
mod cow;
mod file;
mod huge;
mod stack;

pub(super) use huge::Place;

use crate::addr::{Frame, FrameRange, Order, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Protection};
use crate::error::{FaultError, MapError};
use crate::limits::{BLOCK_SIZE, RECLAIM_ROUNDS};
use crate::pgtable::Lookup;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::vm::gigantic::forming::Formed;
use crate::vm::mapping::vma::{Vma, VmaAttributes};
use crate::vm::space::mm::Mm;
use crate::vm::userfault::Waiting;

/// What the access wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Fetch an instruction.
    Exec,
}

/// Who wants memory to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// An access, which goes on at once.
    Access,
    /// Somebody who brings in this many bytes, and may use them or not.
    Populate {
        /// All that is brought in together.
        bytes: u64,
    },
}

/// How a fault was made good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The zero frame was mapped for a read of untouched memory.
    AnonZero,
    /// A folio of zeroes was mapped.
    Anon,
    /// A page that others map, or the zero frame, was copied.
    Cow,
    /// A write-protected page that nobody else maps was made writable.
    Reuse,
    /// A page of the page cache was mapped.
    FileMinor,
    /// As before, after it was read from the pager.
    FileMajor,
    /// The access was possible already: another CPU was faster, or this one had an old translation.
    Spurious,
}

/// What a fault did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultOutcome {
    /// The order of the folio (or the leaf) that the address is in now.
    pub order: Order,
    /// How it came there.
    pub kind: FaultKind,
}

/// One attempt.
pub(super) enum Step {
    /// The access is possible now.
    Done(FaultOutcome),
    /// Something changed meanwhile: look again.
    Again,
    /// The last piece of a gigantic folio is done: call [`Mm::end_forming`], holding no lock, and look again.
    Formed(Formed),
    /// Some of the folio's memory went bad before it was mapped: call [`Memory::lose_marked`](crate::vm::space::shared::Memory), holding no
    /// lock, and look again.
    Marked(FrameRange),
    /// The table is shared with another address space: call [`Mm::unshare_at`], holding no lock, and look again.
    Shared,
    /// The pool has no page for a copy of this one, which was promised to the caller: call [`Mm::take_back`], holding no lock,
    /// and look again.
    TakeBack(Frame),
    /// A handler was told: call [`Contexts::wait`](crate::vm::userfault::Contexts::wait), holding no lock, and look again.
    Handler(Waiting),
}

impl Step {
    pub(super) const fn done(order: Order, kind: FaultKind) -> Self {
        Self::Done(FaultOutcome { order, kind })
    }
}

impl Access {
    /// Whether a mapping allows the access. Hardware knows no memory that can be written or executed and not read.
    pub(super) fn is_allowed(self, protection: Protection) -> bool {
        match self {
            Self::Read => protection != Protection::NONE,
            Self::Write => protection.contains(Protection::WRITE),
            Self::Exec => protection.contains(Protection::EXEC),
        }
    }

    /// Whether a present leaf allows it.
    pub(super) fn is_good_for(self, leaf: Entry) -> bool {
        match self {
            Self::Read => leaf.has(EntryFlags::USER),
            Self::Write => leaf.has(EntryFlags::USER | EntryFlags::WRITE),
            Self::Exec => leaf.has(EntryFlags::USER) && leaf.allows_fetch(),
        }
    }
}

impl<P: Platform> Mm<'_, P> {
    /// Makes an access at `addr` good. A kernel calls it from its page-fault handler with the address and the kind that
    /// hardware reports; any number of CPUs may do so at once.
    ///
    /// # Errors
    /// [`FaultError`]: the signal that the access deserves, or [`FaultError::OutOfMemory`] after page cache and lazily
    /// freed memory were given up in vain. Where a handler of faults is registered the caller waits for its answer, or gets
    /// [`FaultError::NoHandler`].
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<FaultOutcome, FaultError> {
        self.memory.pages().count(Stat::Pgfault, 1);
        let mut rounds = 0;
        loop {
            let space = self.space.read(self.memory.platform());
            let step = match space.tree.find(addr) {
                Some(vma) => self.fault_in(vma, addr, access, Caller::Access),
                None => {
                    drop(space);
                    self.grow_down(addr)?;
                    continue;
                }
            };
            drop(space);
            match step {
                Ok(Step::Done(outcome)) => return Ok(outcome),
                Ok(Step::Again) => self.memory.platform().relax(),
                Ok(Step::Shared) => self.unshare_at(addr)?,
                Ok(Step::TakeBack(frame)) => self.take_back(frame)?,
                Ok(Step::Handler(waiting)) => self.wait_for_handler(waiting)?,
                Ok(Step::Formed(formed)) => self.end_forming(&formed),
                Ok(Step::Marked(folio)) => self.memory.lose_marked(folio),
                Err(FaultError::OutOfMemory) if rounds < RECLAIM_ROUNDS && self.make_room() > 0 => {
                    rounds += 1
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt in a mapping that holds the address. The caller holds the lock for reading.
    pub(super) fn fault_in(
        &self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        if !access.is_allowed(vma.attributes.protection) {
            return Err(FaultError::Protection);
        }
        let found = self.tables().lookup(addr);
        // Nothing below asks who else maps a frame before the table is ours: a shared table counts once.
        if found.shared && (found.entry.is_empty() || access == Access::Write) {
            return Ok(Step::Shared);
        }
        if vma.attributes.handler.is_some()
            && let Some(step) = self.tell_handler(vma, addr, access, &found)?
        {
            return Ok(step);
        }
        if found.entry.is_empty() {
            return if vma.attributes.is_anonymous() {
                self.fault_anonymous(vma, addr, access, found, caller)
            } else if vma.attributes.huge_size().is_some() {
                self.fault_huge(vma, addr, access, caller)
            } else {
                self.fault_file(vma, addr, access, &found)
            };
        }
        if found.entry.is_poison() {
            return Err(FaultError::Poisoned);
        }
        let order = found.leaf_size().map_or(Order::FRAME, |size| size.order());
        if access == Access::Write && !access.is_good_for(found.entry) {
            return self.fault_protected(vma, addr, found);
        }
        if let Some(size) = found.leaf_size()
            && access == Access::Write
            && caller == Caller::Access
            && !found.entry.has(EntryFlags::DIRTY)
        {
            // Hardware would set it with the store. Whoever asks on behalf of others (a secondary MMU) lets them store
            // without.
            if !self.tables().upgrade(addr, size, found.entry, EntryFlags::DIRTY | EntryFlags::ACCESSED) {
                return Ok(Step::Again);
            }
        }
        Ok(Step::done(order, FaultKind::Spurious))
    }
}

impl<P: Platform> Mm<'_, P> {
    /// Sees to it that the table of 4 KiB leaves around an address is not shared. The caller holds no lock.
    pub(super) fn unshare_at(&self, addr: VirtAddr) -> Result<(), FaultError> {
        let table = VirtRange::from_len(addr.align_down(BLOCK_SIZE), BLOCK_SIZE);
        let mut rounds = 0;
        loop {
            let space = self.lock();
            let done = self.tables().unshare(table);
            drop(space);
            match done {
                Err(_) if rounds < RECLAIM_ROUNDS && self.make_room() > 0 => rounds += 1,
                done => return done.map_err(|_| FaultError::OutOfMemory),
            }
        }
    }
}

/// The bits of a leaf in this mapping. `writable` is what the page allows; the mapping may allow less. Accessed, and
/// dirty with it, are set at once, so that hardware has nothing left to write; and whoever may store without a fault counts
/// as having stored.
pub(super) fn leaf_flags(vma: &VmaAttributes, writable: bool) -> EntryFlags {
    let writable = writable && vma.protection.contains(Protection::WRITE);
    let protection = if writable { vma.protection } else { vma.protection.without(Protection::WRITE) };
    // A mapping that can only be written can be read on this hardware as well.
    let readable =
        if vma.protection == Protection::NONE { protection } else { protection.union(Protection::READ) };
    let flags = EntryFlags::leaf(readable).union(EntryFlags::ACCESSED);
    if writable { flags.union(EntryFlags::DIRTY).union(EntryFlags::SOFT_DIRTY) } else { flags }
}

/// The bits of a large leaf onto private anonymous memory that was just cleared.
pub(super) fn fresh_flags(vma: &VmaAttributes, caller: Caller) -> EntryFlags {
    let flags = leaf_flags(vma, true).union(EntryFlags::ANON);
    if caller == Caller::Access {
        return flags;
    }
    // Nobody may ever touch what is populated. That is worth knowing of a large leaf; for a small one, having hardware set the
    // dirty bit would cost more than clearing.
    flags.without(EntryFlags::DIRTY).union(EntryFlags::ZEROED)
}

/// What became of an attempt to map.
pub(super) fn mapped(result: Result<(), MapError>) -> Result<bool, FaultError> {
    match result {
        Ok(()) => Ok(true),
        Err(MapError::Occupied | MapError::Shared) => Ok(false),
        Err(MapError::OutOfMemory) => Err(FaultError::OutOfMemory),
        Err(MapError::Unaligned | MapError::BadAddress) => Err(FaultError::NotMapped),
    }
}

/// Whether nothing but an upper level has an entry for the address, so that one large leaf may come there.
fn is_vacant_above(found: &Lookup) -> bool {
    found.entry.is_empty() && found.level.get() > 0
}
