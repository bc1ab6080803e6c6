//! What replays predict of a program under each size: its faults, the time in them, and its peak memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use quire::vm::FaultKind;

use super::conditions::{Conditions, PoolPages};
use super::processes::{self, ProcessMemory};
use super::turns::median;
use crate::advise::{self, Collapses, Prices, ShmemChange};
use crate::calibrate::{self, usual};
use crate::replay::{Figures, FolioSet, Process, ReplayError, Trial};
use crate::settings::Places;

/// Folios of this order take a whole block.
const BLOCK_ORDER: usize = 9;
const BLOCK_BYTES: u64 = 2 << 20;

/// The name of faults that Linux took and Quire takes none for.
const ABSORBED: &str = "absorbed";

/// The predictions, of single pages first.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    sizes: Vec<Prediction>,
    /// Whether the prices of folios were measured on this machine.
    pub(super) measured: bool,
    /// What `quire advise` would choose among all that was replayed, and the share of its peak that was never touched.
    pub(super) advised: (FolioSet, f64),
    /// Bytes of the pools' pages that the program maps itself, the most at once.
    pub(super) pool_bytes: u64,
    /// Whether blocks are brought in before sampled runs: where the host takes free memory back, runs right behind others would find
    /// some blocks taken and some not, as chance has it. Prices that an older command measured lack that of other blocks.
    brings_in: bool,
    conditions: Conditions,
}

/// A program under one size.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    set: FolioSet,
    /// Faults that Quire took in the replay.
    pub(super) replayed: u64,
    pub(super) faults: u64,
    /// Those of them that are taken by a trap: the others are taken inside a call, as for the arguments of `execve`.
    pub(super) traps: u64,
    pub(super) fault_ns: u64,
    pub(super) peak_rss: u64,
    /// Memory that leaves of 2 MiB map at the end, if khugepaged runs.
    pub(super) huge_bytes: Option<u64>,
    /// The peak of each process.
    pub(super) processes: Vec<ProcessMemory>,
    /// Bytes of whole blocks that folios of 2 MiB take, no more than the peak of all processes together.
    pub(super) block_bytes: u64,
    /// The faults by kind and folio size: how many, and nanoseconds of one.
    pub(super) parts: BTreeMap<String, (u64, f64)>,
    /// Of which this is the median: faults, and nanoseconds in them, of each recording.
    pub(super) each_recording: Vec<(u64, u64)>,
}

impl Priced {
    /// From the replays, of single pages first.
    ///
    /// # Errors
    /// Prices of this machine that cannot be read, and replays that fail.
    pub(super) fn new(trial: &Trial, replayed: &[Figures], conditions: &Conditions) -> Result<Self> {
        let small = replayed.first().context("nothing was replayed")?;
        // `quire advise` has these alone: it does not know what runs before the program.
        let of_advise = Prices::of(small, trial.header(), None)?;
        let prices = match conditions.rests {
            true => of_advise.clone(),
            false => Prices::behind_another(small, trial.header(), None)?,
        };
        let recorded = trial.header().totals.kernel_faults;
        let shared = match conditions.shmem {
            Some(set) => advise::with_shmem(trial, &prices, set)?,
            None => None,
        };
        let predicted = |figures: &Figures| {
            let replayed = figures.faults();
            let faults = expected_faults(recorded, small.faults(), replayed);
            // Linux takes these under each size. Others that the kernel counts and no event is about are not taken by a trap, and
            // so not in the time that is sampled.
            let traps = replayed + small.absorbed;
            let each = small.absorbed_ns().map_or(prices.of_a_page(), |ns| prices.without_recorder(ns));
            let absorbed_ns = small.absorbed as f64 * each;
            // The page cache is warm.
            let mut kinds = figures.kinds;
            kinds[FaultKind::FileMinor as usize] +=
                core::mem::take(&mut kinds[FaultKind::FileMajor as usize]);
            let under = prices.under(figures);
            let ns = under.sum(&kinds, &figures.folios) + absorbed_ns;
            let (all, peak_rss) = with_mapped(&figures.processes, figures.peak_rss, shared.as_ref());
            let set = figures.set;
            let processes = processes::predicted(trial.names(), &all);
            let fault_ns = ns.max(0.0) as u64;
            let mut parts = under.parts(&kinds, &figures.folios);
            if small.absorbed > 0 {
                parts.insert(ABSORBED.to_owned(), (small.absorbed, each));
            }
            let block_bytes = (figures.folios[BLOCK_ORDER] * BLOCK_BYTES).min(figures.peak.total);
            let mut prediction = Prediction {
                set,
                replayed,
                faults,
                traps,
                fault_ns,
                peak_rss,
                huge_bytes: None,
                processes,
                block_bytes: block_bytes.next_multiple_of(BLOCK_BYTES),
                parts,
                each_recording: Vec::new(),
            };
            shared.iter().for_each(|change| prediction.share(change));
            prediction.each_recording = vec![(prediction.faults, prediction.fault_ns)];
            prediction
        };
        let advised = advise::advised(replayed, &of_advise, trial);
        let mut sizes: Vec<Prediction> = replayed.iter().map(predicted).collect();
        if let Some(asked) = &conditions.khugepaged {
            let root = Places::of_this_machine().settings;
            // Under other sets there is nothing to predict: 0 bytes would be right always.
            for prediction in sizes.iter_mut().filter(|prediction| advise::khugepaged_starts(prediction.set))
            {
                prediction.collapse(advise::beside_khugepaged(trial, &root, asked, prediction.set)?);
            }
        }
        let pool_bytes = PoolPages(trial.huge().0).bytes();
        let has_price = !prices.are_measured() || prices.of_blocks() != of_advise.of_blocks();
        let brings_in = !conditions.rests && has_price && calibrate::host_takes_free_memory();
        let conditions = conditions.clone();
        Ok(Self { sizes, measured: prices.are_measured(), advised, pool_bytes, brings_in, conditions })
    }

