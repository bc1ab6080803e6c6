//! A secondary MMU of an address space: from registration on it is told which of its copies go bad.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;

use crate::platform::Platform;
use crate::vm::mm::facade::Mm;

/// The registration of a secondary MMU, until dropped. Before that, the secondary MMU has dropped its copies
/// and makes no new ones: it is not told any more when they go bad.
#[must_use = "a secondary MMU is registered as long as this lives"]
pub struct Secondary<'a, 'm, P: Platform> {
    pub(super) mm: &'a Mm<'m, P>,
}

impl<'a, 'm, P: Platform> Secondary<'a, 'm, P> {
    /// The address space.
    pub fn mm(&self) -> &'a Mm<'m, P> {
        self.mm
    }

    /// Leaves the secondary MMU registered for as long as the address space lives, whose end is told by one
    /// last bracket around all of the user half.
    pub fn keep(self) {
        let _kept = ManuallyDrop::new(self);
    }
}

impl<P: Platform> Drop for Secondary<'_, '_, P> {
    fn drop(&mut self) {
        let space = self.mm.space.lock();
        self.mm.space.context().remove_secondary();
        drop(space);
    }
}
