//! Machines drawn from a seed, and whole runs on them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fastrand::Rng;
use hosted::{Backing as Memory, FailurePlan, Hosted, HostedConfig, HostedError, OnViolation};
use quire::addr::{FrameRange, Order, PhysAddr};
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::platform::{FileId, FramePlatform};
use quire::tlb::ZapStrategy;
use quire::vm::{FolioPolicy, ForkStrategy, OrderPolicy};

use super::{Quire, STACK_LIMIT};
use crate::lockstep::{Depth, Divergence, Lockstep, Tally};
use crate::ops::{HEAP, Step};
use crate::space::{Backing, Family, PAGE, PROBE_OFFSETS, Rules};

/// A machine, with its failures.
#[derive(Clone, Debug)]
pub struct MachineShape {
    /// Bytes of memory.
    pub bytes: u64,
    /// CPUs.
    pub cpus: usize,
    /// Folio sizes of anonymous memory.
    pub policy: FolioPolicy,
    /// How `fork` gives the child its leaves.
    pub fork: ForkStrategy,
    /// How memory is unmapped.
    pub zap: ZapStrategy,
    /// Which allocations fail.
    pub failures: FailurePlan,
    /// Which flushes are lost.
    pub lost_flushes: FailurePlan,
    /// Whether memory may run out.
    pub tight: bool,
    /// The depth of the comparison after each operation.
    pub depth: Depth,
    /// Whether memory is dirty at the start.
    pub dirty: bool,
    /// The rules of the model.
    pub rules: Rules,
}

impl MachineShape {
    /// A machine with plenty of memory.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            bytes: 256 << 20,
            cpus: rng.usize(1..5),
            policy: draw_policy(rng),
            fork: draw_fork(&mut Rng::with_seed(!rng.clone().u64(..))),
            // From a copy, so that the seed's other draws stay the same.
            zap: rng.clone().choice(ZapStrategy::ALL).expect("not empty"),
            failures: FailurePlan::Off,
            lost_flushes: FailurePlan::Off,
            tight: false,
            depth: Depth::All,
            dirty: false,
            rules: Rules { stack_limit: STACK_LIMIT, ..Rules::default() },
        }
    }

    /// A machine whose anonymous memory comes in folios of 1 GiB, cleared on demand or sometimes as a whole,
    /// alone or beside folios of 2 MiB.
    pub fn gigantic(rng: &mut Rng) -> Self {
        let alone = FolioPolicy::only(Order::GIGANTIC);
        let both = FolioPolicy::LINUX.with(Order::GIGANTIC, OrderPolicy::Always);
        let policy = if rng.bool() { alone } else { both };
        let policy = policy.with_on_demand(rng.u32(..4) > 0);
        Self { bytes: GIGANTIC_BYTES, cpus: rng.usize(1..3), policy, dirty: true, ..Self::new(rng) }
    }

    /// A machine with plenty of memory and small folios at faults, so that there is something to collapse.
    pub fn of_small_folios(rng: &mut Rng) -> Self {
        let order = *rng.choice(&[0, 2, 4, 8]).expect("not empty");
        let policy = FolioPolicy::LINUX.with(Order::new(order).unwrap_or(Order::FRAME), OrderPolicy::Always);
        Self { policy, ..Self::new(rng) }
    }

    /// The same machine with so little memory that it runs out.
    #[must_use]
    pub fn small(self, bytes: u64) -> Self {
        Self { bytes, tight: true, ..self }
    }

    /// The same machine where these allocations fail.
    #[must_use]
    pub fn failing(self, failures: FailurePlan) -> Self {
        Self { failures, tight: true, ..self }
    }

    /// The same machine with this depth of comparison.
    #[must_use]
    pub fn comparing(self, depth: Depth) -> Self {
        Self { depth, ..self }
    }

    /// The same machine where these flushes are lost.
    #[must_use]
    pub fn losing(self, lost_flushes: FailurePlan) -> Self {
        Self { lost_flushes, ..self }
    }
}

