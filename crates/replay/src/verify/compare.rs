//! Compares predictions with measured runs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::conditions::Told;
use super::fault_time::SAMPLE_NS;
use super::measure::{Measured, Runs};
use super::priced::Priced;
use super::processes::Processes;
use super::run_off::RunOff;
use super::turns::{TAIL, between, longer, percent};
use crate::calibrate::usual;
use crate::host::{machine, threads};
use crate::record::{Counted, ProcessPeak};
use crate::replay::FolioSet;
use crate::trace::Header;

const PAGE: u64 = 4096;

/// A heap begins elsewhere in its first range in each run.
const HUGE_GRAIN: u64 = 2 << 20;

/// The version of the fields below.
const SCHEMA: u32 = 1;

/// Percent by which a prediction of faults may miss.
pub(super) const FAULTS_PERCENT: f64 = 5.0;
/// Percent by which a prediction of peak memory may miss.
pub(super) const RSS_PERCENT: f64 = 3.0;
/// Percent by which a prediction of the time in faults may miss.
pub(super) const FAULT_TIME_PERCENT: f64 = 15.0;
/// Percent by which a run under the advice may take longer than the best.
pub(super) const ADVICE_PERCENT: f64 = 2.0;

/// A program under all sizes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compared {
    pub(super) schema: u32,
    pub(super) program: String,
    pub(super) program_version: String,
    pub(super) command: Vec<String>,
    /// The kernel that the program was recorded on.
    pub(super) recorded_kernel: String,
    /// Faults that the kernel counted for the recorded run.
    pub(super) recorded_faults: u64,
    pub(super) runs: usize,
    /// Whether each process was stopped at its end to read its peak: a program of little memory.
    pub(super) stopped_at_exit: bool,
    /// Runs whose time in faults was sampled: of the size that has the fewest.
    pub(super) sampled_runs: usize,
    /// Nanoseconds that each fault takes longer than samples see, as a process told that only faults.
    pub(super) unsampled_ns: f64,
    /// By how many percent faults took longer while samples were taken, as the same process told; `None` where it could not.
    pub(super) sampling_percent: Option<f64>,
    /// Recordings of which a prediction is the median.
    pub(super) recordings: usize,
    /// Whether this machine's prices were measured (`quire calibrate --kernel`), or are assumed.
    pub(super) prices_measured: bool,
    /// What else was set.
    pub(super) conditions: Told,
    pub(super) sizes: Vec<Row>,
    /// What `quire advise` chooses where a program has single pages, if it was measured.
    pub(super) advice: Option<Advice>,
    pub(super) machine: Value,
    pub(super) commit: &'static str,
}

/// A program under one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) folio: String,
    /// Faults that Quire took in the replay.
    pub(super) replayed_faults: u64,
    pub(super) faults: Figure,
    pub(super) peak_rss_bytes: Figure,
    /// That of each process, if it was seen.
    pub(super) processes: Processes,
    /// Nanoseconds in page faults, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fault_ns: Option<Figure>,
    /// The samples in faults of each run of which the time was sampled, and how well they tell it: the standard deviation of the
    /// measured time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<u64>,
    pub(super) deviation_percent: Option<f64>,
    /// What the predicted time is made of, of the first recording.
    pub(super) parts: BTreeMap<String, Part>,
    /// The predictions from each recording.
    pub(super) each_recording: EachRecording,
    /// Memory that leaves of 2 MiB map at the program's end, if khugepaged ran and the program is one
    /// process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) huge_bytes: Option<Figure>,
    /// Bytes of the pools' pages in use at the most, if pools were wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool_bytes: Option<Figure>,
    pub(super) kernel_ns: Spread,
    pub(super) run_ns: Spread,
    /// Faults of all runs, in the whole system, that found no free folio.
    pub(super) fell_back: u64,
    /// The program's exit codes, each once.
    pub(super) exit_codes: Vec<u8>,
}

