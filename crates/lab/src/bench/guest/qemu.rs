//! Starts one machine and reads its serial line.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::output::{Line, Report};
use super::rows::Machine;
use super::tools::QEMU;
use crate::output::say;

/// A run ends after this time, whatever it does. A machine that is only started has seconds of work: Debian's kernel was
/// once seen to hang at its start.
fn limit(machine: Machine) -> Duration {
    let minutes = if machine.only_starts() { 2 } else { 15 };
    Duration::from_secs(60 * minutes)
}

/// QEMU's status when Quire's kernel finds an error after the program's end; Linux switches the machine off, which is 0.
const CHECKS_FAILED: i32 = 0xff;

/// Memory of the machine that is only started and ended.
pub const BOOT_MIB: u32 = 1024;

/// What a kernel is started with.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The archive of files.
    pub initramfs: PathBuf,
    /// The kernel's command line, with the program's arguments.
    pub command_line: String,
}

/// How a machine ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// What the program reported.
    pub report: Report,
    /// Time from the start of QEMU to the program's first line.
    pub first_line: Option<Duration>,
    /// Why the machine ended before the program was done.
    pub broken: Option<String>,
}

/// The options that are the same for every kernel.
///
/// What a start costs is measured on the machine `microvm`: of the time until a program runs on `pc`, its firmware takes
/// more than a small kernel does. `pc` is what counts and threads have been measured on from the start.
///
/// Counted runs repeat byte by byte: no clock of this machine is visible, and instructions whose results differ from run to
/// run are hidden. `erms` is hidden since an iteration of `rep` counts as one instruction, whether it stores 1 byte or 8.
fn options(machine: Machine) -> Vec<String> {
    let (cpus, memory) = match machine {
        Machine::Counts => (1, 4096),
        Machine::Wall => (4, 4096),
        Machine::Boot | Machine::BootWall | Machine::BootLibc => (1, BOOT_MIB),
    };
    let model = if machine.only_starts() { "microvm" } else { "pc" };
    let mut words = vec!["-M".to_owned(), model.to_owned()];
    words.extend(
        "-cpu max,-rdrand,-rdseed,-erms -seed 1 -nodefaults -display none -no-reboot \
         -serial stdio -monitor none -device isa-debug-exit,iobase=0xf4,iosize=4"
            .split_whitespace()
            .map(str::to_owned),
    );
    words.extend(["-m".to_owned(), format!("{memory}M"), "-smp".to_owned(), cpus.to_string()]);
    let time = if machine.counts() {
        ["-icount", "shift=0,sleep=off", "-rtc", "base=2020-01-01,clock=vm"]
    } else {
        ["-accel", "tcg,thread=multi", "-rtc", "base=2020-01-01"]
    };
    words.extend(time.map(str::to_owned));
    words
}

/// Runs `boot` to its end. `show` is told each group that begins.
///
/// # Errors
/// QEMU cannot be started. A machine that fails is no error.
pub fn run(machine: Machine, boot: &Boot, show: &mut dyn FnMut(&str)) -> Result<Ended> {
    let mut command = QEMU.command()?;
    command.args(options(machine)).arg("-kernel").arg(&boot.kernel).arg("-initrd").arg(&boot.initramfs);
    command.arg("-append").arg(&boot.command_line);
    let started = Instant::now();
    let limit = limit(machine);
    let running = Running::start(&mut command)?;
    let mut ended = Ended::default();
    loop {
        let left = limit.saturating_sub(started.elapsed());
        match running.lines.recv_timeout(left) {
            Ok(line) => {
                ended.report.line(&line);
                if ended.first_line.is_none() && Line::of(&line).is_some() {
                    ended.first_line = Some(started.elapsed());
                }
                if let Some(group) = &ended.report.group {
                    show(group);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                ended.broken = Some(format!("no end within {} minutes", limit.as_secs() / 60));
                break;
            }
        }
    }
    let status = running.end()?;
    if ended.report.done && status.code() == Some(CHECKS_FAILED) {
        say("quire: the kernel's checks after the program's end failed: `kernel/test` says more");
    }
    if ended.broken.is_none() && !ended.report.done {
        let last = ended.report.other.iter().rev().find(|line| !line.is_empty());
        let last = last.map(|line| format!(", after: {line}")).unwrap_or_default();
        ended.broken = Some(format!("the machine ended ({status}){last}"));
    }
    Ok(ended)
}

/// A machine that runs; it ends with this value.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("cannot start QEMU")?;
        let serial = child.stdout.take().context("QEMU has no output")?;
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            // A kernel may write bytes that are no text.
            for line in BufReader::new(serial).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines })
    }

    fn end(mut self) -> Result<ExitStatus> {
        if self.child.try_wait()?.is_none() {
            // The pipe is closed already, or the time is over.
            thread::sleep(Duration::from_millis(50));
            if self.child.try_wait()?.is_none() {
                self.child.kill()?;
            }
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first line of what QEMU says about its version.
///
/// # Errors
/// QEMU is missing.
pub fn version() -> Result<String> {
    let said = super::tools::output(QEMU.command()?.arg("--version"))?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}
