//! How zeroes and copies get into memory: which kernel for which extent, and in which order and stretches.
//!
//! The kernels themselves are [`arch`](crate::arch)'s, each a way that is always right. Which of them is fast depends on the
//! extent, on how many CPUs do it at once, and on what comes after: zeroes that are used at once had better be cached, and
//! zeroes that are not had better leave the caches to others. So the choice is a table ([`ClearPolicy`]) by hint, CPUs and
//! extent, made from what the processor says of itself, or from what was measured on it ([`Calibration`]).
//!
//! A [`Clearer`] holds the table and does the work for one machine. An extent is cleared in [stretches](Stretch), with a place
//! for others to run and a place to give up between them; the neighbourhood of an address that was touched comes last and stays cached (Huang: "mm: clear huge page: clear
//! target sub-page last", 2017).

mod calibrate;
mod cells;
mod copy;
mod extent;
mod measure;
mod policy;
mod stretch;

pub use calibrate::{Calibration, Cost, Measured};
pub use copy::Copier;
pub use extent::Extent;
pub use measure::{measure_clear, measure_copy};
pub use policy::{CLASSES, ClearPolicy, THREADS, Table, bytes_of, class_of, cpus_of, threads_class};
pub use stretch::{MeasuredStretches, STRETCHES, Stretch};

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch::{ClearKernel, CopyKernel, CpuFeatures};
use crate::error::KernelError;
use crate::platform::FramePlatform;
use cells::Cells;

/// Clears and copies for one machine.
#[derive(Debug)]
pub struct Clearer {
    features: CpuFeatures,
    clear: Cells<ClearKernel>,
    copy: Cells<CopyKernel>,
    /// Frames between two reschedule points, at most.
    stretch: AtomicU64,
    /// CPUs that are clearing or copying an extent that is counted.
    busy: AtomicU32,
}

impl Clearer {
    /// With the policy that the processor's features and caches suggest, or with one of the caller's.
    ///
    /// # Errors
    /// [`KernelError::Missing`] when the caller's names a kernel that the machine cannot run.
    pub fn new<P: FramePlatform>(platform: &P, policy: Option<&ClearPolicy>) -> Result<Self, KernelError> {
        let features = platform.features();
        let suggested;
        let policy = match policy {
            Some(policy) => policy,
            None => {
                suggested = ClearPolicy::suggested(features, platform.caches());
                &suggested
            }
        };
        policy.check(features)?;
        Ok(Self {
            features,
            clear: Cells::new(&policy.clear),
            copy: Cells::new(&policy.copy),
            stretch: AtomicU64::new(policy.stretch.frames()),
            busy: AtomicU32::new(0),
        })
    }

    /// The features that kernels may use.
    #[inline]
    pub fn features(&self) -> CpuFeatures {
        self.features
    }

    /// The policy in force.
    pub fn policy(&self) -> ClearPolicy {
        ClearPolicy { clear: self.clear.load(), copy: self.copy.load(), stretch: self.stretch() }
    }

    /// Chooses another policy from now on; clears that are under way may use either.
    ///
    /// # Errors
    /// [`KernelError::Missing`] when it names a kernel that the machine cannot run; nothing has changed then.
    pub fn set_policy(&self, policy: &ClearPolicy) -> Result<(), KernelError> {
        policy.check(self.features)?;
        self.clear.store(&policy.clear);
        self.copy.store(&policy.copy);
        self.stretch.store(policy.stretch.frames(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn stretch(&self) -> Stretch {
        Stretch::of_frames(self.stretch.load(Ordering::Relaxed))
    }

    /// Counts this CPU among those that clear, where the extent is large enough to matter to others.
    fn busy(&self, bytes: u64) -> Busy<'_> {
        let counted = bytes >= crate::limits::CLEAR_COUNTED_BYTES;
        if counted {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        Busy { clearer: self, counted }
    }
}

/// One CPU that clears or copies.
struct Busy<'a> {
    clearer: &'a Clearer,
    counted: bool,
}

impl Busy<'_> {
    /// How many CPUs do so now, this one included. One that is not counted does not look: the line would come from another
    /// CPU for each page.
    fn cpus(&self) -> u32 {
        if self.counted { self.clearer.busy.load(Ordering::Relaxed) } else { 1 }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.clearer.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
