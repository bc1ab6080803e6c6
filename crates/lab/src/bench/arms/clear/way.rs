//! The ways to clear, what is measured of them, and what all arms of a run share.

use quire::arch::{ClearKernel, CpuFeatures};
use quire::clear::ClearPolicy;
use quire::platform::TouchHint;

use crate::bench::experiment::{Better, Metric};
use crate::bench::runner::Runner;
use crate::calibrate::{self, Effort};

/// Bytes a second.
pub const RATE: Metric = Metric { name: "rate", unit: "GiB/s", better: Better::Higher };

/// What all arms of a run share.
pub struct Setting {
    pub(in crate::bench::arms) policy: ClearPolicy,
    pub(in crate::bench::arms) cpus: Vec<usize>,
}

impl Setting {
    /// Calibrates, unless this process has done so: before an experiment binds its thread to one CPU.
    ///
    /// # Errors
    /// Too little memory to measure in.
    pub fn of(runner: &Runner) -> anyhow::Result<Self> {
        let (policy, _) = calibrate::of_this_run(runner.scale.pick(Effort::SMOKE, Effort::FULL))?;
        Ok(Self { policy, cpus: runner.cpus.clone() })
    }
}

/// A way to clear an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One kernel over all of it at once, without reschedule points.
    Kernel(ClearKernel),
    /// The C library's.
    Memset,
    /// The library's verb with its measured policy, in stretches.
    Policy(TouchHint),
    /// Nothing is cleared.
    Nothing,
    /// Nothing is cleared, and as much time passes as the policy took last.
    Wait,
    /// A line of each page of 4 KiB is cleared past the caches, in as much time.
    Translate,
}

impl Way {
    /// The name of its arm.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel(kernel) => kernel.name(),
            Self::Memset => "memset",
            Self::Policy(TouchHint::Soon) => "quire-soon",
            Self::Policy(TouchHint::Later) => "quire-later",
            Self::Policy(TouchHint::Unknown) => "quire",
            Self::Nothing => "none",
            Self::Wait => "wait",
            Self::Translate => "translate",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Kernel(kernel) if kernel.is_streaming() => {
                "this instruction over each extent at once and a store fence: the raw rate, past the caches."
            }
            Self::Kernel(_) => "this instruction over each extent at once: the raw rate, through the caches.",
            Self::Memset => "the C library's memset.",
            Self::Policy(TouchHint::Unknown) => {
                "Clearer::clear_extent by the measured policy when nothing is known of the use, in stretches with reschedule points."
            }
            Self::Translate => {
                "a line of each page of 4 KiB is cleared past the caches, and as much time passes as `quire` took last: what the translations of the extent do, \
                 which the processor keeps by 4 KiB where the host of a virtual machine has no larger pages for it."
            }
            Self::Policy(TouchHint::Soon) => "the same when the memory is used soon, as a fault says.",
            Self::Policy(TouchHint::Later) => "the same when it is used later.",
            Self::Nothing => "nothing is cleared.",
            Self::Wait => {
                "nothing is cleared, and as much time passes as `quire` took last: what time alone does."
            }
        }
    }
}

/// Every kernel of the processor.
pub(super) fn kernels() -> impl Iterator<Item = Way> {
    let features = CpuFeatures::detect();
    let runs = move |kernel: &ClearKernel| kernel.on(features).is_ok();
    ClearKernel::ALL.into_iter().filter(runs).map(Way::Kernel)
}
