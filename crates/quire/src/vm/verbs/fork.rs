//! `fork`: an address space with the same contents, copied on the next store.
#![forbid(unsafe_code)]

use crate::addr::VirtRange;
use crate::error::MmError;
use crate::hugetlb::HugeGroup;
use crate::limits::{BLOCK_SIZE, RECLAIM_ROUNDS};
use crate::pgtable::CopyMode;
use crate::platform::Platform;
use crate::tlb::{FlushBatch, RssChange};
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::reclaim::shrink::SpaceReclaim;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::counted;
use crate::vm::space::shared::ForkStrategy;
use crate::vm::space::state::{LockMode, Space};
use crate::vm::tree::{VmaList, VmaTree, edit};
use crate::vm::userfault::UserfaultModes;
use crate::vm::userfault::changes::Notices;

const NOT_INHERITED: VmaFlags = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT).union(VmaFlags::RESERVED);

handle! { Fork of AddressSpace }

impl<'m, P: Platform> Fork<'_, 'm, P> {
    pub(in crate::vm) fn fork(self) -> Result<AddressSpace<'m, P>, MmError> {
        let mut forked = self.try_fork();
        for _ in 0..RECLAIM_ROUNDS {
            if forked.is_ok() || SpaceReclaim::of(self.0).free_some() == 0 {
                break;
            }
            forked = self.try_fork();
        }
        forked
    }

    fn try_fork(self) -> Result<AddressSpace<'m, P>, MmError> {
        let context = self.context();
        let child =
            AddressSpace::new_unpublished(self.memory, context.mode(), context.zap(), Some(self.family))?;
        child.set_group(self.group());
        let space = PoolFaults::of(self.0).lock_complete(self.layout().user);
        let mut fresh = child.lock_unpublished();
        let handlers = Notices::of(self.0).announce_fork(&space);
        let mut gone = VmaList::new();
        let mut owed = FlushBatch::new();
        let copied = self
            .copy_mappings(&space, &mut fresh, &mut gone)
            .and_then(|()| self.copy_pages(&space, &child, &mut owed));
        owed.flush(self.memory.pages(), self.context());
        // Before the parent's lock is released, so that the reverse map finds each leaf in one of the two.
        drop(fresh);
        child.enter_family();
        drop(space);
        self.memory.discard_list(gone);
        if let Some(handlers) = handlers {
            Notices::of(self.0).tell_forked(&handlers, copied.is_ok().then(|| child.number()));
        }
        copied.map(|()| child)
    }

    /// Gives the child every mapping of the parent without `NOT_INHERITED`, and merges neighbours. Mappings
    /// that a child does not get are left out.
    fn copy_mappings(self, parent: &Space, child: &mut Space, gone: &mut VmaList) -> Result<(), MmError> {
        (child.layout, child.brk) = (parent.layout, parent.brk);
        (child.stack_limit, child.mapping_limit) = (parent.stack_limit, parent.mapping_limit);
        child.limits = parent.limits;
        (child.moved, child.huge, child.handled) = (parent.moved, parent.huge, parent.handled);
        child.lock_future = LockMode::None;
        for vma in parent.tree.iter().filter(|vma| !vma.attributes.flags.contains(VmaFlags::NOT_FORKED)) {
            let mut node = self.memory.blank()?;
            let mut attributes = vma.attributes.again(0);
            attributes.group = HugeGroup::NONE;
            attributes.flags = attributes.flags.without(NOT_INHERITED);
            *node = Vma::new(vma.range, attributes);
            if let Err(node) = edit::insert(&mut child.tree, node, gone) {
                debug_assert!(false, "the parent's mappings do not overlap");
                gone.push(node);
            }
        }
        Ok(())
    }

    fn copy_pages(
        self,
        parent: &Space,
        child: &AddressSpace<'m, P>,
        owed: &mut FlushBatch,
    ) -> Result<(), MmError> {
        if parent.handled && parent.tree.iter().any(protects) {
            child.context().note_marks();
        }
        if self.context().has_lost() {
            child.context().note_lost();
        }
        for vma in parent.tree.iter().filter(|vma| has_pages_in_child(vma)) {
            if !self.must_copy(vma) {
                let copied = self.tables().copy_poison(&child.tables(), vma.range);
                copied.map_err(|_| MmError::NoMemory)?;
                continue;
            }
            let mut rss = RssChange::default();
            let mode = match (vma.attributes.is_private(), protects(vma)) {
                (true, false) => CopyMode::Private,
                (true, true) => CopyMode::PrivateMarked,
                (false, _) => CopyMode::SharedMarked,
            };
            let copied = if self.memory.fork_strategy() == ForkStrategy::Share && is_shareable(vma) {
                let limits = shareable_around(&parent.tree, vma);
                self.tables().share(&child.tables(), vma.range, limits, mode, owed, &mut rss)
            } else {
                self.tables().copy(&child.tables(), vma.range, mode, owed, &mut rss)
            };
            child.add_rss(rss, counted(vma));
            copied.map_err(|_| MmError::NoMemory)?;
        }
        Ok(())
    }

    /// Whether a child needs the leaves of a mapping. Its own faults bring in pages of a file as well, and most children
    /// start another program before they use them. Where the parent has private pages of a file, all leaves are
    /// copied, as in Linux (`vma_needs_copy`).
    fn must_copy(self, vma: &Vma) -> bool {
        let lacks_file_pages = vma.attributes.is_anonymous() || vma.attributes.huge_size().is_some();
        protects(vma)
            || vma.attributes.is_private() && (lacks_file_pages || self.tables().maps_private(vma.range))
    }
}

/// Whether a handler write-protects pages of the mapping.
fn protects(vma: &Vma) -> bool {
    vma.attributes.handler.catches(UserfaultModes::WRITE_PROTECT)
}

/// Whether tables that map only this mapping may be shared. Not for files: truncation unmaps their pages in
/// every address space, and must not need memory to unshare a table.
fn is_shareable(vma: &Vma) -> bool {
    vma.attributes.is_anonymous() && vma.attributes.is_private() && has_pages_in_child(vma)
}

/// Whether a child begins with the mapping's pages.
fn has_pages_in_child(vma: &Vma) -> bool {
    let flags = vma.attributes.flags;
    !flags.contains(VmaFlags::NOT_FORKED) && !flags.contains(VmaFlags::WIPED_ON_FORK)
}

/// The mapping's range, extended within its first and last table to the next mapping that is not shareable.
fn shareable_around(tree: &VmaTree, vma: &Vma) -> VirtRange {
    let start = vma.range.start.align_down(BLOCK_SIZE);
    let end = vma.range.end.align_up(BLOCK_SIZE).unwrap_or(vma.range.end);
    let below =
        tree.overlapping(VirtRange::new(start, vma.range.start)).filter(|vma| !is_shareable(vma)).last();
    let above = tree.overlapping(VirtRange::new(vma.range.end, end)).find(|vma| !is_shareable(vma));
    VirtRange::new(below.map_or(start, |vma| vma.range.end), above.map_or(end, |vma| vma.range.start))
}
