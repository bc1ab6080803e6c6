//! The ways to clear, their metrics, and what all arms of a run share.

use quire::arch::{ClearKernel, CopyKernel, CpuFeatures};
use quire::clear::{ClearPolicy, Stretch};
use quire::platform::TouchHint;

use crate::bench::experiment::{Better, Metric};
use crate::bench::runner::{Runner, Scale};
use crate::calibrate::{self, Effort};

/// Clearing rate.
pub const RATE: Metric = Metric { name: "rate", unit: "GiB/s", better: Better::Higher };

/// What all arms of a run share.
pub struct Setting {
    pub(in crate::bench::arms) policy: ClearPolicy,
    pub(in crate::bench::arms) cpus: Vec<usize>,
}

impl Setting {
    /// Calibrates unless this process already has. Must run before an experiment binds its thread to one CPU.
    ///
    /// # Errors
    /// If there is too little memory to measure in.
    pub fn of(runner: &Runner) -> anyhow::Result<Self> {
        let is_quick = runner.scale.rounds < Scale::FULL.rounds;
        let effort = runner.scale.pick(Effort::SMOKE, if is_quick { Effort::QUICK } else { Effort::FULL });
        let (policy, _) = calibrate::of_this_run(effort)?;
        Ok(Self { policy, cpus: runner.cpus.clone() })
    }
}

/// A way to clear an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One kernel over the whole extent, without reschedule points.
    Kernel(ClearKernel),
    /// The C library's `memset`.
    Memset,
    /// The library's verb with its measured policy, in stretches.
    Policy(TouchHint),
    /// As Linux 7.0 clears.
    Contiguous,
    /// Nothing is cleared.
    Nothing,
    /// Waits as long as the policy took last, without clearing.
    Wait,
    /// The same, after clearing one line of each 4 KiB page by a non-temporal store.
    Translate,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel(kernel) => kernel.name(),
            Self::Memset => "memset",
            Self::Policy(TouchHint::Soon) => "quire-soon",
            Self::Policy(TouchHint::Later) => "quire-later",
            Self::Policy(TouchHint::Unknown) => "quire",
            Self::Contiguous => "contiguous",
            Self::Nothing => "none",
            Self::Wait => "wait",
            Self::Translate => "translate",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Kernel(kernel) if kernel.is_streaming() => {
                "this instruction over each whole extent, then a store fence: the raw rate of non-temporal \
                 stores."
            }
            Self::Kernel(_) => "this instruction over each whole extent: the raw rate through the caches.",
            Self::Memset => "the C library's memset.",
            Self::Policy(TouchHint::Unknown) => {
                "Clearer::clear_extent with the calibrated policy and no hint about the use, in stretches \
                 with reschedule points."
            }
            Self::Translate => {
                "clears one line of each 4 KiB page by a non-temporal store and waits as long as `quire` \
                 took last: the share of the TLB misses, since a processor keeps 4 KiB translations where \
                 the host has no larger page."
            }
            Self::Policy(TouchHint::Soon) => "as `quire`, with the hint of a fault: the memory is used soon.",
            Self::Policy(TouchHint::Later) => "as `quire`, with the hint that the memory is used later.",
            Self::Contiguous => CONTIGUOUS_ABOUT,
            Self::Nothing => "nothing is cleared.",
            Self::Wait => "clears nothing and waits as long as `quire` took last: the effect of time alone.",
        }
    }
}

/// Linux 7.0 clears so much in one run where tasks are not preempted (`PROCESS_PAGES_NON_PREEMPT_BATCH`).
const RUN: Stretch = match Stretch::of(8 << 20) {
    Ok(stretch) => stretch,
    Err(_) => panic!("a multiple of a frame"),
};

/// The policy of the arms `contiguous`.
pub(in crate::bench::arms) fn contiguous() -> ClearPolicy {
    ClearPolicy::only(ClearKernel::String, CopyKernel::String).with_stretch(RUN)
}

/// What the arms `contiguous` do.
pub(in crate::bench::arms) const CONTIGUOUS_ABOUT: &str = "as `quire`, by string stores in runs of 8 MiB, the touched neighbourhood last: the shape that Linux has since \
     7.0 where tasks are not preempted.";

/// Every kernel that this processor has.
pub(super) fn kernels() -> impl Iterator<Item = Way> {
    let features = CpuFeatures::detect();
    let runs = move |kernel: &ClearKernel| kernel.on(features).is_ok();
    ClearKernel::ALL.into_iter().filter(runs).map(Way::Kernel)
}
