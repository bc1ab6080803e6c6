//! Runs some tests of a program, one after the other, and stops at the first that fails.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::SIGXCPU;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::build::Program;

/// Private memory that a process may have. The memory of a hosted machine counts whether it is touched or not, and
/// the second largest has 6 GiB.
const DATA_BYTES: u64 = 16 << 30;
/// A test that waits in vain uses no processor; it is ended after waiting this long.
const WAITS: Duration = Duration::from_secs(10);
/// How often the waiting time of a process is read.
const LOOK: Duration = Duration::from_secs(1);

/// The outcome of the tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Passed,
    /// The test failed, or the process died in it.
    Failed(String),
    /// The test did not end.
    Hangs(String),
}

/// The switches of a process.
#[derive(Clone, Copy, Default)]
pub(crate) struct Switch<'a> {
    pub(crate) number: Option<u32>,
    /// The file in which it marks the places that it executes.
    pub(crate) reached: Option<&'a Path>,
}

/// Runs tests by their full names. `expected`: their time without a bug.
pub(crate) fn run(program: &Program, tests: &[&str], expected: Duration, switch: Switch) -> Result<Outcome> {
    // Eight times as long, since two run at once, and a few seconds for short ones.
    let seconds = 8 * expected.as_secs() + 6;
    let mut command = Command::new("prlimit");
    command.arg(format!("--cpu={seconds}")).arg(format!("--data={DATA_BYTES}")).arg("--core=0");
    command.arg("--").arg(&program.path).args(tests).args(["--exact", "--test-threads=1"]);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("RUST_BACKTRACE", "0");
    if let Some(number) = switch.number {
        command.env("QUIRE_MUTANT", number.to_string());
    }
    if let Some(path) = switch.reached {
        command.env("QUIRE_MUTANTS_REACHED", path);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().context("prlimit, of util-linux")?;
    let output = child.stdout.take().context("a pipe")?;
    let (sender, lines) = channel();
    let reader = thread::spawn(move || {
        let (mut output, mut buffer) = (output, [0; 4096]);
        while let Ok(bytes @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..bytes].to_vec()).is_err() {
                break;
            }
        }
    });
    let seen = watch(&lines, child.id(), WAITS + 8 * expected);
    let group = Pid::from_raw(child.id() as i32);
    if seen.stopped {
        let _ = killpg(group, Signal::SIGKILL);
    }
    let status = child.wait()?;
    // Processes that a test started end with it.
    let _ = killpg(group, Signal::SIGKILL);
    drop(lines);
    let _ = reader.join();
    Ok(judge(&seen, status))
}

/// The output of a process, as far as it was watched.
#[derive(Default)]
struct Seen {
    text: String,
    failed: Option<String>,
    /// It was stopped: a test has failed, or the time is up.
    stopped: bool,
}

/// `most`: the time that the process may run or sleep. Waiting for a processor does not count.
fn watch(lines: &Receiver<Vec<u8>>, process: u32, most: Duration) -> Seen {
    let (mut seen, mut starved, start) = (Seen::default(), Starved::default(), Instant::now());
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(bytes) => seen.text.push_str(&String::from_utf8_lossy(&bytes)),
            Err(RecvTimeoutError::Timeout) => {
                starved.look(process);
                seen.stopped = start.elapsed() > most + starved.time;
            }
            Err(RecvTimeoutError::Disconnected) => return seen,
        }
        seen.failed = seen.text.lines().find_map(failed).map(str::to_string);
        if seen.stopped || seen.failed.is_some() {
            seen.stopped = true;
            return seen;
        }
    }
}

/// The time for which a process waited for a processor: the sum over reads of its longest-waiting thread.
#[derive(Default)]
struct Starved {
    time: Duration,
    /// The waiting time of each thread so far.
    threads: HashMap<PathBuf, u64>,
}

impl Starved {
    fn look(&mut self, process: u32) {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let waited = tasks.filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Some((task.path(), text.split_whitespace().nth(1)?.parse().ok()?))
        });
        let now: HashMap<PathBuf, u64> = waited.collect();
        let more =
            |(task, waited): (&PathBuf, &u64)| waited - self.threads.get(task).unwrap_or(&0).min(waited);
        self.time += Duration::from_nanos(now.iter().map(more).max().unwrap_or(0));
        self.threads = now;
    }
}

/// The test that failed according to a line.
fn failed(line: &str) -> Option<&str> {
    name(line.strip_suffix(" ... FAILED")?)
}

/// The test that a line is about.
fn name(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.split(" ... ").next()?.split(" - should panic").next()
}

fn judge(seen: &Seen, status: ExitStatus) -> Outcome {
    if let Some(test) = &seen.failed {
        return Outcome::Failed(test.clone());
    }
    if status.success() {
        return Outcome::Passed;
    }
    // The line of a test is complete when the test has ended.
    let last = seen.text.lines().last().filter(|line| line.starts_with("test ")).and_then(name);
    let last = last.unwrap_or("its start or its end").to_string();
    if seen.stopped || status.signal() == Some(SIGXCPU) {
        Outcome::Hangs(last)
    } else {
        Outcome::Failed(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The outcome of a program that runs this script.
    fn outcome(name: &str, script: &str) -> Outcome {
        let path = std::env::temp_dir().join(format!("mutants-{name}-{}", std::process::id()));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("its rights");
        let program = Program { path: path.clone(), folder: std::env::temp_dir() };
        let outcome = run(&program, &["a::b"], Duration::ZERO, Switch { number: Some(7), reached: None });
        fs::remove_file(path).expect("the file");
        outcome.expect("a shell")
    }

    #[test]
    fn a_test_that_fails_or_dies_is_named() {
        let failed = |name: &str| Outcome::Failed(name.into());
        assert_eq!(outcome("passes", "echo 'test a::b ... ok'"), Outcome::Passed);
        assert_eq!(outcome("fails", "echo 'test a::b ... FAILED'; sleep 1000"), failed("a::b"));
        assert_eq!(
            outcome("dies", "echo 'test a ... ok'; printf 'test a::b ... '; kill -9 $$"),
            failed("a::b")
        );
        assert_eq!(outcome("number", "test $QUIRE_MUTANT = 7"), Outcome::Passed);
    }

    #[test]
    fn a_test_that_does_not_end_is_told_from_one_that_fails() {
        let status = ExitStatus::from_raw(SIGXCPU);
        let seen = Seen { text: "\nrunning 1 test\ntest a::b ... ".into(), ..Seen::default() };
        assert_eq!(judge(&seen, status), Outcome::Hangs("a::b".into()));
        let waits = Seen { stopped: true, ..seen };
        assert_eq!(judge(&waits, ExitStatus::from_raw(9)), Outcome::Hangs("a::b".into()));
    }
}
