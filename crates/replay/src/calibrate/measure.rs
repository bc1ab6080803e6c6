//! Measures every kernel, extent and number of threads, on a machine inside this process.

use anyhow::{Result, anyhow};
use hosted::raw::{measure_clear, measure_copy};
use hosted::{Hosted, HostedConfig};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quire::addr::FrameRange;
use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures};
use quire::clear::{CLASSES, Calibration, Clearer, Cost, STRETCHES, THREADS, bytes_of, cpus_of};
use quire::cpu::CpuId;
use quire::error::KernelError;
use quire::platform::TouchHint;

use crate::host::threads::{Meeting, allowed_cpus};

/// Budgets for each stretch length: these differ by a few per cent only.
const STRETCH_BUDGETS: u64 = 8;

/// The amount of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Memory of each thread, through which the extents rotate.
    scratch_bytes: u64,
    /// Budget for each kernel, extent and number of threads.
    budget_ns: u64,
    /// Measures every n-th power of two of the extents.
    every: usize,
    /// Passes over everything; the shortest time counts, since a disturbance of one pass need not repeat.
    passes: usize,
}

impl Effort {
    /// Small, to show that everything works.
    pub const SMOKE: Self = Self { scratch_bytes: 16 << 20, budget_ns: 300_000, every: 3, passes: 1 };
    /// Each extent once and for a shorter time, for a comparison that must not take long. Larger extents are
    /// beyond all caches, so they are cleared as the largest of these.
    pub const QUICK: Self = Self { scratch_bytes: 256 << 20, budget_ns: 3_000_000, every: 1, passes: 1 };
    /// Enough for a policy: 1 GiB a thread.
    pub const FULL: Self = Self { scratch_bytes: 1 << 30, budget_ns: 12_000_000, every: 1, passes: 2 };

    /// The largest extent that fits.
    fn largest(self) -> usize {
        (0..CLASSES).rev().find(|&class| bytes_of(class) <= self.scratch_bytes).unwrap_or(0)
    }

    /// The extents that fit.
    fn classes(self) -> impl Iterator<Item = usize> {
        (0..CLASSES).step_by(self.every).filter(move |&class| bytes_of(class) <= self.scratch_bytes)
    }
}

/// Measures this machine.
///
/// # Errors
/// If there is too little memory.
pub fn measure(effort: Effort) -> Result<Calibration> {
    let processors = allowed_cpus();
    let threads = processors.len().min(cpus_of(THREADS - 1) as usize);
    let machine = HostedConfig::bench(effort.scratch_bytes * threads as u64)
        .with_cpus(threads)
        .build()
        .map_err(|error| anyhow!("no memory to measure in: {error}"))?;
    let clearer = machine.run_on(CpuId(0), || Clearer::new(&machine, None))?;
    let mut calibration = Calibration::empty(Caches::detect());
    let classes: Vec<usize> = effort.classes().collect();
    let groups: Vec<usize> = (0..THREADS).filter(|&group| cpus_of(group) as usize <= threads).collect();
    let features = CpuFeatures::detect();
    let kernels = clears(features).len() + copies(features).len();
    let steps = kernels * classes.len() + STRETCHES.len();
    let bar = progress(effort.passes * groups.len() * steps);
    let bench = Bench { machine: &machine, clearer: &clearer, processors, effort, bar: &bar };
    for _ in 0..effort.passes {
        for &group in &groups {
            for &class in &classes {
                bar.set_message(format!("{} threads, {} KiB", cpus_of(group), bytes_of(class) >> 10));
                bench.extent(group, class, &mut calibration)?;
            }
        }
    }
    for _ in 0..effort.passes {
        for &group in &groups {
            bench.stretches(group, &mut calibration)?;
        }
    }
    bar.finish_and_clear();
    Ok(calibration)
}

/// The kernels that this processor has and that may be its fastest: quadwords are for processors where the
/// suggestion has nothing better.
fn clears(features: CpuFeatures) -> Vec<ClearKernel> {
    let suggested = ClearKernel::cached(features);
    let may_win = |kernel: &ClearKernel| *kernel != ClearKernel::Quadwords || *kernel == suggested;
    ClearKernel::ALL.into_iter().filter(|kernel| kernel.on(features).is_ok()).filter(may_win).collect()
}

fn copies(features: CpuFeatures) -> Vec<CopyKernel> {
    let suggested = CopyKernel::cached(features);
    let may_win = |kernel: &CopyKernel| *kernel != CopyKernel::Quadwords || *kernel == suggested;
    CopyKernel::ALL.into_iter().filter(|kernel| kernel.on(features).is_ok()).filter(may_win).collect()
}

