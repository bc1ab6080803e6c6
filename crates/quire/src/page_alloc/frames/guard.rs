//! What guards per-CPU lists and the store against interrupts: the lease, or a `published` scheme.
#![forbid(unsafe_code)]

use crate::page_alloc::frames::Frames;
#[cfg(feature = "published")]
use crate::page_alloc::pcp::guarded;
use crate::platform::FramePlatform;
#[cfg(feature = "published")]
use crate::platform::ListGuard;

impl<P: FramePlatform> Frames<'_, P> {
    #[cfg(feature = "published")]
    pub(in crate::page_alloc) fn with_interrupts_off<R>(&self, visit: impl FnOnce() -> R) -> R {
        let state = self.platform.interrupts_off();
        let result = visit();
        self.platform.interrupts_restore(state);
        result
    }

    /// Whether the common path may use the lists. It includes the lease, which is all that the library's own
    /// guard needs, and a guard that the platform names.
    #[cfg(feature = "published")]
    #[inline(always)]
    pub(in crate::page_alloc) fn lists_are_open(&self) -> bool {
        guarded::are_open::<P>(self.guard)
    }

    /// Visits the store, with interrupts off where the guard wants its locks to be safe against interrupts.
    #[inline]
    pub(in crate::page_alloc) fn in_store<R>(&self, visit: impl FnOnce() -> R) -> R {
        #[cfg(feature = "published")]
        if self.guard == ListGuard::TaskOnly {
            return self.interrupts_guarded(visit);
        }
        visit()
    }

    /// [`Self::in_store`] outside of list accesses, in which interrupts may be off already.
    #[inline]
    pub(in crate::page_alloc) fn interrupts_guarded<R>(&self, visit: impl FnOnce() -> R) -> R {
        #[cfg(feature = "published")]
        if self.guard != ListGuard::Reentry {
            return self.with_interrupts_off(visit);
        }
        visit()
    }
}
