//! Replays one trace under one set of folio sizes, from an empty machine to an empty machine.

use std::path::Path;

use hosted::{Counters, Hosted, HostedConfig, OnViolation};
use quire::addr::FrameRange;
use quire::clear::ClearPolicy;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::stats::Stat;

use super::background::{Background, Plan};
use super::costs::{Costs, Stopwatch};
use super::each::{Each, Process};
use super::error::ReplayError;
use super::faults::{NOT_TAKEN, kinds};
use super::files;
use super::fragments::Fragments;
use super::gaps::Gaps;
use super::memory::{Peak, Usage};
use super::parts::{Part, Parts};
use super::policy::{FolioSet, exact_bytes};
use super::progress::Progress;
use super::recycled::Recycled;
use super::replayer::{Agreement, Counts, Replayer};
use super::survey::Survey;
use super::timeline::{Sample, Timeline};
use crate::output::{quoted, say};
use crate::trace::{Settled, TraceReader};

/// The machine that replays: one for all folio sizes of a trace, or a fresh one for each when checking.
pub(super) struct World {
    machine: Hosted,
    bytes: u64,
    check: bool,
    /// Memory is all zeroes until a manager has used it.
    fresh: bool,
    /// The background of the replay.
    pub(super) background: Option<Plan>,
    /// The policy for clearing and copying; `None` for the one that the processor's features suggest.
    clear: Option<ClearPolicy>,
    /// Whether mappings and memory over time are observed.
    pub(super) observes: bool,
    /// The pieces of free memory at the start; `None` for memory in one piece.
    pub(super) fragments: Option<Fragments>,
}

/// The outcome of one replay.
pub(super) struct Outcome {
    pub(super) set: FolioSet,
    pub(super) counts: Counts,
    pub(super) verbs: Costs,
    pub(super) faults: Costs,
    pub(super) gaps: Gaps,
    pub(super) recycled: Recycled,
    pub(super) peak: Usage,
    pub(super) machine: Counters,
    /// Flushes that no CPU needed.
    pub(super) flushes_avoided: u64,
    /// Page-cache pages that Quire mapped around a fault.
    pub(super) mapped_around: u64,
    /// Faults that found no free folio of the size, and brought in single frames.
    pub(super) fell_back: u64,
    /// Frames that were not freed at the end.
    pub(super) leaked: u64,
    /// The background.
    pub(super) background: Option<Background>,
    /// The parts and memory over time, if they were observed.
    pub(super) parts: Vec<Part>,
    pub(super) timeline: Vec<Sample>,
    /// The processes, if they were observed.
    pub(super) each: Vec<Process>,
}

impl Outcome {
    /// Faults that Quire took.
    pub(super) fn faults_taken(&self) -> u64 {
        let taken = kinds().filter(|kind| !NOT_TAKEN.contains(kind));
        taken.filter_map(|kind| self.faults.get(kind)).map(|pair| pair.quire.count()).sum()
    }

    /// All faults and verbs on Quire together.
    pub(super) fn quire_ns(&self) -> u64 {
        self.verbs.quire_sum() + self.faults.quire_sum()
    }
}

/// What replays on a machine are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// All checks are on.
    Check,
    /// Memory is populated from the start, so that no time includes a fault of the host. A build with assertions does
    /// without, since its times say nothing.
    Time,
    /// Memory takes what is touched of it.
    Contents,
    /// The same, and clearing and copying are counted only: no figure depends on what is in memory.
    Counts,
}

