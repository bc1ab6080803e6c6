//! The figures of a replay, as one JSON object a line. `docs/replay-figures.md` explains each field.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::costs::{Costs, Pair, Series, Stopwatch};
use super::faults::ABSORBED;
use super::memory::Usage;
use super::policy::order_name;
use super::run::Outcome;
use super::survey::Survey;
use crate::calibrate::Chosen;
use crate::trace::Tier;

/// The version of the fields below.
const SCHEMA: u32 = 1;

/// One trace under one folio size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    pub(super) trace: String,
    pub(super) program: String,
    pub(super) program_version: String,
    pub(super) command: Vec<String>,
    pub(super) recorded: Recorded,
    pub(super) folio: String,
    pub(super) memory_bytes: u64,
    pub(super) cpus: usize,
    /// Rounds of the replay; times are those of the fastest.
    pub(super) rounds: u32,
    pub(super) checked: bool,
    pub(super) processes: u64,
    /// Of recorded faults, by kind.
    pub(super) faults: BTreeMap<&'static str, Cost>,
    /// Faults that Quire took.
    pub(super) faults_taken: u64,
    /// Of these, faults that brought in a single frame because no folio was free.
    pub(super) faults_fell_back: u64,
    /// By folio size.
    pub(super) folios: BTreeMap<String, u64>,
    pub(super) peak: Usage,
    pub(super) flushes: Flushes,
    pub(super) bytes_cleared: u64,
    pub(super) bytes_copied: u64,
    pub(super) clear_policy: PolicySource,
    pub(super) pages_mapped_around: u64,
    pub(super) pages_touched_around: u64,
    pub(super) faults_given_up: u64,
    /// Of the recorded faults those that waited for a disk, and their nanoseconds, which `faults` leaves out.
    pub(super) faults_major: u64,
    pub(super) major_ns: u64,
    /// Pages that were present before the recording attached; no other figure of faults contains them.
    pub(super) pages_present_before: u64,
    /// By verb.
    pub(super) verbs: BTreeMap<&'static str, Cost>,
    /// Everything on Quire together; `null` when checking.
    pub(super) quire_ns: Option<u64>,
    /// Subtracted from every measurement.
    pub(super) clock_ns: u64,
    pub(super) calls_skipped: BTreeMap<&'static str, u64>,
    pub(super) differences: u64,
    pub(super) first_difference: Option<String>,
    pub(super) not_judged: u64,
    pub(super) frames_leaked: u64,
    pub(super) machine: Value,
    pub(super) commit: &'static str,
}

/// The header of the trace.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recorded {
    pub(super) events: u64,
    pub(super) wall_ns: u64,
    pub(super) kernel: String,
    pub(super) tier: &'static str,
    pub(super) thp_disabled: bool,
    pub(super) records_lost: u64,
}

/// The source of the clearing policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PolicySource {
    /// `measured` or `suggested`.
    pub(super) from: &'static str,
    /// The calibration.
    pub(super) file: Option<String>,
    /// Why no measurement is used, and the cure.
    pub(super) why: Option<String>,
}

impl PolicySource {
    fn of(chosen: &Chosen) -> Self {
        let from = if chosen.policy.is_some() { "measured" } else { "suggested" };
        Self {
            from,
            file: chosen.file.as_ref().map(|file| file.display().to_string()),
            why: chosen.why.clone(),
        }
    }
}

/// Flushes of modelled TLBs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Flushes {
    /// Of the CPU that did the verb.
    pub(super) local: u64,
    /// Sent to other CPUs.
    pub(super) remote: u64,
    /// CPUs that they were sent to, summed.
    pub(super) ipis: u64,
    /// Of a whole address space, local or remote.
    pub(super) whole: u64,
    /// Pages named by the others.
    pub(super) pages: u64,
    /// Omitted, since no CPU ran the address space.
    pub(super) avoided: u64,
}

/// The same work on Quire and when it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cost {
    /// Faults of this kind or calls of this verb.
    pub(super) count: u64,
    pub(super) quire_ns: Option<u64>,
    pub(super) quire_median_ns: Option<u64>,
    pub(super) linux_ns: Option<u64>,
    pub(super) linux_median_ns: Option<u64>,
}

