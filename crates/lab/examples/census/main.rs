//! Records the programs that people run, in both tiers, and holds each recording against the kernel's own count.
//!
//! ```sh
//! cargo run --release --example census -- [--runs 3] [PROGRAM…]
//! ```
//!
//! Prints a table in Markdown. Inside each recording stands `perf stat`, which counts the page faults of the program and of
//! all its descendants; the same faults are counted in the trace. Each trace is replayed with `--check`. The overhead is the
//! recording's wall time over the program's own, both under `perf stat`, medians of runs that take turns; both have
//! transparent huge pages, which a recording switches off, switched off.

mod faults;
mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use lab::trace::Tier;
use programs::{PROGRAMS, Program};

const TIERS: [(Tier, &str); 2] = [(Tier::Privileged, "privileged"), (Tier::User, "user")];

fn main() -> anyhow::Result<ExitCode> {
    // Inherited by all that is started here, so that a program alone runs under what a recorded one does.
    nix::sys::prctl::set_thp_disable(true)?;
    let mut runs = 3;
    let mut wanted = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--runs" {
            runs = arguments.next().and_then(|count| count.parse().ok()).context("--runs takes a number")?;
        } else {
            wanted.push(argument);
        }
    }
    let quire = std::env::current_exe()?.parent().and_then(Path::parent).map(|at| at.join("quire"));
    let quire =
        quire.filter(|quire| quire.exists()).context("build the command first: cargo build --release")?;
    println!(
        "| program | tier | events | KiB | faults in the trace | of `perf stat` | lost | `--check` | overhead |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut all_good = true;
    for program in PROGRAMS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == program.name) {
            continue;
        }
        if which(program.needs).is_none() {
            println!(
                "| {} | | | | | not measured: `{}` is not installed | | | |",
                program.name, program.needs
            );
            continue;
        }
        all_good &= census(program, &quire, runs).with_context(|| format!("recording {}", program.name))?;
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the rows of one program. False if a count is off by more than half a percent, or a check failed.
fn census(program: &Program, quire: &Path, runs: usize) -> anyhow::Result<bool> {
    let mut alone = Vec::new();
    let mut recordings: [Vec<Recording>; 2] = [Vec::new(), Vec::new()];
    for run in 0..runs {
        eprintln!("{}: run {} of {runs}", program.name, run + 1);
        alone.push(Ground::new(program)?.timed(&mut Command::new("perf"), program)?);
        for ((tier, option), into) in TIERS.into_iter().zip(&mut recordings) {
            into.push(Recording::make(program, quire, (tier, option))?);
        }
    }
    let mut good = true;
    for ((_, option), recordings) in TIERS.into_iter().zip(recordings) {
        let worst = recordings.iter().max_by(|a, b| a.off().total_cmp(&b.off())).context("no runs")?;
        let checked = recordings.iter().filter(|recording| recording.check.is_none()).count();
        let seconds = recordings.iter().map(|recording| recording.seconds).collect();
        println!(
            "| {} | {option} | {} | {} | {} | {:.2} % | {} | {checked} of {runs} | {:.2} |",
            program.name,
            worst.events,
            worst.bytes / 1024,
            worst.in_trace,
            100.0 * worst.in_trace as f64 / worst.by_kernel as f64,
            worst.lost,
            median(seconds) / median(alone.clone()),
        );
        for recording in &recordings {
            if let Some(said) = &recording.check {
                eprintln!("{}, {option}: {said}", program.name);
            }
        }
        good &= worst.off() <= 0.005 && checked == runs;
    }
    Ok(good)
}

/// One recording and what was found in it. Of several runs the table shows the one whose count is furthest off.
struct Recording {
    seconds: f64,
    events: u64,
    bytes: u64,
    in_trace: u64,
    by_kernel: u64,
    lost: u64,
    /// What the check said, if it was not content.
    check: Option<String>,
}

impl Recording {
    fn make(program: &Program, quire: &Path, (tier, option): (Tier, &str)) -> anyhow::Result<Recording> {
        let ground = Ground::new(program)?;
        let trace = ground.path("t.qtrace");
        let mut record = Command::new(quire);
        record.args(["record", "--quiet", "--tier", option, "-o"]).arg(&trace).args(["--", "perf"]);
        let seconds = ground.timed(&mut record, program)?;
        let counted = faults::in_trace(&trace)?;
        let replay = Command::new(quire).args(["replay", "--check"]).arg(&trace).output()?;
        let said = String::from_utf8_lossy(&replay.stderr).trim().to_owned();
        Ok(Recording {
            seconds,
            events: counted.events,
            bytes: std::fs::metadata(&trace)?.len(),
            in_trace: counted.faults,
            by_kernel: faults::of_perf(&ground.path("perf.csv"), tier)?,
            lost: counted.lost,
            check: (!replay.status.success()).then_some(said),
        })
    }

    /// By how much of the kernel's count the trace's is off.
    fn off(&self) -> f64 {
        (self.in_trace as f64 / self.by_kernel as f64 - 1.0).abs()
    }
}

/// A fresh directory with the inputs of all programs.
struct Ground(tempfile::TempDir);

impl Ground {
    fn new(program: &Program) -> anyhow::Result<Ground> {
        let ground = Ground(tempfile::tempdir()?);
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/programs");
        for entry in inputs.read_dir().context("the inputs of the bundled traces")? {
            let entry = entry?;
            std::fs::copy(entry.path(), ground.path(&entry.file_name().to_string_lossy()))?;
        }
        std::fs::write(ground.path("script"), program.script)?;
        Ok(ground)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `perf stat` of the program behind what `command` has already, and gives the seconds it took.
    fn timed(&self, command: &mut Command, program: &Program) -> anyhow::Result<f64> {
        command.args([
            "stat",
            "-x,",
            "-e",
            "page-faults,page-faults:u",
            "-o",
            "perf.csv",
            "--",
            "sh",
            "script",
        ]);
        let begin = Instant::now();
        let status =
            command.current_dir(self.0.path()).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("`{}` ended with {status}", program.script);
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

fn which(command: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|at| at.join(command)).find(|path| path.is_file())
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
