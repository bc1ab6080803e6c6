//! Clearing and copying memory: which kernel for which extent, in which order and stretches.
//!
//! Every kernel of [`arch`](crate::arch) is correct. Which one is fastest depends on the extent, on how many
//! CPUs clear at once, and on the later use: zeroes used at once should be cached, all others should leave
//! the caches alone. So the choice is a table ([`ClearPolicy`]) by hint, CPUs and extent, derived from the
//! processor's features and caches, or from a measurement ([`Calibration`]).
//!
//! A [`Clearer`] holds the table and clears for one machine, in [stretches](Stretch) with a reschedule point
//! and a chance to cancel between them. The neighbourhood of the touched address is cleared last and stays
//! cached (Huang: "mm: clear huge page: clear target sub-page last", 2017).

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
    /// CPUs that are clearing or copying an extent large enough to be counted.
    busy: AtomicU32,
}

impl Clearer {
    /// Creates a clearer with this policy, or with the one that the processor's features and caches suggest.
    ///
    /// # Errors
    /// [`KernelError::Missing`] when the policy names a kernel that the machine cannot run.
    pub fn new<P: FramePlatform>(platform: &P, policy: Option<&ClearPolicy>) -> Result<Self, KernelError> {
        let features = platform.features();
        let suggested = || ClearPolicy::suggested(features, platform.caches());
        let policy = policy.copied().unwrap_or_else(suggested);
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

    /// The current policy.
    pub fn policy(&self) -> ClearPolicy {
        ClearPolicy { clear: self.clear.load(), copy: self.copy.load(), stretch: self.stretch() }
    }

    /// Replaces the policy; clears in progress may use either.
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

    /// Counts this CPU among those that clear, if the extent is large enough to matter to others.
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
    /// How many CPUs clear or copy, this one included. A CPU that is not counted does not read the number:
    /// each page would fetch the cache line from another CPU.
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
