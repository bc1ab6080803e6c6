//! How long a program is in page faults, from samples of the kernel: `perf` looks thousands of times a second where it is.
//!
//! A sample is in a fault if the trap's entry is in its call chain. Taking one lasts some 13 us in a virtual machine, and
//! lengthens what it interrupts by some percent. These runs are others than those that are timed. [`unsampled`](super::unsampled)
//! tells by how much, and what samples do not see of a fault. The clock runs on each
//! processor while it runs the program's control group: one that began anew with each process would miss those that are shorter
//! than its period. One `perf` takes the samples of all runs, since it needs a second to begin and to end; the time of a sample
//! tells its run.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use super::group::Group;
use super::run_process::RunProcess;
use super::unsampled::{Faulted, Groups};
use crate::record::{Counted, Peak};

/// The program that samples, of Debian's package `linux-perf`.
const PERF: &str = "perf";

/// The time between two samples of a processor, in the kernel alone; what the time of a run is a multiple of.
pub(super) const SAMPLE_NS: u64 = 500_000;

/// Where the processor enters the kernel for a page fault.
const ENTRY: &str = "asm_exc_page_fault";

/// Starts the command of the arguments as a process that is no child of this one: a recording waits for all children.
const APART: &str = "exec 3<&0; \"$@\" <&3 3<&- &";

/// What `perf` waits for: it says that the samples have begun, and ends with its standard input, so with this process too.
const WORK: &str = "echo begun; exec cat";

/// Why no time in faults can be measured here, if so.
pub(super) fn missing() -> Option<&'static str> {
    let version = Command::new(PERF).arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let runs = version.is_ok_and(|status| status.success());
    (!runs).then_some("there is no `perf`: install the package `linux-perf`")
}

/// Takes samples while programs run.
pub(super) struct Sampler {
    /// Its end is the end of `perf`.
    input: ChildStdin,
    /// Where it says that it has begun, and then nothing until it has ended.
    output: BufReader<ChildStdout>,
    directory: TempDir,
    group: Option<Group>,
    /// When each run began and ended, and each round of a process that only faults.
    runs: Vec<(Duration, Duration)>,
}

impl Sampler {
    /// Begins. Without a control group the samples of all processes of the machine count.
    ///
    /// # Errors
    /// Samples that cannot be taken.
    pub(super) fn begin(group: Option<Group>) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut perf = Command::new("sh");
        perf.args([
            "-c",
            APART,
            "sh",
            PERF,
            "record",
            "--quiet",
            "--no-buildid",
            "--kernel-callchains",
            "--event",
            "cpu-clock:k",
        ])
        .args(["-g", "-a", "--count", &SAMPLE_NS.to_string(), "--clockid", "CLOCK_MONOTONIC", "--output"])
        .arg(directory.path().join("samples"));
        if let Some(group) = &group {
            perf.args(["--cgroup", &group.name]);
        }
        perf.args(["--", "sh", "-c", WORK]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = perf.spawn().context("cannot run perf")?;
        let input = shell.stdin.take().context("perf has an input")?;
        let mut output = BufReader::new(shell.stdout.take().context("perf has an output")?);
        shell.wait()?;
        let mut said = String::new();
        output.read_line(&mut said)?;
        ensure!(said.trim() == "begun", "perf takes no samples");
        Ok(Self { input, output, directory, group, runs: Vec::new() })
    }

    /// Runs the command once, with all that it starts.
    ///
    /// # Errors
    /// A command that cannot be run.
    pub(super) fn run(&self, command: &[OsString], shown: bool) -> Result<Counted> {
        self.run_process(command, shown)
    }

    /// The samples of this run count, which is later than those before it.
    pub(super) fn count(&mut self, run: &Counted) {
        self.runs.push((run.began, run.began + Duration::from_nanos(run.run_ns)));
    }

    /// Runs a process that only faults; each of its sampled rounds is a run.
    ///
    /// # Errors
    /// A process that cannot be started, or has not done its work.
    pub(super) fn run_faults(&mut self) -> Result<Faulted> {
        let place = self.directory.path().join("faulted");
        let files = self.group.as_ref().map(|group| (group.members(), group.outside()));
        let groups = files.as_ref().map(|(inside, outside)| Groups { inside, outside });
        let code = self.run_process(&Faulted::command(&place, groups)?, true)?.exit_code;
        ensure!(code == 0, "the process that only faults failed (exit code {code})");
        let faulted = Faulted::read(&place)?;
        self.runs.extend(&faulted.rounds);
        Ok(faulted)
    }

    /// A run whose samples count.
    fn run_process(&self, command: &[OsString], shown: bool) -> Result<Counted> {
        let group = self.group.as_ref().map(Group::members);
        RunProcess { command, shown, peak: Peak::Counted, group }.counted()
    }

    /// Ends; returns the nanoseconds that the program and all processes that it started were in page faults, by run.
    ///
    /// # Errors
    /// Samples that cannot be read.
    pub(super) fn end(self) -> Result<Vec<u64>> {
        let Self { input, mut output, directory, group: _group, runs } = self;
        drop(input);
        output.read_to_string(&mut String::new())?;
        let mut script = Command::new(PERF)
            .args(["script", "--ns", "-F", "time,ip,sym", "--input"])
            .arg(directory.path().join("samples"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run perf")?;
        let samples = BufReader::new(script.stdout.take().context("perf has an output")?);
        let counted = in_faults(samples, &runs)?;
        let mut said = String::new();
        script.stderr.take().context("perf has an output")?.read_to_string(&mut said)?;
        ensure!(script.wait()?.success(), "perf cannot read its samples: {}", said.trim());
        Ok(counted.into_iter().map(|samples| samples * SAMPLE_NS).collect())
    }
}

/// The clock that samples have.
pub(super) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Counts the samples in faults that lie in each of the runs, which are in the order of time. A sample is a line with its
/// time and one for each function of its call chain.
fn in_faults(samples: impl BufRead, runs: &[(Duration, Duration)]) -> Result<Vec<u64>> {
    let mut counted = vec![0; runs.len()];
    let mut run = None;
    for line in samples.lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(time), None) if time.ends_with(':') => {
                let time = time.trim_end_matches(':').parse().ok().map(Duration::from_secs_f64);
                let time = time.context("perf tells no times")?;
                let at = runs.partition_point(|(_, ended)| *ended < time);
                run = runs.get(at).is_some_and(|(begun, _)| *begun <= time).then_some(at);
            }
            (Some(_), Some(ENTRY)) => {
                // A fault inside another one is a part of it.
                if let Some(run) = run.take() {
                    counted[run] += 1;
                }
            }
            _ => {}
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests;