impl World {
    /// A machine with `bytes` of memory and `cpus` CPUs.
    ///
    /// # Errors
    /// [`ReplayError::Host`].
    pub(super) fn new(bytes: u64, cpus: usize, purpose: Purpose) -> Result<Self, ReplayError> {
        // One thread plays all CPUs, so interrupts are counted and not sent.
        let bench = HostedConfig { real_ipis: false, ..HostedConfig::bench(bytes) };
        let config = match purpose {
            Purpose::Check => {
                HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::sparse(bytes) }
            }
            Purpose::Time => HostedConfig { prefault: !cfg!(debug_assertions), ..bench },
            Purpose::Contents => HostedConfig { prefault: false, ..bench },
            Purpose::Counts => HostedConfig { prefault: false, clearing: false, ..bench },
        };
        let machine = config.with_cpus(cpus).build()?;
        Ok(Self {
            machine,
            bytes,
            check: purpose == Purpose::Check,
            fresh: true,
            background: None,
            clear: None,
            observes: false,
            fragments: None,
        })
    }

    /// The same with this policy for clearing and copying; `None` for the one that the processor's features
    /// suggest.
    pub(super) fn clearing_by(self, clear: Option<ClearPolicy>) -> Self {
        Self { clear, ..self }
    }

    /// Replays the trace.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub(super) fn replay(
        &mut self,
        path: &Path,
        survey: &Survey,
        set: FolioSet,
        watch: &Stopwatch,
        progress: &mut Progress,
    ) -> Result<Outcome, ReplayError> {
        let zeroed = std::mem::replace(&mut self.fresh, false);
        let ranges: Vec<MemoryRange> = self
            .machine
            .ranges()
            .iter()
            .map(|range| MemoryRange {
                frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
                node: range.node,
                zeroed,
            })
            .collect();
        let machine = &self.machine;
        let full = || ReplayError::OutOfMemory { event: 0, memory: exact_bytes(self.bytes) };
        // Each event runs as the CPU of its thread, so the setup must leave CPU 0.
        let zeroes = Zeroes { remember: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, clear: self.clear, ..AllocatorConfig::default() };
        let config = Config { folios: set.policy(), allocator, ..Config::default() };
        let manager = machine
            .run_on(CpuId(0), || hosted::raw::memory_manager(machine, &ranges, &config))
            .map_err(|source| ReplayError::TooSmall { bytes: self.bytes, source })?;
        let hold =
            |fragments: Fragments| machine.run_on(CpuId(0), || fragments.hold(&manager, machine, self.bytes));
        let held = self.fragments.map_or(0, hold);
        drain(machine, &manager);
        let before = manager.pages().memory_info().used;
        let files = machine.run_on(CpuId(0), || files::open(machine, &manager, &survey.files));
        machine.reset_counters();
        let mut replayer =
            Replayer::new(machine, &manager, watch, survey, files.map_err(|_| full())?, self.check, set);
        replayer.background =
            self.background.map(|plan| Background::new(plan, survey.header.events, survey.span_ns));
        replayer.parts = self.observes.then(Parts::default);
        replayer.timeline = self.observes.then(|| Timeline::new(survey.span_ns, held));
        replayer.each = self.observes.then(Each::default);
        replayer.peak = Peak::above(held);
        let replayed = replay_events(path, &mut replayer, progress);
        let counted = machine.counters();
        let (outcome, event) = machine.run_on(CpuId(0), || finish(replayer, counted));
        replayed?;
        drain(machine, &manager);
        let leaked = manager.pages().memory_info().used.abs_diff(before);
        if self.check {
            check_end(machine, &manager, leaked, event)?;
        }
        Ok(Outcome {
            flushes_avoided: manager.stat(Stat::TlbFlushAvoided),
            mapped_around: manager.stat(Stat::FaultAround),
            fell_back: manager.stat(Stat::ThpFaultFallback),
            leaked,
            ..outcome
        })
    }
}

/// Ends the processes of a replay that stopped early, closes the files, and keeps the counts.
fn finish(mut replayer: Replayer<'_>, counted: Counters) -> (Outcome, u64) {
    replayer.processes.release_all();
    let event = replayer.event;
    let outcome = Outcome {
        set: replayer.set,
        counts: replayer.counts,
        verbs: replayer.verbs,
        faults: replayer.faults,
        gaps: replayer.gaps,
        recycled: replayer.recycled,
        peak: replayer.peak.usage(),
        machine: counted,
        flushes_avoided: 0,
        mapped_around: 0,
        fell_back: 0,
        leaked: 0,
        background: replayer.background,
        parts: replayer.parts.map(Parts::end).unwrap_or_default(),
        timeline: replayer.timeline.map(Timeline::end).unwrap_or_default(),
        each: replayer.each.map(Each::end).unwrap_or_default(),
    };
    (outcome, event)
}

/// Empties the lists of free frames of every CPU.
fn drain(machine: &Hosted, manager: &MemoryManager<'_, Hosted>) {
    let drain = |cpu| machine.run_on(CpuId(cpu as u32), || manager.pages().lists().drain_local());
    (0..machine.config().cpus).for_each(drain);
}

/// Applies every event, then ends processes that still live, as at the end of an interrupted recording.
fn replay_events(
    path: &Path,
    replayer: &mut Replayer<'_>,
    progress: &mut Progress,
) -> Result<(), ReplayError> {
    let mut settled = Settled::default();
    for event in TraceReader::open(path)? {
        settled.push(event?);
        replay_settled(path, replayer, &mut settled, progress)?;
    }
    settled.finish();
    replay_settled(path, replayer, &mut settled, progress)?;
    if replayer.event != replayer.survey.header.events {
        return Err(ReplayError::Changed);
    }
    let machine = replayer.machine;
    machine.run_on(CpuId(0), || {
        replayer.look_at_memory()?;
        replayer.processes.pids().into_iter().try_for_each(|pid| replayer.exit(pid))
    })
}

/// Applies the events whose place is known.
fn replay_settled(
    path: &Path,
    replayer: &mut Replayer<'_>,
    settled: &mut Settled,
    progress: &mut Progress,
) -> Result<(), ReplayError> {
    while let Some(placed) = settled.pop() {
        let told = PanicPlace { path, event: replayer.event };
        if replayer.step(&placed)? == Agreement::NotJudged {
            settled.went_otherwise(&placed);
        }
        drop(told);
        progress.advance();
    }
    Ok(())
}

fn check_end(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    leaked: u64,
    event: u64,
) -> Result<(), ReplayError> {
    let diverged = |what: String| Err(ReplayError::Divergence { event, what });
    if let Some(violation) = machine.violations().first() {
        return diverged(violation.to_string());
    }
    if let Err(violation) = manager.validate() {
        return diverged(format!("the allocator's records are broken at the end: {violation:?}"));
    }
    if leaked > 0 {
        return diverged(format!("{leaked} frames did not come back at exit"));
    }
    Ok(())
}

/// On a panic of the library, reports the event.
struct PanicPlace<'a> {
    path: &'a Path,
    event: u64,
}

impl Drop for PanicPlace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(format_args!("quire: {}: the library panicked at event {}", quoted(self.path), self.event));
        }
    }
}

#[cfg(test)]
mod tests;