/// Memory for the folios of 1 GiB that such a run may have at a time, and for smaller ones.
const GIGANTIC_BYTES: u64 = (3 << 30) + (256 << 20);

fn draw_policy(rng: &mut Rng) -> FolioPolicy {
    let policy = match rng.u32(..6) {
        0 | 1 => FolioPolicy::FRAMES,
        2 => FolioPolicy::LINUX,
        3 => FolioPolicy::only(Order::BLOCK),
        4 => FolioPolicy::only(Order::new(rng.u8(1..10)).unwrap_or(Order::FRAME)),
        _ => (1..10).fold(FolioPolicy::FRAMES, |policy, order| {
            let choice = [OrderPolicy::Never, OrderPolicy::Madvise, OrderPolicy::Always];
            policy.with(Order::new(order).unwrap_or(Order::FRAME), *rng.choice(&choice).expect("not empty"))
        }),
    };
    policy.with_pmd_mapped(rng.bool())
}

fn draw_fork(rng: &mut Rng) -> ForkStrategy {
    if rng.u8(..4) > 0 { ForkStrategy::Share } else { ForkStrategy::Copy }
}

/// Counts of a run's events that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunCounts {
    /// Allocations, under any plan but [`FailurePlan::Off`].
    pub allocations: u64,
    /// Flushes, under any plan but [`FailurePlan::Off`].
    pub flushes: u64,
    /// Leaves of 1 GiB, as [`Quire::gigantic`] counts them.
    pub gigantic: u64,
    /// Ranges of 2 MiB that were collapsed.
    pub collapsed: u64,
}

/// As [`run_machine`], without its other counts.
///
/// # Errors
/// As [`run_machine`].
pub fn check_machine(
    shape: &MachineShape,
    files: &[(u64, u64)],
    seed: u64,
    steps: &[Step],
) -> Result<RunCounts, String> {
    run_machine(shape, files, seed, steps).map(|(counts, _)| counts)
}

/// Builds the machine, steps library and model through the operations, exits everything, closes all files and
/// checks that all memory is free, that every written page of a file was written back, and that no other was changed.
///
/// # Errors
/// The difference, or the violation that the machine found.
pub fn run_machine(
    shape: &MachineShape,
    files: &[(u64, u64)],
    seed: u64,
    steps: &[Step],
) -> Result<(RunCounts, Tally), String> {
    let machine = built(shape).map_err(|error| error.to_string())?;
    let done = run_on(&machine, shape, files, seed, steps)?;
    if shape.dirty {
        KEPT.with_borrow_mut(|kept| kept.insert(shape.bytes, machine));
    }
    Ok(done)
}

fn run_on(
    machine: &Hosted,
    shape: &MachineShape,
    files: &[(u64, u64)],
    seed: u64,
    steps: &[Step],
) -> Result<(RunCounts, Tally), String> {
    let frames = |range: &hosted::MemoryRange| MemoryRange {
        frames: FrameRange::new(range.start.frame(), range.bytes / PAGE),
        node: range.node,
        zeroed: !shape.dirty,
    };
    let ranges: Vec<MemoryRange> = machine.ranges().iter().map(frames).collect();
    let config = Config { folios: shape.policy, fork: shape.fork, zap: shape.zap, ..Config::default() };
    let made = machine.run_on(CpuId(0), || hosted::raw::memory_manager(machine, &ranges, &config));
    let manager = made.map_err(|error| format!("start: {error}"))?;
    let before = drained(machine, &manager);
    let subject = Quire::new(machine, &manager, files, HEAP).map_err(|error| format!("start: {error}"))?;
    let subject = subject.tight(shape.tight).single(shape.policy == FolioPolicy::FRAMES);
    machine.set_failures(shape.failures);
    machine.lose_flushes(shape.lost_flushes);
    let mut lockstep = Lockstep::new(subject, shape.rules, shape.cpus, files, seed).comparing(shape.depth);
    if let Err(Divergence { step, what }) = lockstep.run(steps) {
        let failed = lockstep.subject.failed();
        return Err(format!("after operation {step}: {what} ({failed} allocations failed before)"));
    }
    let Lockstep { model, subject, tally, .. } = lockstep;
    let counts = RunCounts {
        allocations: machine.allocations_asked(),
        flushes: machine.flushes_asked(),
        gigantic: subject.gigantic(),
        collapsed: subject.collapsed(),
    };
    machine.set_failures(FailurePlan::Off);
    subject.close();
    check_written(machine, &model, files)?;
    let after = drained(machine, &manager);
    if after != before {
        return Err(format!("{after} frames in use after the end, {before} before the start"));
    }
    Ok((counts, tally))
}

