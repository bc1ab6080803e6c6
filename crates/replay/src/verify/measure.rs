//! Runs a program under each set of folio sizes, and reads what the kernel counted.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::conditions::{Conditions, PoolPages, watched};
use super::fault_time::Sampler;
use super::group::Group;
use super::run_off::{Limits, RunOff};
use super::run_process::RunProcess;
use super::sampled::{Plan, Ran, Sampling, deal};
use super::streams::Streams;
use crate::calibrate;
use crate::output::{Progress, quoted, say};
use crate::record::{self, Counted, Peak, ProcessPeak, Wait};
use crate::replay::FolioSet;
use crate::settings::{Places, Settings, Sizes};
use crate::trace::{Program, Tier};
use anyhow::{Context, Result, bail};

/// A program with less memory may have less than the process that starts it, whose memory the kernel counts as the
/// program's. Its peak is read at the end of each of its processes.
const SMALL_BYTES: u64 = 32 << 20;

/// A run-off ends after so many turns, and when it has taken so long, and as long as all runs before it.
const RUN_OFF_TURNS: usize = 160;
const RUN_OFF_TIME: Duration = Duration::from_secs(60);

/// All runs of a program.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// In the order in which the sets were given.
    pub(super) sizes: Vec<Runs>,
    pub(super) peak: Peak,
    /// Recordings of the program between the turns of sampled runs. A processor's clock may change by half between two runs: what
    /// a fault costs is then of as many moments as what it is held against.
    pub(super) recordings: Vec<PathBuf>,
    /// What samples change and miss.
    pub(super) sampling: Sampling,
    /// Further turns of what is advised and of the other sets.
    pub(super) run_off: Option<RunOff>,
}

/// The runs under one set of sizes.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) runs: Vec<Counted>,
    /// The processes of each run, or of as many others, if their peaks were seen.
    pub(super) processes: Vec<Vec<ProcessPeak>>,
    /// Faults in the whole system that found no free folio of these sizes meanwhile.
    pub(super) fell_back: u64,
    /// Nanoseconds in faults of further runs, from samples alone, and what the kernel counted in them.
    pub(super) fault_ns: Vec<u64>,
    pub(super) sampled: Vec<Counted>,
    /// The most pages of the pools that were in use in each run.
    pub(super) pools: Vec<PoolPages>,
}

/// What comes before each run, and is not measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    pub(super) script: Option<&'a OsStr>,
    /// The host may take back the memory that the run before has freed.
    pub(super) rest: Duration,
}

/// A program to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measuring<'a> {
    pub(super) command: &'a [OsString],
    pub(super) before: Before<'a>,
    /// Whether the user sees what it writes.
    pub(super) shown: bool,
    /// Runs whose time in faults is sampled, if there are any.
    pub(super) sampled: Option<&'a Plan>,
    /// Where recordings are made between the turns of sampled runs, if there; see [`Measured::recordings`].
    pub(super) recorded: Option<&'a Path>,
    /// The most turns of a run-off, however long they take; `None` for what is usual.
    pub(super) run_off: Option<u32>,
    pub(super) conditions: &'a Conditions,
}

impl<'a> Measuring<'a> {
    /// Runs the command once to warm the page cache, and then `runs` times under each set of sizes, by turns. `advised`
    /// is one of them, which may take so many percent longer than the fastest.
    ///
    /// # Errors
    /// A command that cannot be run, settings that this user may not change.
    pub(super) fn measure(
        self,
        places: &Places,
        sets: &[FolioSet],
        runs: u32,
        advised: (FolioSet, f64),
    ) -> Result<Measured> {
        let settings = Settings::acquire(places)?;
        let began = Instant::now();
        self.conditions.apply(&settings, places)?;
        settings.always(&[])?;
        // This run warms the page cache.
        let first = self.run(Peak::Seen)?;
        let peak = match first.peak_rss_bytes {
            _ if self.conditions.khugepaged.is_some() => Peak::SeenWithHuge,
            ..SMALL_BYTES => Peak::Seen,
            _ => Peak::Counted,
        };
        // Of a program with more than one process, a run more tells the peaks of all.
        let apart = peak == Peak::Counted && first.processes.len() > 1;
        let mut measured = vec![Runs::default(); sets.len()];
        let mut progress = Progress::new("verify", runs as usize * sets.len());
        for turn in 0..runs {
            for at in order(turn, sets.len()) {
                self.tell(&mut progress, "runs", &sets[at].name());
                let fell_back =
                    || sets[at].given_kib().filter_map(|kib| settings.fell_back(kib)).sum::<u64>();
                let before = fell_back();
                let (mut run, pools) = while_set(&settings, sets[at], || {
                    let (run, pools) = watched(self.conditions.pools, places, || self.run(peak));
                    Ok((run?, pools))
                })?;
                measured[at].fell_back += fell_back() - before;
                measured[at].pools.push(pools);
                let mut seen = std::mem::take(&mut run.processes);
                if apart {
                    seen = while_set(&settings, sets[at], || self.run(Peak::Seen))?.processes;
                }
                measured[at].runs.push(run);
                measured[at].processes.extend((!seen.is_empty()).then_some(seen));
                progress.advance();
            }
        }
        progress.finish();
        let (recordings, sampling) = match self.sampled.filter(|plan| plan.turns() > 0) {
            Some(plan) => self.sample(plan, &settings, (sets, &mut measured), began.elapsed())?,
            None => (Vec::new(), Sampling::default()),
        };
        let run_off = self.further(&settings, sets, advised, began.elapsed())?;
        Ok(Measured { sizes: measured, peak, recordings, sampling, run_off })
    }