/// Faults of one kind or one folio size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Part {
    pub(super) faults: u64,
    /// Nanoseconds of one.
    pub(super) each_ns: f64,
}

/// What each recording predicts, in the order of the recordings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct EachRecording {
    pub(super) faults: Vec<u64>,
    pub(super) fault_ns: Vec<u64>,
}

/// What is advised, beside the best that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) folio: String,
    /// Peak memory that was never touched, as the replay predicts it.
    pub(super) waste_percent: f64,
    /// The run time, and the least of all sets and its name; medians.
    pub(super) run_ns: u64,
    pub(super) best: String,
    pub(super) best_run_ns: u64,
    /// By how much the run under the advice takes longer than the best.
    pub(super) longer_percent: f64,
    /// The same turn by turn: the least and the most that it may be, for which there is a chance of nine in ten or more.
    pub(super) between_percent: (f64, f64),
    /// Further turns, if there were any.
    pub(super) run_off: Option<RunOff>,
    /// Whether that is no more than it may be; `WithinSpread` where the turns cannot tell.
    pub(super) verdict: Verdict,
}

/// A prediction beside measured runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) predicted: u64,
    pub(super) measured: Spread,
    /// By how much the prediction is above the median.
    pub(super) error_percent: f64,
    pub(super) verdict: Verdict,
}

/// Measured runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    /// Of sampled times the mean of the middle half: a run has few samples.
    pub(super) median: u64,
    pub(super) least: u64,
    pub(super) most: u64,
    /// The distance between least and most, of the median.
    pub(super) spread_percent: f64,
}

/// How a prediction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// As near as it should be.
    Within,
    /// As near as the kernel counts.
    WithinGrain,
    /// As near as the runs are to each other.
    WithinSpread,
    /// Neither.
    Missed,
}

impl Compared {
    /// `measured` in the order of `sets`.
    pub(super) fn new(header: &Header, priced: &Priced, sets: &[FolioSet], measured: &Measured) -> Self {
        let conditions = priced.conditions();
        let rows = sets.iter().zip(&measured.sizes);
        let sizes: Vec<Row> = rows.filter_map(|(set, runs)| row(priced, *set, runs, measured)).collect();
        Self {
            schema: SCHEMA,
            program: header.program.name.clone(),
            program_version: header.program.version.clone(),
            command: header.command.clone(),
            recorded_kernel: header.kernel.clone(),
            recorded_faults: header.totals.kernel_faults,
            runs: measured.sizes.first().map_or(0, |runs| runs.runs.len()),
            stopped_at_exit: measured.peak.is_seen(),
            sampled_runs: measured.sizes.iter().map(|runs| runs.fault_ns.len()).min().unwrap_or(0),
            unsampled_ns: measured.sampling.unsampled_ns,
            sampling_percent: measured.sampling.longer.map(|longer| (longer - 1.0) * 100.0),
            recordings: 1 + measured.recordings.len(),
            prices_measured: priced.measured,
            conditions: conditions.told(),
            advice: Advice::of(priced.advised, &sizes, &run_times(measured), measured.run_off.clone()),
            sizes,
            machine: machine::describe(),
            commit: machine::commit(),
        }
    }
}

