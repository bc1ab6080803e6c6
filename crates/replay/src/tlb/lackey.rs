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
use crate::output::quoted;

const VALGRIND: &str = "valgrind";
const PAGE: u64 = 4096;

/// What a program's accesses have missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Loads and stores, and instruction fetches. One across the end of a page counts twice.
    pub(crate) accesses: u64,
    pub(crate) fetches: u64,
    /// For each backing.
    pub(crate) counts: Vec<Counts>,
    /// Whether the program was ended before its end.
    pub(crate) cut: bool,
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
        Self { processor, by_backing, models, ranges, accesses: 0, fetches: 0, fetched: u64::MAX }
    }

    /// Takes the lines in the first `filled` bytes, and moves a last one that is not whole to the start. Returns its length.
    fn lines(&mut self, buffer: &mut [u8], filled: usize) -> usize {
        let end = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in buffer[..end].split(|byte| *byte == b'\n') {
            if let Some((access, addr, bytes)) = parse(line) {
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

    fn access(&mut self, access: Access, addr: u64) {
        if access == Access::Fetch {
            self.fetches += 1;
            // The last used entry of its set stays the last used one.
            if std::mem::replace(&mut self.fetched, addr / PAGE) == addr / PAGE {
                return;
            }
        } else {
            self.accesses += 1;
        }
        let kind = self.ranges.kind(addr);
        let code = if access == Access::Fetch { self.ranges.code(addr) } else { None };
        for (backing, model) in &mut self.models {
            model.access(access, backing.page(addr, kind, code, self.processor));
        }
    }

    fn end(self, cut: bool) -> Run {
        let counts = self.by_backing.iter().map(|at| self.models[*at].1.counts()).collect();
        Run { accesses: self.accesses, fetches: self.fetches, counts, cut }
    }
}

/// The access of a line: ` L 1fff000748,8`, ` S`, ` M` (a load and a store), or `I  `; its address in hex, its bytes.
fn parse(line: &[u8]) -> Option<(Access, u64, u64)> {
    let access = match line.get(..3)? {
        b"I  " => Access::Fetch,
        b" L " | b" M " => Access::Load,
        b" S " => Access::Store,
        _ => return None,
    };
    let mut parts = std::str::from_utf8(&line[3..]).ok()?.split(',');
    let addr = u64::from_str_radix(parts.next()?, 16).ok()?;
    Some((access, addr, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
