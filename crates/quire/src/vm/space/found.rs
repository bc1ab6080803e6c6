//! Address spaces that were found through a file or a family, and are pinned while the finder uses them.

use core::ops::{Deref, Range};
use core::ptr::NonNull;

use crate::filemap::FileNode;
use crate::platform::Platform;
use crate::vm::space::body::MmBody;
use crate::vm::space::shared::MmShared;

/// A pinned body: its address space is not torn down until this is dropped.
pub(in crate::vm) struct FoundBody(NonNull<MmBody>);

impl FoundBody {
    /// The first address space with a number above `after` that maps one of these pages of the file.
    pub(in crate::vm) fn next<P: Platform>(
        platform: &P,
        file: &FileNode,
        after: u64,
        pages: &Range<u64>,
    ) -> Option<Self> {
        let mapper = file.views(platform).next_mapper(after, pages)?;
        // The mapper is the body's first field, and its pointer was made from the body's (`show`).
        Some(Self(mapper.cast()))
    }

    /// The first address space with a key above `after`, and its key.
    pub(in crate::vm) fn next_of_all<P: Platform>(
        memory: &MmShared<'_, P>,
        after: (u64, u64),
    ) -> Option<(Self, (u64, u64))> {
        let families = memory.families();
        let (body, place) = families.next_of_all(after)?;
        // SAFETY: V3: a body in the families is live while their lock is held, and then while it is pinned.
        unsafe { body.as_ref() }.mapper.pin();
        Some((Self(body), place))
    }

    /// The first address space of `family`, as an origin keeps it, with a number above `after`.
    pub(in crate::vm) fn next_of_family<P: Platform>(
        memory: &MmShared<'_, P>,
        family: u64,
        after: u64,
    ) -> Option<Self> {
        let families = memory.families();
        let body = families.next(family, after)?;
        // SAFETY: V3: a body in the families is live while their lock is held, and then while it is pinned.
        unsafe { body.as_ref() }.mapper.pin();
        Some(Self(body))
    }
}

impl Deref for FoundBody {
    type Target = MmBody;
    #[inline]
    fn deref(&self) -> &MmBody {
        // SAFETY: V2: the body is live while it is pinned, and borrowed shared.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for FoundBody {
    fn drop(&mut self) {
        self.mapper.unpin();
    }
}
