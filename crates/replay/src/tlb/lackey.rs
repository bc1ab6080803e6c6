//! Runs a program under valgrind's tool `lackey`, which writes a line for each access, and sends all of them through models.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::{FdFlags, fcntl_setfd};

use super::backing::{Backing, Ranges};
use super::model::{Counts, Model};
use super::processor::{Access, Processor};
use super::windows::{Due, Window, Windows};
use crate::output::quoted;

const VALGRIND: &str = "valgrind";
const PAGE: u64 = 4096;

/// What a program's accesses have missed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    /// Loads and stores, and instruction fetches. One across the end of a page counts twice.
    pub(crate) accesses: u64,
    pub(crate) fetches: u64,
    /// For each backing.
    pub(crate) counts: Vec<Counts>,
    /// Whether the program was ended before its end.
    pub(crate) cut: bool,
    /// Of a long run, of which windows alone went through the models: the counts of all are estimated from
    /// theirs.
    pub(crate) sampled: Option<Sampled>,
}

/// The windows of a long run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) windows: usize,
    /// The share of all accesses and fetches that is in them.
    pub(crate) share: f64,
    /// For each backing the least and the most data accesses of a thousand that walk, of one window.
    pub(crate) walks_per_thousand: Vec<(f64, f64)>,
}

/// Fails if there is no valgrind.
///
/// # Errors
/// As said.
pub(crate) fn require() -> Result<()> {
    let found = Command::new(VALGRIND).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(
        found.is_ok_and(|status| status.success()),
        "there is no valgrind: install the package `valgrind`"
    );
    Ok(())
}

/// Runs the command, for `time` at most. Processes that it starts are not followed.
///
/// # Errors
/// A command that valgrind cannot run, or a pipe that cannot be made or read.
pub(crate) fn run(
    command: &[OsString],
    processor: &Processor,
    backings: &[Backing],
    time: Duration,
) -> Result<Run> {
    let deadline = Instant::now().checked_add(time);
    let (mut child, lines) = start(command)?;
    let mut models = Models::new(processor, backings, child.id());
    let read = feed(&mut models, lines, &mut child, deadline);
    let cut = !matches!(read, Ok(true));
    if cut {
        child.kill().context("cannot end the instrumented program")?;
    }
    let status = child.wait()?;
    read?;
    ensure!(models.fetches > 0, "valgrind cannot run the command ({status})");
    Ok(models.end(cut))
}

/// Starts the command with its accesses going into a pipe.
fn start(command: &[OsString]) -> Result<(Child, File)> {
    let (reader, writer) = io::pipe().context("cannot make a pipe")?;
    let writer = OwnedFd::from(writer);
    fcntl_setfd(&writer, FdFlags::empty()).context("cannot pass a pipe on")?;
    let child = Command::new(VALGRIND)
        .args(["--quiet", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg("--child-silent-after-fork=yes")
        .arg(format!("--log-fd={}", writer.as_raw_fd()))
        .arg("--")
        .args(command)
        .spawn()
        .context("cannot run valgrind")?;
    Ok((child, File::from(OwnedFd::from(reader))))
}

/// Sends all lines through the models. Returns whether the program came to its end before the deadline.
fn feed(
    models: &mut Models<'_>,
    mut lines: File,
    child: &mut Child,
    deadline: Option<Instant>,
) -> Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        // A process that the program left behind may keep the pipe open.
        let mut wanted = [PollFd::new(lines.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wanted, PollTimeout::from(10u8)) {
            Ok(0) if child.try_wait()?.is_some() => return Ok(true),
            Ok(0) if models.fetches > 0 => {
                follows(child.id())?;
                continue;
            }
            Ok(0) | Err(Errno::EINTR) => continue,
            ready => ready?,
        };
        let count = lines.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(true);
        }
        kept = models.lines(&mut buffer, kept + count);
    }
}

/// Fails if the process has become a program that valgrind does not run.
fn follows(pid: u32) -> Result<()> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let is_other = program.file_name().is_some_and(|name| !name.to_string_lossy().contains("lackey"));
    ensure!(!is_other, "the command becomes {}: give that program itself", quoted(&program));
    Ok(())
}

/// A model for each backing, those that are the same only once.
struct Models<'a> {
    processor: &'a Processor,
    /// For each backing its model.
    by_backing: Vec<usize>,
    models: Vec<(Backing, Model)>,
    ranges: Ranges,
    accesses: u64,
    fetches: u64,
    /// The page that was fetched from last.
    fetched: u64,
    windows: Windows,
    /// Accesses and fetches that went through the models.
    through: (u64, u64),
}

impl<'a> Models<'a> {
    fn new(processor: &'a Processor, backings: &[Backing], pid: u32) -> Self {
        let mut models: Vec<(Backing, Model)> = Vec::new();
        let place = |backing: &Backing| {
            models.iter().position(|(known, _)| known == backing).unwrap_or_else(|| {
                models.push((*backing, Model::new(processor)));
                models.len() - 1
            })
        };
        let by_backing = backings.iter().map(place).collect();
        let ranges = Ranges::new(pid);
        let windows = Windows::default();
        let (accesses, fetches, fetched, through) = (0, 0, u64::MAX, (0, 0));
        Self { processor, by_backing, models, ranges, accesses, fetches, fetched, windows, through }
    }