    /// Shows how far the runs are, unless the program writes to the same terminal.
    fn tell(self, progress: &mut Progress, part: &str, what: &str) {
        if !self.shown {
            progress.show(part, what);
        }
    }

    /// The run-off of the advised set against the others, after runs that took so long.
    fn further(
        self,
        settings: &Settings,
        sets: &[FolioSet],
        (advised, percent): (FolioSet, f64),
        so_far: Duration,
    ) -> Result<Option<RunOff>> {
        let (turns, time) = match self.run_off {
            Some(turns) => (turns as usize, Duration::MAX),
            None => (RUN_OFF_TURNS, so_far.max(RUN_OFF_TIME)),
        };
        let others: Vec<FolioSet> = sets.iter().copied().filter(|set| *set != advised).collect();
        let names = others.iter().map(|set| set.name()).collect();
        let mut progress = Progress::new("verify", turns);
        let run_off = RunOff::of(Limits { turns, time, percent }, names, |turn, running| {
            self.tell(&mut progress, "turns of the run-off, at most;", &format!("{} open", running.len()));
            let running = running.iter().map(|&at| others[at]);
            let sets: Vec<FolioSet> = std::iter::once(advised).chain(running).collect();
            let times = self.turn(settings, &sets, turn as u32);
            progress.advance();
            times
        });
        progress.finish();
        run_off
    }

    /// The run times under these sets.
    fn turn(self, settings: &Settings, sets: &[FolioSet], turn: u32) -> Result<Vec<u64>> {
        let mut times = vec![0; sets.len()];
        for at in order(turn, sets.len()) {
            times[at] = while_set(settings, sets[at], || self.run(Peak::Counted))?.run_ns;
        }
        Ok(times)
    }

    /// Further runs of which samples tell the time in faults, by turns, after runs that took so long. Returns the recordings
    /// between them, and what samples change and miss.
    fn sample(
        self,
        plan: &Plan,
        settings: &Settings,
        (sets, measured): (&[FolioSet], &mut [Runs]),
        so_far: Duration,
    ) -> Result<(Vec<PathBuf>, Sampling)> {
        let (mut recordings, mut ran) = (Vec::new(), Vec::new());
        let group = Group::make();
        if group.is_none() {
            say("quire: no control group can be made: faults of other programs count in the time in faults");
        }
        let mut sampler = Sampler::begin(group)?;
        let began = Instant::now();
        let mut progress = Progress::new("verify", plan.sets.iter().map(|set| set.runs as usize).sum());
        for turn in 0..plan.turns() {
            if let Some(directory) = self.recorded.filter(|_| plan.records(turn)) {
                let trace = directory.join(format!("turn-{turn}.qtrace"));
                self.record(&trace)?;
                recordings.push(trace);
            }
            for at in plan.order(turn) {
                self.tell(&mut progress, "sampled runs, at most;", &sets[at].name());
                let run = while_set(settings, sets[at], || {
                    self.before.each_run()?;
                    calibrate::bring_in_blocks(plan.sets[at].blocks)?;
                    sampler.run(self.command, self.shown)
                })?;
                sampler.count(&run);
                measured[at].sampled.push(run);
                ran.push(Ran::Set(at));
                progress.advance();
            }
            if plan.faults(turn) {
                ran.push(Ran::Faults(sampler.run_faults()?));
            }
            if plan.is_over(turn, began.elapsed(), so_far) {
                break;
            }
        }
        progress.finish();
        Ok((recordings, deal(sampler.end()?, &ran, measured)))
    }

