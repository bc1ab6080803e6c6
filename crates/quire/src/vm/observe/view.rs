//! Through which values callers look: one for an address space, one for frames.
#![forbid(unsafe_code)]

use crate::vm::handle::handle;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::shared::MmShared;

handle! {
    /// What callers see of an address space.
    Observation of AddressSpace
}

handle! {
    /// What callers see of frames and folios, whichever address spaces map them.
    PageSurvey of MmShared
}