    /// Takes the lines in the first `filled` bytes, and moves a last one that is not whole to the start. Returns its length.
    fn lines(&mut self, buffer: &mut [u8], filled: usize) -> usize {
        let end = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in buffer[..end].split(|byte| *byte == b'\n') {
            let Some(access) = kind(line) else { continue };
            if !self.goes_through() {
                *if access == Access::Fetch { &mut self.fetches } else { &mut self.accesses } += 1;
                // The first access decides what a range is, wherever it is.
                if let Some((addr, _)) = place(line).filter(|_| access != Access::Fetch) {
                    self.ranges.kind(addr);
                }
            } else if let Some((addr, bytes)) = place(line) {
                self.access(access, addr);
                let last = addr.saturating_add(bytes.saturating_sub(1));
                if last / PAGE != addr / PAGE {
                    self.access(access, last);
                }
            }
        }
        // A line that fills the buffer is none of `lackey`.
        let rest = if end == 0 && filled == buffer.len() { filled..filled } else { end..filled };
        let length = rest.len();
        buffer.copy_within(rest, 0);
        length
    }

    /// Whether the next access goes through the models.
    fn goes_through(&mut self) -> bool {
        match self.windows.due() {
            Due::Nothing { is_open } => is_open,
            Due::Edge => {
                // A gap may have been before it.
                self.fetched = u64::MAX;
                let now = self.now();
                self.windows.edge(&now)
            }
            Due::Count => {
                let now = self.now();
                self.windows.count(&now);
                true
            }
        }
    }

    /// What the models have counted so far.
    fn now(&self) -> Window {
        let (accesses, fetches) = self.through;
        Window { accesses, fetches, counts: self.models.iter().map(|(_, model)| model.counts()).collect() }
    }

    fn access(&mut self, access: Access, addr: u64) {
        if access == Access::Fetch {
            self.fetches += 1;
            self.through.1 += 1;
            // The last used entry of its set stays the last used one.
            if std::mem::replace(&mut self.fetched, addr / PAGE) == addr / PAGE {
                return;
            }
        } else {
            self.accesses += 1;
            self.through.0 += 1;
        }
        let kind = self.ranges.kind(addr);
        let code = if access == Access::Fetch { self.ranges.code(addr) } else { None };
        for (backing, model) in &mut self.models {
            model.access(access, backing.page(addr, kind, code, self.processor));
        }
    }

    fn end(self, cut: bool) -> Run {
        let (accesses, fetches, now) = (self.accesses, self.fetches, self.now());
        let Some(windows) = self.windows.end(&now) else {
            let counts = self.by_backing.iter().map(|at| now.counts[*at]).collect();
            return Run { accesses, fetches, counts, cut, sampled: None };
        };
        let sum = |of: &dyn Fn(&Window) -> u64| windows.iter().map(of).sum::<u64>();
        let (seen, fetched) = (sum(&|window| window.accesses), sum(&|window| window.fetches));
        let all =
            |seen_of: u64, seen: u64, all: u64| (seen_of as f64 * all as f64 / seen.max(1) as f64) as u64;
        let estimated = |at: &usize| Counts {
            second: all(sum(&|window| window.counts[*at].second), seen, accesses),
            walks: all(sum(&|window| window.counts[*at].walks), seen, accesses),
            fetch_second: all(sum(&|window| window.counts[*at].fetch_second), fetched, fetches),
            fetch_walks: all(sum(&|window| window.counts[*at].fetch_walks), fetched, fetches),
        };
        let spread = |at: &usize| {
            let each = windows
                .iter()
                .map(|window| 1000.0 * window.counts[*at].walks as f64 / window.accesses.max(1) as f64);
            each.fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)))
        };
        let sampled = Some(Sampled {
            windows: windows.len(),
            share: (seen + fetched) as f64 / (accesses + fetches).max(1) as f64,
            walks_per_thousand: self.by_backing.iter().map(spread).collect(),
        });
        Run { accesses, fetches, counts: self.by_backing.iter().map(estimated).collect(), cut, sampled }
    }
}

/// The access of a line: ` L 1fff000748,8`, ` S`, ` M` (a load and a store), or `I  `.
fn kind(line: &[u8]) -> Option<Access> {
    match line.get(..3)? {
        b"I  " => Some(Access::Fetch),
        b" L " | b" M " => Some(Access::Load),
        b" S " => Some(Access::Store),
        _ => None,
    }
}

/// The address of such a line, in hex, and its bytes.
fn place(line: &[u8]) -> Option<(u64, u64)> {
    let mut parts = std::str::from_utf8(line.get(3..)?).ok()?.split(',');
    let addr = u64::from_str_radix(parts.next()?, 16).ok()?;
    Some((addr, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