    /// Records the command.
    ///
    /// # Errors
    /// As [`Before::each_run`] and [`record::record`].
    pub(super) fn record(self, trace: &Path) -> Result<()> {
        let name = Path::new(&self.command[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let options = record::Options {
            output: trace.to_owned(),
            command: self.command.to_owned(),
            tier: Some(Tier::Privileged),
            ring_bytes: None,
            program: Program { name, version: String::new() },
            no_arguments: false,
            wait: Wait::All,
            // The settings are changed, so a signal ends this process as soon as they are put back.
            ends_with_recorder: true,
            thp: record::Thp::Off,
            max_overhead: None,
            accesses: record::Source::Nothing,
            interface: record::Interface::Auto,
        };
        self.before.each_run()?;
        let streams = Streams::of_program(self.shown)?;
        let recorded = record::record(&options);
        drop(streams);
        // The recorder may be faster than the thread that puts settings back.
        match recorded?.asked_to_end {
            Some(signal) => bail!("{signal} has ended the program while it was recorded"),
            None => Ok(()),
        }
    }

    /// Runs the command once and keeps nothing of it: what it reads is in the page cache then. A command that cannot be run is
    /// left to the recorder, which says why.
    ///
    /// # Errors
    /// As [`Before::each_run`], and a process that cannot be started.
    pub(super) fn warm(self) -> Result<()> {
        self.before.each_run()?;
        self.run_process(Peak::Counted).warm()
    }

    /// Runs the command once, in a process of its own.
    fn run(self, peak: Peak) -> Result<Counted> {
        self.before.each_run()?;
        self.run_process(peak).counted()
    }

    fn run_process(self, peak: Peak) -> RunProcess<'a> {
        RunProcess { command: self.command, shown: self.shown, peak, group: None }
    }
}

/// Does something while memory has the folios of a set, and memory that asks those on request.
fn while_set<T>(settings: &Settings, set: FolioSet, run: impl FnMut() -> Result<T>) -> Result<T> {
    let (always, madvise): (Vec<usize>, Vec<usize>) = (set.kib().collect(), set.requested().kib().collect());
    settings.while_given(&Sizes { always: &always, madvise: &madvise }, run)
}

/// The order in which a turn runs so many sets, drawn by the number of the turn. A run gets the memory that the run before it has
/// freed, and may take some percent longer by that: a set that always ran behind the same one would be charged for it.
pub(super) fn order(turn: u32, sets: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sets).collect();
    fastrand::Rng::with_seed(turn.into()).shuffle(&mut order);
    order
}

impl Before<'_> {
    /// Runs the shell command of `--prepare`, and waits.
    ///
    /// # Errors
    /// A command that cannot be run, or fails.
    fn each_run(self) -> Result<()> {
        if let Some(script) = self.script {
            let null = Stdio::null;
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(script).stdin(null()).stdout(null());
            let status = shell.status().context("cannot run --prepare")?;
            if !status.success() {
                bail!("--prepare {} failed ({status})", quoted(script));
            }
        }
        thread::sleep(self.rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_comes_after_the_script_and_the_rest() {
        let before = |script, rest| Before { script: Some(OsStr::new(script)), rest };
        let rest = Duration::from_millis(20);
        let begun = Instant::now();
        before("true", rest).each_run().unwrap();
        assert!(begun.elapsed() >= rest);
        let error = before("exit 3", Duration::ZERO).each_run().unwrap_err().to_string();
        assert!(error.contains("--prepare 'exit 3' failed") && error.contains('3'), "{error}");
    }

    /// `java` under 64K and 2M always ran behind 2M, and took 5 % longer than under 64K alone; behind 64K it took no longer.
    #[test]
    fn no_set_always_runs_behind_the_same_one() {
        let (turns, sets) = (60, 10);
        let mut behind = vec![vec![0; sets]; sets];
        for turn in 0..turns {
            let order = order(turn, sets);
            order.windows(2).for_each(|pair| behind[pair[1]][pair[0]] += 1);
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..sets).collect::<Vec<_>>(), "each runs once");
        }
        for (set, behind) in behind.iter().enumerate() {
            // Six times in the mean.
            assert!(behind.iter().all(|&times| times < 20), "{set} behind {behind:?}");
        }
    }
}
