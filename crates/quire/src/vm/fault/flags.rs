//! The bits of the leaves that faults make.
#![forbid(unsafe_code)]

use crate::arch::{EntryFlags, Protection};
use crate::vm::fault::step::Caller;
use crate::vm::mapping::vma::VmaAttributes;

/// The bits of a leaf in this mapping. `writable` is what the page allows; the mapping may allow less. The
/// accessed bit, and the dirty bit of a writable leaf, are set at once, so that hardware has nothing left to
/// write. So a task that may store without a fault counts as having stored.
pub(in crate::vm) fn leaf_flags(vma: &VmaAttributes, writable: bool) -> EntryFlags {
    let writable = writable && vma.protection.contains(Protection::WRITE);
    let protection = if writable { vma.protection } else { vma.protection.without(Protection::WRITE) };
    // Hardware can read whatever can be written.
    let readable =
        if vma.protection == Protection::NONE { protection } else { protection.union(Protection::READ) };
    let flags = EntryFlags::leaf(readable).union(EntryFlags::ACCESSED);
    if writable { flags.union(EntryFlags::DIRTY).union(EntryFlags::SOFT_DIRTY) } else { flags }
}

/// [`leaf_flags`] of a page of new private memory in a mapping that allows stores, in fewer instructions.
#[inline(always)]
pub(super) fn new_page_flags(vma: &VmaAttributes) -> EntryFlags {
    const HISTORY: EntryFlags =
        EntryFlags::ANON.union(EntryFlags::ACCESSED).union(EntryFlags::DIRTY).union(EntryFlags::SOFT_DIRTY);
    let writable = vma.protection.union(Protection::READ).union(Protection::WRITE);
    let flags = EntryFlags::leaf(writable).union(HISTORY);
    debug_assert_eq!(flags, leaf_flags(vma, true).union(EntryFlags::ANON));
    flags
}

/// The bits of a large leaf onto private anonymous memory that was just cleared.
pub(in crate::vm) fn fresh_flags(vma: &VmaAttributes, caller: Caller) -> EntryFlags {
    let flags = leaf_flags(vma, true).union(EntryFlags::ANON);
    if caller == Caller::Access {
        return flags;
    }
    // Populated memory may never be touched, which is worth knowing of a large leaf. For a small one, letting
    // hardware set the dirty bit would cost more than clearing the page.
    flags.without(EntryFlags::DIRTY).union(EntryFlags::ZEROED)
}

/// The protection without the right to store. A writable page stays readable, as in hardware.
pub(in crate::vm) fn without_stores(allowed: Protection) -> Protection {
    if allowed.contains(Protection::WRITE) {
        allowed.without(Protection::WRITE).union(Protection::READ)
    } else {
        allowed
    }
}
