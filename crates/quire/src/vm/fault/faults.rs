//! The page fault: tries to make an access possible, removes the obstacle if there is one, and tries again.
#![forbid(unsafe_code)]

use crate::addr::{Order, VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::{EntryFlags, Protection};
use crate::error::{FaultError, MapError};
use crate::hugetlb::HugeSize;
use crate::limits::{BLOCK_SIZE, RECLAIM_ROUNDS};
use crate::page_alloc::{Gfp, NodePolicy};
use crate::pgtable::{Lookup, Walked};
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::words::Table;
use crate::vm::fault::huge::extent_of;
use crate::vm::fault::step::{Caller, FaultKind, FaultOutcome, Step};
use crate::vm::gigantic::clear::GiganticClearing;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::handle::handle;
use crate::vm::mapping::policy::OrderSet;
use crate::vm::mapping::vma::Vma;
use crate::vm::memory_failure::lose::MemoryLoss;
use crate::vm::reclaim::shrink::SpaceReclaim;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::userfault::changes::Notices;

handle! { Faults of AddressSpace }

impl<'p, P: Platform> Faults<'_, 'p, P> {
    /// The request for a private page of a mapping.
    #[inline(always)]
    pub(super) fn request_for(self, vma: &Vma) -> Gfp {
        let nodes = match vma.attributes.nodes {
            Some(nodes) => nodes,
            None => match self.memory.platform().task_nodes() {
                // By itself, so that the compiler knows the most frequent request.
                NodePolicy::Local => return Gfp::USER,
                nodes => nodes,
            },
        };
        if nodes == NodePolicy::Local { Gfp::USER } else { Gfp::USER.from_nodes(nodes) }
    }

    pub(in crate::vm) fn fault(self, addr: VirtAddr, access: Access) -> Result<FaultOutcome, FaultError> {
        let space = self.read_beside(|| at(addr));
        let step = match space.tree.find(addr) {
            Some(vma) => {
                let walked = self.tables().descend(addr);
                if let Some(table) = self.table_of_new_page(vma, access, walked) {
                    match self.map_new_page(vma, addr, table) {
                        Ok(true) => return Ok(FaultOutcome { order: Order::FRAME, kind: FaultKind::Anon }),
                        Ok(false) => Ok(Step::Again),
                        Err(error) => Err(error),
                    }
                } else {
                    let found = self.tables().found(walked, addr);
                    self.fault_at(vma, addr, access, found, Caller::Access)
                }
            }
            None => Ok(Step::Grow),
        };
        drop(space);
        self.memory.pages().count(Stat::Pgfault, 1);
        match step {
            Ok(Step::Done(outcome)) => Ok(outcome),
            step => self.fault_again(addr, access, step),
        }
    }

    /// Removes the obstacle that an attempt met, and tries again.
    #[cold]
    #[inline(never)]
    fn fault_again(
        self,
        addr: VirtAddr,
        access: Access,
        mut step: Result<Step, FaultError>,
    ) -> Result<FaultOutcome, FaultError> {
        let (mut rounds, mut major) = (0, false);
        loop {
            match step {
                Ok(Step::Done(FaultOutcome { order, kind: FaultKind::FileMinor })) if major => {
                    return Ok(FaultOutcome { order, kind: FaultKind::FileMajor });
                }
                Ok(Step::Done(outcome)) => return Ok(outcome),
                Ok(Step::Read(file, index)) => match self.read_page(file, index) {
                    Ok(read) => major |= read,
                    Err(error) => {
                        step = Err(error);
                        continue;
                    }
                },
                Ok(step) => self.prepare_retry(step, addr)?,
                Err(FaultError::OutOfMemory)
                    if rounds < RECLAIM_ROUNDS && SpaceReclaim::of(self.0).free_some() > 0 =>
                {
                    rounds += 1
                }
                Err(error) => return Err(error),
            }
            let space = self.read_beside(|| at(addr));
            step = match space.tree.find(addr) {
                Some(vma) => self.fault_in(vma, addr, access, Caller::Access),
                None => Ok(Step::Grow),
            };
        }
    }

    /// Does what a step asks for before the fault is tried again. The caller holds no lock.
    #[cold]
    pub(in crate::vm) fn prepare_retry(self, step: Step, addr: VirtAddr) -> Result<(), FaultError> {
        match step {
            Step::Done(_) => {}
            Step::Again => self.memory.platform().relax(),
            Step::Read(file, index) => _ = self.read_page(file, index)?,
            Step::Grow => self.grow_down(addr)?,
            Step::Shared => self.unshare_at(addr)?,
            Step::TakeBack(frame) => self.take_back(frame)?,
            Step::Handler(waiting) => Notices::of(self.0).wait_for_handler(waiting)?,
            Step::Cleared(cleared) => GiganticClearing::of(self.memory).end_clear(&cleared),
            Step::ClearHuge { size, nodes, caller } => self.clear_huge((size, nodes), addr, caller)?,
            Step::ClearBlock { page, caller } => {
                PoolFaults::of(self.0).clear_block(addr, &extent_of(HugeSize::Size1G, page, addr, caller))?;
            }
            Step::Complete => {
                drop(PoolFaults::of(self.0).lock_complete(VirtRange { start: addr, end: addr.add(1) }))
            }
            Step::Whole(page) => self.make_whole(addr, page)?,
            Step::Marked(folio) => MemoryLoss::of(self.memory).lose_marked(folio),
        }
        Ok(())
    }

    /// The table for the most frequent fault, which takes a short way: the first store to a page of private
    /// memory, where single frames are mapped and the page table is there.
    #[inline(always)]
    fn table_of_new_page(self, vma: &Vma, access: Access, walked: Walked) -> Option<Table<'p>> {
        let (attributes, table) = (&vma.attributes, self.tables().table_with_room(walked)?);
        let is_new = access == Access::Write
            && attributes.protection.contains(Protection::WRITE)
            && !attributes.handler.is_some()
            && attributes.is_anonymous()
            && self.allowed_orders(vma) == OrderSet::FRAME;
        is_new.then_some(table)
    }

    /// The orders of folios that the mapping may use.
    #[inline]
    pub(super) fn allowed_orders(self, vma: &Vma) -> OrderSet {
        self.memory.policy().allowed(vma.attributes.advice, vma.attributes.folios)
    }

    /// One attempt in a mapping that holds the address. The caller holds the lock for reading.
    pub(in crate::vm) fn fault_in(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        self.fault_at(vma, addr, access, self.tables().lookup(addr), caller)
    }

    /// As [`Self::fault_in`], after a lookup of the address under the same hold of the lock.
    #[inline(always)]
    fn fault_at(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        found: Lookup,
        caller: Caller,
    ) -> Result<Step, FaultError> {
        if !access.is_allowed(vma.attributes.protection) {
            return Err(FaultError::Protection);
        }
        // A shared table counts once for all its sharers, so it is unshared before map counts are read.
        if found.shared && (found.entry.is_empty() || access == Access::Write) {
            return Ok(Step::Shared);
        }
        if vma.attributes.handler.is_some()
            && let Some(step) = Notices::of(self.0).tell_handler(vma, addr, access, &found)?
        {
            return Ok(step);
        }
        if found.entry.is_empty() {
            return if vma.attributes.is_anonymous() {
                self.fault_anonymous(vma, addr, access, &found, caller)
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
            && !found.entry.has(EntryFlags::DIRTY)
            && (caller == Caller::Access || found.entry.has(EntryFlags::LAZY_FREE))
        {
            // Hardware would set the bit with the store. A secondary MMU would not, and no store follows
            // where a task populates.
            if !self.tables().upgrade(addr, size, found.entry, EntryFlags::DIRTY | EntryFlags::ACCESSED) {
                return Ok(Step::Again);
            }
        }
        Ok(Step::done(order, FaultKind::Spurious))
    }

    /// Unshares the table of 4 KiB leaves around an address. The caller holds no lock.
    pub(in crate::vm) fn unshare_at(self, addr: VirtAddr) -> Result<(), FaultError> {
        let table = VirtRange::from_len(addr.align_down(BLOCK_SIZE), BLOCK_SIZE);
        let mut rounds = 0;
        loop {
            let space = self.lock();
            let done = self.tables().unshare(table);
            drop(space);
            match done {
                Err(_) if rounds < RECLAIM_ROUNDS && SpaceReclaim::of(self.0).free_some() > 0 => rounds += 1,
                done => return done.map_err(|_| FaultError::OutOfMemory),
            }
        }
    }
}

/// What a fault is about, as the lock of its address space takes it. A folio around the address lies in one
/// mapping, and in one table unless it is larger than a table.
fn at(addr: VirtAddr) -> VirtRange {
    VirtRange { start: addr, end: VirtAddr(addr.0.saturating_add(1)) }
}

/// Whether an attempt to map succeeded; `false` when another CPU was faster.
pub(in crate::vm) fn mapped(result: Result<(), MapError>) -> Result<bool, FaultError> {
    match result {
        Ok(()) => Ok(true),
        Err(MapError::Occupied | MapError::Shared) => Ok(false),
        Err(MapError::OutOfMemory) => Err(FaultError::OutOfMemory),
        Err(MapError::Unaligned | MapError::BadAddress) => Err(FaultError::NotMapped),
    }
}

/// Whether the table of 4 KiB leaves is missing, so that a large leaf may go there.
pub(super) fn is_vacant_above(found: &Lookup) -> bool {
    found.entry.is_empty() && found.level.get() > 0
}