    /// Of these further recordings of the program too: the median of what each predicts, where a fault costs the usual of
    /// what it took in all of them. The advice stays that of the first, `trial`, as `quire advise` has one recording.
    ///
    /// # Errors
    /// A recording that cannot be replayed.
    pub(super) fn with_recordings(
        self,
        recordings: &[PathBuf],
        trial: Trial,
        replayed: Vec<Figures>,
    ) -> Result<Self> {
        let sets: Vec<FolioSet> = replayed.iter().map(|figures| figures.set).collect();
        let mut all = vec![(trial, replayed)];
        for path in recordings {
            let trial = Trial::open(path, None)?;
            let replayed = replay(&trial, &sets)?;
            all.push((trial, replayed));
        }
        let times: Vec<_> =
            all.iter().filter_map(|(_, replayed)| Some(&replayed.first()?.recorded_ns)).collect();
        let usual = usual_times(&times);
        let mut predicted = Vec::new();
        for (trial, mut replayed) in all {
            price_as(&mut replayed, &usual);
            predicted.push(Self::new(&trial, &replayed, &self.conditions)?.sizes);
        }
        let sizes = (0..sets.len()).map(|at| Prediction::median(&predicted, at)).collect();
        Ok(Self { sizes, ..self })
    }

    pub(super) const fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    pub(super) fn of(&self, set: FolioSet) -> Option<&Prediction> {
        self.sizes.iter().find(|prediction| prediction.set == set)
    }

    /// Nanoseconds in faults under a set, and the bytes of blocks that are brought in before each of its sampled runs.
    pub(super) fn sampled(&self, set: FolioSet) -> (u64, u64) {
        let of = |prediction: &Prediction| {
            (prediction.fault_ns, if self.brings_in { prediction.block_bytes } else { 0 })
        };
        self.of(set).map_or((0, 0), of)
    }
}

impl Prediction {
    /// Adds what folios of shared memory change of the faults.
    fn share(&mut self, change: &ShmemChange) {
        let faults = |count: u64| count.saturating_add_signed(change.faults);
        (self.faults, self.traps) = (faults(self.faults), faults(self.traps));
        self.fault_ns = (self.fault_ns as f64 + change.time_ns).max(0.0) as u64;
    }

    /// Adds what khugepaged changes.
    fn collapse(&mut self, collapses: Collapses) {
        self.huge_bytes = Some(collapses.huge_bytes);
        self.peak_rss = self.peak_rss.saturating_add_signed(collapses.more_bytes);
        if collapses.more_bytes != 0 {
            self.processes.clear();
        }
    }

    /// What is in the middle of the predictions under the set at this place, each figure for itself.
    fn median(predicted: &[Vec<Self>], at: usize) -> Self {
        let of = |figure: fn(&Self) -> u64| {
            let mut figures: Vec<f64> = predicted.iter().map(|sizes| figure(&sizes[at]) as f64).collect();
            figures.sort_by(f64::total_cmp);
            median(&figures) as u64
        };
        Self {
            set: predicted[0][at].set,
            replayed: of(|of| of.replayed),
            faults: of(|of| of.faults),
            traps: of(|of| of.traps),
            fault_ns: of(|of| of.fault_ns),
            peak_rss: of(|of| of.peak_rss),
            huge_bytes: predicted[0][at].huge_bytes.map(|_| of(|of| of.huge_bytes.unwrap_or(0))),
            processes: processes::usual(predicted.iter().map(|sizes| &sizes[at].processes[..])),
            block_bytes: of(|of| of.block_bytes),
            parts: predicted[0][at].parts.clone(),
            each_recording: predicted.iter().flat_map(|sizes| sizes[at].each_recording.clone()).collect(),
        }
    }
}