/// What is predicted under a set beside its runs; `None` where nothing was predicted.
fn row(priced: &Priced, set: FolioSet, runs: &Runs, measured: &Measured) -> Option<Row> {
    let prediction = priced.of(set)?;
    let conditions = priced.conditions();
    let mut exit_codes: Vec<u8> = runs.runs.iter().chain(&runs.sampled).map(|run| run.exit_code).collect();
    exit_codes.sort_unstable();
    exit_codes.dedup();
    let spread = |of: fn(&Counted) -> u64| Spread::of(runs.runs.iter().map(of).collect());
    // The kernel counts faults of sampled runs as of others.
    let faults = runs.runs.iter().chain(&runs.sampled).map(|run| run.faults);
    let times = measured.sampling.times(&runs.fault_ns, prediction.traps);
    let (faults_each, ns_each) = prediction.each_recording.iter().copied().unzip();
    let part = |(name, (faults, each_ns)): (&String, &(u64, f64))| {
        (name.clone(), Part { faults: *faults, each_ns: *each_ns })
    };
    Some(Row {
        folio: set.name(),
        replayed_faults: prediction.replayed,
        faults: Figure::of_faults(prediction.faults, faults.collect()),
        peak_rss_bytes: Figure::new(
            prediction.peak_rss,
            spread(|run| run.peak_rss_bytes),
            RSS_PERCENT,
            rss_grain(),
        ),
        processes: Processes::of(&prediction.processes, &runs.processes),
        fault_ns: (!times.is_empty()).then(|| Figure::of_time(prediction.fault_ns, &times)),
        samples: runs.fault_ns.iter().map(|ns| ns / SAMPLE_NS).collect(),
        deviation_percent: deviation_percent(&times),
        parts: prediction.parts.iter().map(part).collect(),
        each_recording: EachRecording { faults: faults_each, fault_ns: ns_each },
        huge_bytes: prediction.huge_bytes.zip(huge_bytes(runs)).map(|(predicted, measured)| {
            Figure::new(predicted, Spread::of(measured), FAULTS_PERCENT, HUGE_GRAIN)
        }),
        pool_bytes: conditions.pools().map(|_| {
            let used = runs.pools.iter().map(|pages| pages.bytes()).collect();
            Figure::new(priced.pool_bytes, Spread::of(used), FAULTS_PERCENT, 0)
        }),
        kernel_ns: spread(|run| run.kernel_ns),
        run_ns: spread(|run| run.run_ns),
        fell_back: runs.fell_back,
        exit_codes,
    })
}

/// Without the quarter at each end.
fn middle_half(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    let beside = values.len() / 4;
    values[beside..values.len() - beside].to_vec()
}

/// The standard deviation of the mean of the middle half of such times, in percent of it: that of the times if the quarter at each
/// end were as far out as the middle half is, over the root of their number and the part of them that counts (Tukey and McLaughlin,
/// 1963). `None` with too few times.
pub(super) fn deviation_percent(times: &[u64]) -> Option<f64> {
    let mut sorted: Vec<f64> = times.iter().map(|ns| *ns as f64).collect();
    sorted.sort_by(f64::total_cmp);
    let (count, beside) = (sorted.len(), sorted.len() / 4);
    let (low, high) = (*sorted.get(beside)?, sorted[count - 1 - beside]);
    let drawn_in: Vec<f64> = sorted.iter().map(|ns| ns.clamp(low, high)).collect();
    let mean = drawn_in.iter().sum::<f64>() / count as f64;
    let squares: f64 = drawn_in.iter().map(|ns| (ns - mean).powi(2)).sum();
    let middle = usual(sorted);
    if count < 4 || middle <= 0.0 {
        return None;
    }
    let counts = (count - 2 * beside) as f64 / count as f64;
    let deviation = (squares / (count - 1) as f64).sqrt() / (counts * (count as f64).sqrt());
    Some(deviation / middle * 100.0)
}

/// What leaves of 2 MiB map at the end of each run; `None` if a run has more than one process, or it could not be
/// read.
fn huge_bytes(runs: &Runs) -> Option<Vec<u64>> {
    let of_one = |run: &Vec<ProcessPeak>| match run.as_slice() {
        [process] => process.huge_bytes,
        _ => None,
    };
    let all: Option<Vec<u64>> = runs.processes.iter().map(of_one).collect();
    all.filter(|all| !all.is_empty())
}

/// The run times of each set, in the order of the turns.
fn run_times(measured: &Measured) -> Vec<Vec<u64>> {
    measured.sizes.iter().map(|runs| runs.runs.iter().map(|run| run.run_ns).collect()).collect()
}