struct Bench<'a> {
    machine: &'a Hosted,
    clearer: &'a Clearer,
    processors: Vec<usize>,
    effort: Effort,
    bar: &'a ProgressBar,
}

impl Bench<'_> {
    /// Measures every kernel for one extent and number of threads.
    fn extent(&self, group: usize, class: usize, calibration: &mut Calibration) -> Result<()> {
        let (cpus, budget) = (cpus_of(group) as usize, self.effort.budget_ns);
        let features = CpuFeatures::detect();
        for kernel in clears(features) {
            let cost = self.together(cpus, |scratch| {
                measure_clear(self.machine, self.clearer, kernel, class, scratch, budget)
            })?;
            keep_less(&mut calibration.clear[group][kernel as usize][class], cost);
            self.bar.inc(1);
        }
        for kernel in copies(features) {
            // Half of the memory is the source.
            if bytes_of(class) * 2 <= self.effort.scratch_bytes {
                let cost = self.together(cpus, |scratch| {
                    measure_copy(self.machine, self.clearer, kernel, class, scratch, budget)
                })?;
                keep_less(&mut calibration.copy[group][kernel as usize][class], cost);
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    /// Measures every stretch for the largest extent, by the kernel that the figures so far choose for it.
    fn stretches(&self, group: usize, calibration: &mut Calibration) -> Result<()> {
        let (cpus, class) = (cpus_of(group), self.effort.largest());
        let policy = calibration.policy(self.clearer.features());
        let kernel = policy.clear_kernel(TouchHint::Unknown, cpus as u32, bytes_of(class));
        for (at, stretch) in STRETCHES.into_iter().enumerate() {
            self.bar.set_message(format!("{cpus} threads, stretches of {stretch}"));
            self.clearer.set_policy(&policy.with_stretch(stretch))?;
            let cost = self.together(cpus as usize, |scratch| {
                let budget = self.effort.budget_ns * STRETCH_BUDGETS;
                measure_clear(self.machine, self.clearer, kernel, class, scratch, budget)
            })?;
            let known = &mut calibration.stretches[group][at];
            *known = if *known == 0 { cost.fill } else { cost.fill.min(*known) };
            self.bar.inc(1);
        }
        Ok(())
    }

    /// The mean cost for each of `cpus` CPUs that start at the same moment, each in its own memory.
    fn together(
        &self,
        cpus: usize,
        measured: impl Fn(FrameRange) -> Result<Cost, KernelError> + Sync,
    ) -> Result<Cost> {
        let frames = self.effort.scratch_bytes / 4096;
        let first = self.machine.ranges()[0].start.frame();
        let meeting = Meeting::of(cpus);
        let costs = self.machine.spawn_pinned_cpus(cpus, &self.processors, |cpu| {
            let scratch = FrameRange::new(first.add(cpu.index() as u64 * frames), frames);
            meeting.wait();
            measured(scratch)
        });
        let costs = costs.into_iter().collect::<Result<Vec<Cost>, _>>()?;
        let mean = |part: fn(&Cost) -> u32| {
            (costs.iter().map(|cost| u64::from(part(cost))).sum::<u64>() / costs.len() as u64) as u32
        };
        Ok(Cost { fill: mean(|cost| cost.fill), read: mean(|cost| cost.read) })
    }
}

/// Keeps the smaller cost.
fn keep_less(known: &mut Cost, now: Cost) {
    let before = if known.is_known() { *known } else { now };
    *known = Cost { fill: before.fill.min(now.fill), read: before.read.min(now.read) };
}

fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta} {msg:32}") {
        bar.set_style(style);
    }
    bar.set_prefix("calibrate");
    bar
}

#[cfg(test)]
mod tests {
    use quire::arch::Feature::{Avx, Erms};

    use super::*;

    /// Quadwords are measured where the suggestion uses them, and all other kernels wherever they run.
    #[test]
    fn quadwords_are_measured_where_nothing_is_better() {
        let here = CpuFeatures::detect();
        for features in [here, here.without(Erms), here.without_vectors(), CpuFeatures::NONE] {
            let quadwords = !features.has(Erms) && !features.has(Avx);
            let clears = clears(features);
            assert_eq!(clears.contains(&ClearKernel::Quadwords), quadwords, "{features:?}");
            assert_eq!(copies(features).contains(&CopyKernel::Quadwords), quadwords, "{features:?}");
            let runs = ClearKernel::ALL.into_iter().filter(|kernel| kernel.on(features).is_ok());
            assert_eq!(clears.len(), runs.count() - usize::from(!quadwords), "{features:?}");
        }
    }
}
