//! How long a program is in page faults, from samples of the kernel: `perf` looks thousands of times a second where it is.
//!
//! A sample is in a fault if the trap's entry is in its call chain. Taking one lasts some 13 us in a virtual machine, and
//! lengthens what it interrupts: at this rate by 3 %. These runs are others than those that are timed. The clock runs on each
//! processor while it runs the program's control group: one that began anew with each process would miss those that are shorter
//! than its period.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::group::Group;
use super::streams::Streams;

/// The program that samples, of Debian's package `linux-perf`.
const PERF: &str = "perf";

/// Samples of each second of processor time, in the kernel alone.
const RATE: u32 = 2_000;
/// What the time of a run is a multiple of.
pub(super) const SAMPLE_NS: u64 = 1_000_000_000 / RATE as u64;

/// Where the processor enters the kernel for a page fault.
const ENTRY: &str = "^asm_exc_page_fault$";

/// Why no time in faults can be measured here, if so.
pub(super) fn missing() -> Option<&'static str> {
    let version = Command::new(PERF).arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let runs = version.is_ok_and(|status| status.success());
    (!runs).then_some("there is no `perf`: install the package `linux-perf`")
}

/// Joins the control group of the first argument, and becomes the program of the others.
const JOIN: &str = "echo $$ >\"$1\" && shift && exec \"$@\"";

/// Runs the command once; returns the nanoseconds that it and all processes that it started were in page faults. Without a
/// control group those of all processes of the machine count.
///
/// # Errors
/// Samples that cannot be taken or read.
pub(super) fn sample(command: &[OsString], group: Option<&Group>, shown: bool) -> Result<u64> {
    let directory = tempfile::tempdir()?;
    let samples = directory.path().join("samples");
    let mut perf = Command::new(PERF);
    perf.args([
        "record",
        "--quiet",
        "--no-buildid",
        "--kernel-callchains",
        "--event",
        "cpu-clock:k",
        "-g",
        "-a",
    ])
    .args(["--freq", &RATE.to_string(), "--output"])
    .arg(&samples);
    match group {
        Some(group) => {
            perf.args(["--cgroup", &group.name, "--", "sh", "-c", JOIN, "sh"]);
            perf.arg(group.members()).args(command);
        }
        None => drop(perf.arg("--").args(command)),
    }
    let streams = Streams::of_program(shown)?;
    // Its status may be that of the program.
    let status = perf.status();
    drop(streams);
    status.context("cannot run perf")?;
    in_faults(&report(&samples)?)
}

/// The samples by whether a fault is in their call chain, as text.
fn report(samples: &Path) -> Result<String> {
    let words =
        ["report", "--stdio", "--no-children", "--call-graph", "none", "--sort", "parent", "--parent"];
    let output = Command::new(PERF)
        .args(words.map(OsStr::new))
        .args([OsStr::new(ENTRY), OsStr::new("--input"), samples.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .context("cannot run perf")?;
    ensure!(
        output.status.success(),
        "perf took no samples: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the nanoseconds of all samples, and the share of those in faults.
fn in_faults(report: &str) -> Result<u64> {
    let after =
        |line: &str, start| line.trim_start_matches(['#', ' ']).strip_prefix(start).map(str::to_owned);
    let all = report.lines().find_map(|line| after(line, "Event count (approx.): "));
    let all: u64 =
        all.and_then(|count| count.trim().parse().ok()).context("perf does not count its samples")?;
    let share = report.lines().find_map(|line| line.trim().strip_suffix("asm_exc_page_fault"));
    let percent = share.map_or(Some(0.0), |share| share.trim().strip_suffix('%')?.parse().ok());
    let percent: f64 = percent.context("perf does not tell shares")?;
    Ok((all as f64 * percent / 100.0) as u64)
}

#[cfg(test)]
mod tests;
