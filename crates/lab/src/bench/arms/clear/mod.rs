//! Arms of the experiments `clear`, `clear-cache` and `clear-then-use`: kernels by themselves, and the policy.

mod cache;
mod fill;
mod grounds;
pub(in crate::bench::arms) mod huge;
mod populate;
mod raw;
mod used;

use std::rc::Rc;

use quire::arch::{ClearKernel, CpuFeatures};
use quire::platform::TouchHint;

use super::super::experiment::{Arm, Better, Metric};
use crate::bench::runner::Runner;
use crate::calibrate::{self, Effort};
use grounds::Shared;
use quire::clear::ClearPolicy;

pub use cache::{Cache, Reread};
pub use fill::Fill;
pub use populate::Populating;
pub use used::{Use, Used};

/// Bytes a second.
pub const RATE: Metric = Metric { name: "rate", unit: "GiB/s", better: Better::Higher };

/// What all arms of a run share.
pub struct Setting {
    pub(in crate::bench::arms) policy: ClearPolicy,
    pub(in crate::bench::arms) cpus: Vec<usize>,
}

impl Setting {
    /// Calibrates, if nobody has in this process: before an experiment binds its thread to one CPU.
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
    fn name(self) -> &'static str {
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

    fn about(self) -> &'static str {
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
fn kernels() -> impl Iterator<Item = Way> {
    let features = CpuFeatures::detect();
    let runs = move |kernel: &ClearKernel| kernel.on(features).is_ok();
    ClearKernel::ALL.into_iter().filter(runs).map(Way::Kernel)
}

/// Every kernel by itself that this machine or another has, and the C library's.
pub const KERNELS: &[&str] = &["string", "cached", "movnti", "nt16", "nt64", "clzero", "movdir64b", "memset"];

/// The names of the kernels' arms, and of the C library's.
pub fn raw() -> Vec<&'static str> {
    kernels().chain([Way::Memset]).map(Way::name).collect()
}

/// Arms that fill extents. The checksum of a repetition is the number of marks that became zero.
pub fn fills(setting: &Setting) -> Vec<Box<dyn Arm<Fill>>> {
    let shared = Rc::new(Shared::new(setting));
    let ways = [Way::Policy(TouchHint::Unknown)].into_iter().chain(kernels()).chain([Way::Memset]);
    ways.map(|way| fill::Filling::arm(way, &shared)).collect()
}

/// Arms that populate memory by large pages. The checksum is the number of pages of 4 KiB that are there.
pub fn populates(setting: &Setting) -> Vec<Box<dyn Arm<Populating>>> {
    populate::all(setting)
}

/// Arms that clear beside a working set. The checksum is the sum of its words.
pub fn caches(setting: &Setting) -> Vec<Box<dyn Arm<Cache>>> {
    let shared = Rc::new(Shared::new(setting));
    let hints = [TouchHint::Unknown, TouchHint::Soon, TouchHint::Later].map(Way::Policy);
    let ways = [Way::Nothing, Way::Wait, Way::Translate].into_iter().chain(hints).chain(kernels());
    ways.map(|way| cache::Beside::arm(way, &shared)).collect()
}

/// Arms that clear and then use. The checksum is the number of lines that were read as zero.
pub fn uses(setting: &Setting) -> Vec<Box<dyn Arm<Used>>> {
    let shared = Rc::new(Shared::new(setting));
    let hints = [TouchHint::Soon, TouchHint::Unknown, TouchHint::Later].map(Way::Policy);
    let ways = hints.into_iter().chain(kernels());
    ways.map(|way| used::Using::arm(way, &shared)).collect()
}
