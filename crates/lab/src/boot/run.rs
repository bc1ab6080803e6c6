//! One run of QEMU, from its start to its end.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as NixSignal;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::BootError;
use super::log::Log;
use super::terminal::{self, Raw};
use crate::record::is_left_ignored;

/// The emulator's name.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// A kernel that logs nothing gets its input after this time.
const QUIET_START: Duration = Duration::from_secs(1);

/// What ends a run.
#[derive(Debug)]
enum Event {
    /// QEMU has closed its log, or its output has been shown to its end.
    Ended,
    /// The command got this signal.
    Signal(i32),
    /// Standard output takes nothing more.
    Unwritten(io::Error),
}

/// How the run was stopped, if it did not end by itself.
#[derive(Debug)]
pub(super) enum Stopped {
    TimeOut,
    Signal(i32),
    Unwritten(io::Error),
}

/// What is left of a run.
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    pub(super) log: Log,
    pub(super) stopped: Option<Stopped>,
}

/// How to run.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    /// Names the addresses of backtraces.
    pub(super) kernel: &'a Path,
    pub(super) verbose: bool,
    pub(super) timeout: Option<Duration>,
}

/// Runs QEMU until it ends or is stopped. `arguments` are made for the path of the log.
pub(super) fn run(
    settings: Settings<'_>,
    arguments: impl FnOnce(&str) -> Vec<OsString>,
) -> Result<Ran, BootError> {
    let (log, for_qemu) = io::pipe().map_err(BootError::system("making a pipe"))?;
    // QEMU opens the pipe by its number.
    fcntl_setfd(&for_qemu, FdFlags::empty()).map_err(BootError::system("passing a pipe on"))?;
    let path = format!("/proc/self/fd/{}", for_qemu.as_raw_fd());
    let (events, arrived) = mpsc::channel();
    let signals = watch_signals(events.clone())?;
    let _raw = Raw::enter().map_err(BootError::system("changing the terminal"))?;
    let child = start(arguments(&path))?;
    drop(for_qemu);
    let ran = follow(settings, child, log, &events, &arrived);
    signals.close();
    ran
}

/// Starts QEMU, between two pipes. It ends when this thread does, so that no guest is left behind. It has a process
/// group of its own: what a terminal sends to its group is this command's to judge.
fn start(arguments: Vec<OsString>) -> Result<Child, BootError> {
    let mut command = Command::new(QEMU);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: C2: the closure makes one system call; it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from));
    }
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => BootError::NoQemu { program: QEMU },
        _ => BootError::System { what: "starting QEMU", source: error },
    })
}

/// Passes signals on as events until the handle is closed. A hangup that `nohup` ignores stays ignored.
fn watch_signals(events: Sender<Event>) -> Result<signal_hook::iterator::Handle, BootError> {
    let hangup = (!is_left_ignored(NixSignal::SIGHUP)).then_some(SIGHUP);
    let watched = [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(hangup);
    let mut signals = Signals::new(watched).map_err(BootError::system("watching signals"))?;
    let handle = signals.handle();
    thread::spawn(move || signals.forever().for_each(|signal| _ = events.send(Event::Signal(signal))));
    Ok(handle)
}

fn follow(
    settings: Settings<'_>,
    mut child: Child,
    log: PipeReader,
    events: &Sender<Event>,
    arrived: &Receiver<Event>,
) -> Result<Ran, BootError> {
    let (ready, is_ready) = mpsc::channel();
    let streams = child.stdin.take().zip(child.stdout.take());
    let (input, output) =
        streams.ok_or_else(|| BootError::system("talking to QEMU")(io::ErrorKind::BrokenPipe))?;
    // This thread waits for a key when the run has ended, and ends with the process.
    thread::spawn(move || send_input(input, &is_ready));
    let (shown, is_up) = (events.clone(), ready.clone());
    // No thread joins this one: it may wait for ever for a reader of standard output that takes nothing.
    thread::spawn(move || {
        let outcome = show_output(output, &is_up).map_or_else(Event::Unwritten, |()| Event::Ended);
        let _ = shown.send(outcome);
    });
    thread::scope(|scope| {
        let read = scope.spawn(|| {
            let log = Log::read(log, settings.kernel, settings.verbose, || _ = ready.send(()));
            let _ = events.send(Event::Ended);
            log
        });
        let stopped = wait(settings.timeout, arrived);
        if stopped.is_some() {
            // An error says that it has ended already.
            let _ = child.kill();
        }
        let status = child.wait().map_err(BootError::system("waiting for QEMU"))?;
        let log = read.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(Ran { status, log, stopped })
    })
}

/// Waits until QEMU has ended, log and output, or must end.
fn wait(timeout: Option<Duration>, arrived: &Receiver<Event>) -> Option<Stopped> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let next = || match deadline {
        Some(deadline) => arrived.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        None => arrived.recv().map_err(RecvTimeoutError::from),
    };
    for _stream in 0..2 {
        match next() {
            Ok(Event::Ended) => {}
            Ok(Event::Signal(signal)) => return Some(Stopped::Signal(signal)),
            Ok(Event::Unwritten(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Some(Stopped::Signal(SIGPIPE));
            }
            Ok(Event::Unwritten(error)) => return Some(Stopped::Unwritten(error)),
            Err(RecvTimeoutError::Timeout) => return Some(Stopped::TimeOut),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Sends standard input, but not before the kernel has set up its serial port: that empties the port's queue.
fn send_input(input: ChildStdin, is_ready: &Receiver<()>) {
    let _ = is_ready.recv_timeout(QUIET_START);
    terminal::send_input(input);
}

/// Shows what the guest writes, as it comes.
fn show_output(mut from: ChildStdout, ready: &Sender<()>) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    let mut out = io::stdout().lock();
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(()),
        };
        let _ = ready.send(());
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}
