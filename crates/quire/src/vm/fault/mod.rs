//! The page fault: makes an access possible, or says why not (`docs/flows/page_fault.md`).

pub(super) mod anon;
pub(super) mod cow;
pub(super) mod faults;
pub(super) mod file;
pub(super) mod flags;
pub(super) mod huge;
pub(super) mod stack;
pub(super) mod step;
pub(super) mod whole;

pub(super) use huge::HugePlace;