impl Cost {
    pub(super) fn of(pair: &Pair, timed: bool) -> Self {
        let sum = |series: &Series| (series.count() > 0).then(|| series.sum());
        Self {
            count: pair.count(),
            quire_ns: sum(&pair.quire).filter(|_| timed),
            quire_median_ns: pair.quire.median().filter(|_| timed),
            linux_ns: sum(&pair.linux),
            linux_median_ns: pair.linux.median(),
        }
    }
}

/// What all reports of one trace share.
pub(super) struct Context<'a> {
    pub(super) path: &'a Path,
    pub(super) survey: &'a Survey,
    pub(super) watch: &'a Stopwatch,
    pub(super) machine: &'a Value,
    pub(super) memory_bytes: u64,
    pub(super) cpus: usize,
    pub(super) rounds: u32,
    pub(super) check: bool,
    pub(super) clear: &'a Chosen,
}

impl Report {
    pub(super) fn new(context: &Context<'_>, outcome: &Outcome) -> Self {
        let header = &context.survey.header;
        let timed = !context.check;
        let costs = |costs: &Costs| costs.iter().map(|(name, pair)| (name, Cost::of(pair, timed))).collect();
        let machine = &outcome.machine;
        let (faults_major, major_ns) = outcome.faults.major();
        Self {
            schema: SCHEMA,
            trace: context.path.display().to_string(),
            program: header.program.name.clone(),
            program_version: header.program.version.clone(),
            command: header.command.clone(),
            recorded: Recorded {
                events: header.events,
                wall_ns: header.totals.wall_ns,
                kernel: header.kernel.clone(),
                tier: match header.tier {
                    Tier::Privileged => "privileged",
                    Tier::User => "user",
                },
                thp_disabled: header.thp_disabled,
                records_lost: header.totals.lost.max(context.survey.lost),
            },
            folio: outcome.set.name(),
            memory_bytes: context.memory_bytes,
            cpus: context.cpus,
            rounds: context.rounds,
            checked: context.check,
            processes: outcome.counts.processes,
            faults: costs(&outcome.faults),
            faults_taken: outcome.faults_taken(),
            faults_fell_back: outcome.fell_back,
            folios: (0..)
                .zip(outcome.counts.folios)
                .filter(|(_, count)| *count > 0)
                .map(|(order, count)| (order_name(order), count))
                .collect(),
            peak: outcome.peak,
            flushes: Flushes {
                local: machine.flushes_local,
                remote: machine.flushes_remote,
                ipis: machine.cpus_targeted,
                whole: machine.flushes_address_space,
                pages: machine.pages_flushed,
                avoided: outcome.flushes_avoided,
            },
            bytes_cleared: machine.bytes_cleared,
            bytes_copied: machine.bytes_copied,
            clear_policy: PolicySource::of(context.clear),
            pages_mapped_around: outcome.mapped_around,
            pages_touched_around: outcome.counts.around_touched,
            faults_given_up: outcome.counts.given_up,
            faults_major,
            major_ns,
            pages_present_before: outcome.counts.present_before,
            verbs: costs(&outcome.verbs),
            quire_ns: timed.then(|| outcome.quire_ns()),
            clock_ns: context.watch.empty_ns(),
            calls_skipped: outcome.counts.skipped.clone(),
            differences: outcome.counts.differences,
            first_difference: outcome.counts.first_difference.clone(),
            not_judged: outcome.counts.not_judged,
            frames_leaked: outcome.leaked,
            machine: context.machine.clone(),
            commit: crate::host::machine::commit(),
        }
    }

    /// Faults that were absorbed.
    pub(super) fn absorbed(&self) -> u64 {
        self.faults.get(ABSORBED).map_or(0, |cost| cost.count)
    }

    /// Nanoseconds of all faults on Quire and, of the same faults, on Linux.
    pub(super) fn fault_ns(&self) -> (Option<u64>, Option<u64>) {
        let sum =
            |of: fn(&Cost) -> Option<u64>| self.faults.values().filter_map(of).reduce(u64::saturating_add);
        (sum(|cost| cost.quire_ns), sum(|cost| cost.linux_ns))
    }
}