/// The processes with what folios of shared memory change of their peaks, as if each mapped the most when its
/// peak is; and with it the peak of the largest program, `peak` without. A process may have run a larger one before
/// its last: of that one nothing changes.
fn with_mapped(processes: &[Process], peak: u64, change: Option<&ShmemChange>) -> (Vec<Process>, u64) {
    let mut with = processes.to_vec();
    for process in &mut with {
        let more = change.and_then(|change| change.mapped.get(&process.pid)).unwrap_or(&0);
        process.last_peak = process.last_peak.saturating_add_signed(*more);
    }
    let largest = |all: &[Process]| all.iter().map(|process| process.last_peak).max().unwrap_or(0);
    let (before, after) = (largest(processes), largest(&with));
    let peak = if peak > before { peak.max(after) } else { (peak + after).saturating_sub(before) };
    (with, peak)
}

/// Replays under all of these sets.
///
/// # Errors
/// A replay that fails, or needs more memory than there is.
pub(super) fn replay(trial: &Trial, sets: &[FolioSet]) -> Result<Vec<Figures>, ReplayError> {
    let (figures, left_out) = trial.replay(sets)?;
    left_out.into_iter().next().map_or(Ok(figures), Err)
}

/// Prices the faults of a recording as the usual times differ from its own.
fn price_as(replayed: &mut [Figures], usual: &BTreeMap<&'static str, u64>) {
    let Some(own) = replayed.first().map(|figures| figures.recorded_ns.clone()) else { return };
    for figures in replayed {
        for (kind, ns) in &mut figures.recorded_ns {
            if let (Some(own), Some(usual)) = (own.get(kind), usual.get(kind)) {
                *ns = (*ns as f64 * *usual as f64 / (*own).max(1) as f64) as u64;
            }
        }
    }
}