impl Advice {
    /// `times` are the runs of each row, in the order of the turns.
    fn of(
        (set, waste): (FolioSet, f64),
        rows: &[Row],
        times: &[Vec<u64>],
        run_off: Option<RunOff>,
    ) -> Option<Self> {
        let at = rows.iter().position(|row| row.folio == set.name())?;
        let best_at = (0..rows.len()).min_by_key(|&row| rows[row].run_ns.median)?;
        let (chosen, best) = (&rows[at], &rows[best_at]);
        let (run_ns, best_run_ns) = (chosen.run_ns.median, best.run_ns.median);
        let longer_percent = percent((run_ns - best_run_ns) as f64, best_run_ns);
        let turns = times[at].iter().copied().zip(times[best_at].iter().copied());
        let between_percent = between(&longer(turns), TAIL);
        // Of further turns all of the interval must be within; the first ones are too few for that.
        let first = run_off.as_ref().and_then(|run_off| run_off.against.first());
        let judged = first.map_or((between_percent.0, longer_percent), |first| first.between_percent);
        let verdict = match judged {
            (_, most) if most <= ADVICE_PERCENT => Verdict::Within,
            (least, _) if least <= ADVICE_PERCENT => Verdict::WithinSpread,
            _ => Verdict::Missed,
        };
        Some(Self {
            folio: set.name(),
            waste_percent: waste * 100.0,
            run_ns,
            best: best.folio.clone(),
            best_run_ns,
            longer_percent,
            between_percent,
            run_off,
            verdict,
        })
    }
}

/// The most bytes of resident memory that the kernel's count may miss: each CPU keeps up to 32 pages, or two for each CPU of
/// the machine, to itself.
pub(super) fn rss_grain() -> u64 {
    let cpus = threads::allowed_cpus().len() as u64;
    (2 * cpus).max(32) * cpus * PAGE
}

impl Figure {
    /// `grain` is what the kernel's count of a run may miss.
    pub(super) fn new(predicted: u64, measured: Spread, allowed_percent: f64, grain: u64) -> Self {
        let error_percent = percent(predicted as f64 - measured.median as f64, measured.median);
        let verdict = match error_percent.abs() {
            error if error <= allowed_percent => Verdict::Within,
            _ if predicted.abs_diff(measured.median) <= grain => Verdict::WithinGrain,
            error if error <= measured.spread_percent => Verdict::WithinSpread,
            _ => Verdict::Missed,
        };
        Self { predicted, measured, error_percent, verdict }
    }

    /// Of faults. Of many runs the middle half must be as far apart as the prediction is off: one far from all others would
    /// excuse any prediction.
    fn of_faults(predicted: u64, faults: Vec<u64>) -> Self {
        let measured = Spread::of(faults.clone());
        let spread_percent = Spread::of(middle_half(faults)).spread_percent;
        let judged = Spread { spread_percent, ..measured };
        Self { measured, ..Self::new(predicted, judged, FAULTS_PERCENT, 0) }
    }

    /// Of times in faults, each of one sampled run.
    fn of_time(predicted: u64, times: &[u64]) -> Self {
        let median = usual(times.iter().map(|ns| *ns as f64).collect()) as u64;
        let measured = Spread { median, ..Spread::of(times.to_vec()) };
        // However much the runs differ: samples of a busy machine prove nothing.
        let alone = Spread { spread_percent: 0.0, ..measured };
        Self { measured, ..Self::new(predicted, alone, FAULT_TIME_PERCENT, time_grain(times.len())) }
    }
}

/// Nanoseconds that the mean of so many sampled runs can be off: a run has whole samples.
pub(super) fn time_grain(sampled_runs: usize) -> u64 {
    SAMPLE_NS / sampled_runs.max(1) as u64
}

impl Spread {
    pub(super) fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Self { median: 0, least: 0, most: 0, spread_percent: 0.0 };
        };
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        let median = low.midpoint(high);
        Self { median, least, most, spread_percent: percent((most - least) as f64, median) }
    }
}

#[cfg(test)]
mod tests;
