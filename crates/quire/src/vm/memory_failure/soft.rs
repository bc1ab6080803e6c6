//! Takes a frame out of use before it goes bad: its contents move elsewhere first (Linux: soft offline).
#![forbid(unsafe_code)]

use crate::addr::{Frame, Order};
use crate::error::{MemoryFailureError, MigrateError, SplitError};
use crate::nodes::NodePolicy;
use crate::page_alloc::Verdict;
use crate::platform::Platform;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::handle::handle;
use crate::vm::memory_failure::lose::ROUNDS;
use crate::vm::migrate::huge::{HugeMigration, HugeMove};
use crate::vm::migrate::relocate::Migration;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::shared::MmShared;

handle! { SoftOffline of MmShared }

impl<P: Platform> SoftOffline<'_, '_, P> {
    /// Moves what is in a frame elsewhere, and takes the frame out of use. The caller holds no lock.
    ///
    /// # Errors
    /// [`MemoryFailureError`]; the frame is in use as before then.
    pub(crate) fn soft_offline(self, frame: Frame) -> Result<(), MemoryFailureError> {
        Cancellation::of(self.0).cancel_around(frame);
        for _ in 0..ROUNDS {
            if self.try_once(frame)? {
                return Ok(());
            }
            self.platform().reschedule_point();
            self.platform().relax();
        }
        Err(MemoryFailureError::Busy)
    }

    /// Returns whether the frame is out of use.
    fn try_once(self, frame: Frame) -> Result<bool, MemoryFailureError> {
        if let Some(page) = HugeMigration::of(self.0).page_at(frame) {
            if self.pages().frames().is_bad(frame) {
                return Err(MemoryFailureError::AlreadyPoisoned);
            }
            let nodes = NodePolicy::Preferred(self.pages().store().node_of_frame(frame));
            let how = HugeMove { nodes, pooled: true, bad: Some(frame) };
            return HugeMigration::of(self.0).move_page(page, how).map(|_| true).or_else(again);
        }
        match self.pages().condemn(frame) {
            Verdict::Lost | Verdict::Marked => return Ok(true),
            Verdict::Already => return Err(MemoryFailureError::AlreadyPoisoned),
            Verdict::Unrecoverable => return Err(MemoryFailureError::Unrecoverable),
            Verdict::NotMemory => return Err(MemoryFailureError::NotMemory),
            Verdict::Huge => {
                // The page joined a pool just now, and the mark on it stays: the pool must not hand it out.
                self.huge().memory_failure(self.pages(), frame);
                return Ok(true);
            }
            Verdict::Busy => return Ok(false),
            Verdict::Anonymous | Verdict::Held => {}
        }
        let Some(start) = self.pages().frames().folio_start(frame) else { return Ok(false) };
        if self.pages().frames().folio_rest(start) > Order::BLOCK.frames() {
            return match ReverseMap::of(self.0).split_folio(start, Order::BLOCK) {
                Err(SplitError::OutOfMemory) => Err(MemoryFailureError::OutOfMemory),
                _ => Ok(false),
            };
        }
        Migration::of(self.0).migrate_to(start, None).map(|_| false).or_else(again)
    }
}

/// What is moving or in use may be gone in a moment.
fn again(error: MigrateError) -> Result<bool, MemoryFailureError> {
    match error {
        MigrateError::OutOfMemory => Err(MemoryFailureError::OutOfMemory),
        MigrateError::NotMovable | MigrateError::Busy => Ok(false),
    }
}