thread_local! {
    /// Machines that are switched off, by their bytes of memory. A machine with dirty memory is built on the
    /// memory of one, which the host need not clear again.
    static KEPT: RefCell<BTreeMap<u64, Hosted>> = const { RefCell::new(BTreeMap::new()) };
}

/// The machine, switched on.
fn built(shape: &MachineShape) -> Result<Hosted, HostedError> {
    // Violations are recorded and queried: a panic may come during another one.
    let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(shape.bytes) };
    let config = config.with_cpus(shape.cpus);
    // Touching all of it would cost hundreds of thousands of the host's faults; thousands of operations touch
    // most.
    let config = match shape.dirty || shape.depth != Depth::All {
        true => {
            HostedConfig { backing: Memory::Anonymous, huge_pages: true, lazy_clears: !shape.dirty, ..config }
        }
        false => config,
    };
    if !shape.dirty {
        return config.build();
    }
    match KEPT.with_borrow_mut(|kept| kept.remove(&shape.bytes)) {
        Some(old) => old.restart(config),
        None => config.build().inspect(soil),
    }
}

/// Stores to every probe of all memory before a manager takes it over, so that memory that is not cleared
/// shows.
fn soil(machine: &Hosted) {
    for range in machine.ranges() {
        for page in (range.start.0..range.end().0).step_by(PAGE as usize) {
            let start = machine.direct_map(PhysAddr(page));
            for offset in PROBE_OFFSETS {
                // SAFETY: H1: a word of a page of the machine's memory, which no manager has taken over and no reference points into.
                unsafe { start.add(offset as usize).cast::<u64>().write_unaligned(u64::MAX) };
            }
        }
    }
}

/// Frames in use after all lists and caches are drained.
fn drained(machine: &Hosted, manager: &MemoryManager<'_, Hosted>) -> u64 {
    for cpu in 0..machine.config().cpus {
        machine.run_on(CpuId(cpu as u32), || manager.pages().lists().drain_local());
    }
    manager.meminfo().frames.used
}

/// Compares the pages written back to these files with the stores of the model's programs into shared mappings: all
/// that was stored to was written, and nothing else was changed.
///
/// # Errors
/// The first page that differs.
pub fn check_written(machine: &Hosted, model: &Family, files: &[(u64, u64)]) -> Result<(), String> {
    for (file, page, _) in model.written_pages() {
        let Backing::File(number) = file else { continue };
        if machine.files().written_page(FileId(number), page).is_none() {
            return Err(format!("page {page} of file {number} was never written back"));
        }
    }
    for &(number, _) in files {
        let file = Backing::File(number);
        for (page, bytes) in machine.files().written_pages(FileId(number)) {
            for (offset, want) in PROBE_OFFSETS.into_iter().zip(model.object_words(file, page)) {
                // A store after the end of the last page is visible through mappings, and never written back.
                if page * PAGE + offset + 8 > model.size_of(file) {
                    continue;
                }
                let at = offset as usize;
                let got = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                if got != want {
                    return Err(format!(
                        "page {page} of file {number}: {got:#x} at {offset}, want {want:#x}"
                    ));
                }
            }
        }
    }
    Ok(())
}
