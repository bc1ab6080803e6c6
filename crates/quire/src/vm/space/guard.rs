//! The lock of an address space, held for writing.
#![forbid(unsafe_code)]

use core::ops::{Deref, DerefMut};

use crate::addr::VirtRange;
use crate::platform::Platform;
use crate::sync::WriteGuard;
use crate::vm::space::body::BodyBox;
use crate::vm::space::state::Space;

/// Its drop tells the files which of their mappings changed.
pub(in crate::vm) struct SpaceGuard<'a, P: Platform> {
    pub(super) space: WriteGuard<'a, Space, P>,
    pub(super) body: &'a BodyBox,
    pub(super) platform: &'a P,
}

impl<P: Platform> SpaceGuard<'_, P> {
    /// Lets faults outside `kept` go on beside the holder, until it next changes the mappings or gives the
    /// lock back. Meanwhile it changes and detaches only what `kept` covers of the page table.
    pub(in crate::vm) fn admit(&mut self, kept: VirtRange) {
        self.space.admit(&(kept.start.0..kept.end.0));
    }

    /// As [`ReadGuard::writes`](crate::sync::ReadGuard::writes), this holder included.
    pub(in crate::vm) fn writes(&self) -> u32 {
        self.space.writes()
    }
}

impl<P: Platform> Deref for SpaceGuard<'_, P> {
    type Target = Space;
    #[inline]
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl<P: Platform> DerefMut for SpaceGuard<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

impl<P: Platform> Drop for SpaceGuard<'_, P> {
    fn drop(&mut self) {
        // Only then, since an exclusive reference ends the admission of faults.
        if self.space.tree.has_changed() {
            self.body.show_changed(self.platform, &mut self.space.tree);
        }
    }
}
