//! Brings pages in before they are touched: `MAP_POPULATE`, `mlock`, `MADV_POPULATE_READ` and `_WRITE`.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::Protection;
use crate::error::FaultError;
use crate::limits::{CLEAR_STRETCH_BYTES, FRAME_SIZE, LOCK_HOLD_FRAMES, POPULATE_FAULTS, RECLAIM_ROUNDS};
use crate::platform::Platform;
use crate::vm::fault::faults::Faults;
use crate::vm::fault::step::{Caller, Step};
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{VmaAttributes, VmaFlags};
use crate::vm::reclaim::shrink::SpaceReclaim;
use crate::vm::space::address_space::AddressSpace;

/// How the pages of a mapping are brought in.
pub(in crate::vm) enum How {
    /// As accesses of this kind would bring them.
    As(Access),
    /// Not now, only when they are touched.
    Skip,
    /// Not at all: it is an error, as if the mapping did not allow the access.
    Refuse,
}

handle! { Populate of AddressSpace }

impl<P: Platform> Populate<'_, '_, P> {
    /// Brings every page of the range in, up to the first that cannot be: private writable ones as stores
    /// would, others as loads would. Skips mappings that are locked on fault.
    pub(in crate::vm) fn populate(self, range: VirtRange) -> Result<(), FaultError> {
        self.populate_as(range, |vma| {
            let writable = vma.protection.contains(Protection::WRITE);
            if vma.flags.contains(VmaFlags::LOCK_ON_FAULT) {
                return How::Skip;
            }
            How::As(if vma.is_private() && writable { Access::Write } else { Access::Read })
        })
    }

    /// Brings every page of the range in as `choose` says for its mapping, up to the first that cannot be.
    pub(in crate::vm) fn populate_as(
        self,
        range: VirtRange,
        choose: impl Fn(&VmaAttributes) -> How,
    ) -> Result<(), FaultError> {
        let (mut at, mut rounds) = (range.start, 0);
        let caller = Caller::Populate { bytes: range.len() };
        while at < range.end {
            match self.populate_some(VirtRange { start: at, end: range.end }, &choose, caller) {
                Ok(next) => at = next,
                Err((next, FaultError::OutOfMemory))
                    if rounds < RECLAIM_ROUNDS && SpaceReclaim::of(self.0).free_some() > 0 =>
                {
                    rounds = if next > at { 0 } else { rounds + 1 };
                    at = next;
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings in pages of one mapping, as many as one hold of the lock may take. Returns where to go on.
    fn populate_some(
        self,
        range: VirtRange,
        choose: &impl Fn(&VmaAttributes) -> How,
        caller: Caller,
    ) -> Result<VirtAddr, (VirtAddr, FaultError)> {
        let mut at = range.start;
        let space = self.read_beside(|| range);
        let vma = space.tree.find(at).ok_or((at, FaultError::NotMapped))?;
        let end = range.end.min(vma.range.end);
        let access = match choose(&vma.attributes) {
            How::Skip => return Ok(end),
            How::Refuse => return Err((at, FaultError::Protection)),
            How::As(access) => access,
        };
        let (mut faults, mut frames, mut held) = (0, 0, 0);
        while at < end && held < LOCK_HOLD_FRAMES as u64 {
            let faults_of = Faults::of(self.0);
            let step = faults_of.fault_in(vma, at, access, caller);
            // By reference: a step is large, and a copy of what was just stored in parts stalls the processor.
            let Ok(Step::Done(outcome)) = &step else {
                drop(space);
                let prepared = step.and_then(|step| faults_of.prepare_retry(step, at));
                return prepared.map(|()| at).map_err(|error| (at, error));
            };
            at = at.align_down(outcome.order.bytes()).add(outcome.order.bytes());
            (faults, frames) = (faults + 1, frames + outcome.order.frames());
            held += outcome.order.frames();
            // Clearing makes no reschedule point for a folio shorter than a stretch, nor after the last
            // stretch of a longer one.
            if faults >= POPULATE_FAULTS || frames >= CLEAR_STRETCH_BYTES / FRAME_SIZE {
                self.memory.platform().reschedule_point();
                (faults, frames) = (0, 0);
                if self.memory.platform().is_dying() {
                    return Err((at, FaultError::Dying));
                }
            }
        }
        Ok(at.min(end))
    }
}