/// The usual time by kind, of the recordings that have the kind.
fn usual_times(times: &[&BTreeMap<&'static str, u64>]) -> BTreeMap<&'static str, u64> {
    let mut of_kinds = BTreeMap::<&str, Vec<f64>>::new();
    for (kind, ns) in times.iter().copied().flatten() {
        of_kinds.entry(kind).or_default().push(*ns as f64);
    }
    of_kinds.into_iter().map(|(kind, times)| (kind, usual(times) as u64)).collect()
}

/// The faults of the kernel under a size: those of the recorded run, less those that the replay under this size
/// saves against the replay under single pages. So faults that no event of a trace is about (arguments that `execve`
/// copies, for example) and faults that Quire takes otherwise than Linux under any size do not count as errors of the
/// size. Without the kernel's count, what the replay took.
fn expected_faults(recorded: u64, small: u64, sized: u64) -> u64 {
    if recorded == 0 { sized } else { (recorded + sized).saturating_sub(small) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_fault_costs_the_usual_of_the_recordings_that_have_its_kind() {
        let times = |all: &[&[(&'static str, u64)]]| {
            let all: Vec<BTreeMap<_, _>> = all.iter().map(|kinds| kinds.iter().copied().collect()).collect();
            usual_times(&all.iter().collect::<Vec<_>>())
        };
        let both = times(&[&[("anon", 100), ("cow", 70)], &[("anon", 301)]]);
        assert_eq!(both, [("anon", 200), ("cow", 70)].into());
        let with_a_stranger = [100, 200, 301, 9000].map(|ns| [("anon", ns)]);
        let of_the_others = times(&with_a_stranger.each_ref().map(|kinds| &kinds[..]));
        assert_eq!(of_the_others, [("anon", 250)].into(), "one that was disturbed does not count");
    }

    #[test]
    fn a_prediction_is_the_median_of_all_recordings() {
        let path = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name);
        let alone = |name: &str| {
            let trial = Trial::open(&path(name), None).unwrap();
            let replayed = replay(&trial, &[FolioSet::FRAMES]).unwrap();
            (Priced::new(&trial, &replayed, &Conditions::default()).unwrap(), trial, replayed)
        };
        let with = |names: &[&str]| {
            let (priced, trial, replayed) = alone("gcc.qtrace");
            let recordings: Vec<_> = names.iter().map(|name| path(name)).collect();
            priced.with_recordings(&recordings, trial, replayed).unwrap().sizes.remove(0)
        };
        let counts = |of: &Prediction| (of.replayed, of.faults, of.traps, of.peak_rss);
        let (first, other) = (alone("gcc.qtrace").0.sizes.remove(0), alone("node.qtrace").0.sizes.remove(0));
        assert_eq!(counts(&with(&[])), counts(&first));
        assert_eq!(with(&["gcc.qtrace"]).fault_ns, first.fault_ns);
        assert_eq!(counts(&with(&["gcc.qtrace", "node.qtrace"])), counts(&first));
        let mostly_another = with(&["node.qtrace", "node.qtrace"]);
        assert_eq!(counts(&mostly_another), counts(&other));
        assert_ne!(mostly_another.fault_ns, other.fault_ns, "prices are of all");
        let each: Vec<u64> = mostly_another.each_recording.iter().map(|(faults, _)| *faults).collect();
        assert_eq!(each, [first.faults, other.faults, other.faults]);
        assert!(mostly_another.each_recording.iter().any(|(_, ns)| *ns == mostly_another.fault_ns));
    }

    #[test]
    fn a_prediction_tells_its_parts_and_the_blocks_that_it_takes() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
        let trial = Trial::open(&path, None).unwrap();
        let sets = [FolioSet::FRAMES, crate::replay::parse_set("2M").unwrap()];
        let replayed = replay(&trial, &sets).unwrap();
        let priced = Priced::new(&trial, &replayed, &Conditions::default()).unwrap();
        let [small, huge] = sets.map(|set| priced.of(set).unwrap());
        for prediction in [small, huge] {
            let sum: f64 = prediction.parts.values().map(|(count, ns)| *count as f64 * ns).sum();
            assert!((sum - prediction.fault_ns as f64).abs() < 2.0, "{prediction:?}");
            assert_eq!(prediction.each_recording, [(prediction.faults, prediction.fault_ns)]);
        }
        let folios = huge.parts["anon-2M"].0;
        assert!(folios > 0 && !small.parts.contains_key("anon-2M"), "{huge:?}");
        assert_eq!((small.block_bytes, huge.block_bytes), (0, folios * BLOCK_BYTES));
        let rested = Conditions { rests: true, ..Conditions::default() };
        let rested = Priced::new(&trial, &replayed, &rested).unwrap();
        assert_eq!(rested.sampled(sets[1]).1, 0, "the host may have them");
    }

    /// Under other sets 0 bytes would be predicted and measured, always.
    #[test]
    fn leaves_of_2_mib_are_predicted_where_khugepaged_runs() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
        let trial = Trial::open(&path, None).unwrap();
        let sets = [FolioSet::FRAMES, crate::replay::parse_set("2M").unwrap()];
        let replayed = replay(&trial, &sets).unwrap();
        let khugepaged = advise::parse_khugepaged("max_ptes_none=511,scan_sleep_millisecs=1000000").ok();
        let conditions = Conditions { khugepaged, ..Conditions::default() };
        let priced = Priced::new(&trial, &replayed, &conditions).unwrap();
        let huge = sets.map(|set| priced.of(set).unwrap().huge_bytes);
        assert!(huge[0].is_none() && huge[1].is_some(), "{huge:?}");
    }

    /// Each process has its own part of shared memory; the whole of it is no process's.
    #[test]
    fn the_largest_process_grows_by_what_it_maps_itself() {
        let process = |pid, last_peak| Process { pid, last_peak, ..Process::default() };
        let all = [process(7, 100), process(8, 90), process(9, 10)];
        let with = |mapped: &[(u32, i64)]| {
            let mapped = mapped.iter().copied().collect();
            let change = ShmemChange { mapped, ..ShmemChange::default() };
            let (with, peak) = with_mapped(&all, 100, Some(&change));
            // A program that one of them ran before was larger.
            let (_, beside_larger) = with_mapped(&all, 115, Some(&change));
            (with.iter().map(|process| process.last_peak).collect::<Vec<_>>(), [peak, beside_larger])
        };
        assert_eq!(with(&[(7, 20), (8, 20)]), (vec![120, 110, 10], [120, 120]));
        assert_eq!(
            with(&[(8, 30), (9, 30)]),
            (vec![100, 120, 40], [120, 120]),
            "another is the largest then"
        );
        assert_eq!(with(&[(9, 80), (11, 500)]), (vec![100, 90, 90], [100, 115]));
        assert_eq!(with(&[(7, -5)]), (vec![95, 90, 10], [95, 115]));
        assert_eq!(with_mapped(&all, 115, None), (all.to_vec(), 115));
    }

    #[test]
    fn a_replay_changes_the_recorded_count_by_what_it_saves() {
        assert_eq!(expected_faults(1000, 900, 900), 1000);
        assert_eq!(expected_faults(1000, 900, 100), 200, "100 faults have no event");
        assert_eq!(expected_faults(1000, 900, 950), 1050, "a size may cost faults too");
        assert_eq!(expected_faults(10, 900, 100), 0);
        assert_eq!(expected_faults(0, 900, 100), 100, "the kernel did not tell");
    }
}
