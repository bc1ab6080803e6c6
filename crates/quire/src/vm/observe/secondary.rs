//! A secondary MMU of an address space: from registration on it is told which of its copies go bad.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;

use crate::platform::Platform;
use crate::vm::space::mm::Mm;

/// The registration of a secondary MMU, until dropped. Before that, the secondary MMU has dropped its copies and makes no
/// new ones: nobody tells it any more when they go bad.
#[must_use = "a secondary MMU is registered as long as this lives"]
pub struct Secondary<'a, 'm, P: Platform> {
    mm: &'a Mm<'m, P>,
}

impl<'m, P: Platform> Mm<'m, P> {
    /// Registers a secondary MMU, one that walks this address space by [`Self::translate`] and keeps copies of what it
    /// finds. From here on verbs on the address space call [`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start) and what belongs to it; for an address
    /// space without any they make no such call. Several may register; each is told everything, since the platform is.
    /// Waits for the verbs under way. The caller holds no lock.
    pub fn register_secondary(&self) -> Secondary<'_, 'm, P> {
        let space = self.lock();
        self.context().add_secondary();
        drop(space);
        Secondary { mm: self }
    }
}

impl<'a, 'm, P: Platform> Secondary<'a, 'm, P> {
    /// The address space.
    pub fn mm(&self) -> &'a Mm<'m, P> {
        self.mm
    }

    /// Leaves the secondary MMU registered for as long as the address space lives, whose end is told by one last bracket
    /// around all of the user half.
    pub fn keep(self) {
        let _kept = ManuallyDrop::new(self);
    }
}

impl<P: Platform> Drop for Secondary<'_, '_, P> {
    fn drop(&mut self) {
        let space = self.mm.lock();
        self.mm.context().remove_secondary();
        drop(space);
    }
}
