//! The handles for reports: one for an address space, one for frames.
#![forbid(unsafe_code)]

use crate::vm::handle::handle;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::shared::MmShared;

handle! {
    /// Reports about an address space.
    Observation of AddressSpace
}

handle! {
    /// Reports about frames and folios, whichever address spaces map them.
    PageSurvey of MmShared
}
