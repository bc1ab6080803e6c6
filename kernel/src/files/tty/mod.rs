//! The terminal on the first serial port: line discipline, job control, and its requests (`termios(3)`,
//! `ioctl_tty(2)`).
//!
//! The device behind the line goes to the first column at each line feed by itself, so ONLCR is off at first:
//! output that is not shown but stored has plain line ends.

mod job_control;
mod line;
mod requests;
mod settings;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as abi;

use self::line::{Input, Line};
use self::settings::Settings;
use super::events::{Events, READABLE, WRITABLE, Waiters};
use super::io::{Chunk, Sink, Source};
use super::open::{File, Io, Ioctl, Opening};
use crate::device::serial::Serial;
use crate::errno::Errno;
use crate::sync::IrqLock;
use crate::task::{sched, table};
use crate::time;

/// How often a sleeping reader looks at a serial port that does not interrupt.
const POLL_NS: u64 = 10_000_000;

/// The terminal.
struct Terminal {
    state: IrqLock<State>,
    waiters: Waiters,
    /// The process group that signals go to; 0 for none.
    foreground: AtomicU32,
    /// The session that it controls; 0 for none.
    session: AtomicU32,
}

struct State {
    settings: Settings,
    line: Line,
}

static TERMINAL: Terminal = Terminal {
    state: IrqLock::new(State { settings: Settings::FIRST, line: Line::new() }),
    waiters: Waiters::new(),
    foreground: AtomicU32::new(table::INIT),
    session: AtomicU32::new(table::INIT),
};

/// Takes the bytes that the serial port has received. Also called by its interrupt handler.
pub fn receive() {
    let mut signals = [0u32; 8];
    let mut count = 0;
    let mut changed = false;
    while let Some(byte) = Serial.receive() {
        let mut state = TERMINAL.state.lock();
        let State { settings, line } = &mut *state;
        match line.input(byte, settings) {
            Input::Nothing => {}
            Input::Ready => changed = true,
            Input::Signal(signal) => {
                changed = true;
                if let Some(slot) = signals.get_mut(count) {
                    *slot = signal;
                    count += 1;
                }
            }
        }
    }
    for &signal in &signals[..count] {
        job_control::signal_foreground(signal);
    }
    if changed {
        TERMINAL.waiters.notify();
    }
}

/// An open terminal.
pub struct TtyFile;

impl TtyFile {
    /// Opens it. It becomes the controlling terminal of a session that has none, if its leader opens it.
    pub fn open(opening: &Opening<'_>) -> Self {
        if opening.flags & abi::O_NOCTTY == 0 {
            job_control::become_controlling(false).ok();
        }
        Self
    }

    fn wait_for_input(io: Io, wanted: usize) -> Result<(), Errno> {
        let started = time::now_ns();
        let mut seen = (0, started);
        loop {
            let ready = || {
                receive();
                let state = TERMINAL.state.lock();
                let length = state.line.available(&state.settings);
                if length != seen.0 {
                    seen = (length, time::now_ns());
                }
                state.line.is_readable(&state.settings, wanted, time::now_ns() - seen.1).then_some(())
            };
            if io.nonblocking {
                return TERMINAL.waiters.wait(true, ready);
            }
            let deadline = time::now_ns() + POLL_NS;
            if TERMINAL.waiters.queue().wait_until_deadline(Some(deadline), ready)?.is_some() {
                return Ok(());
            }
        }
    }
}

/// Opens `/dev/tty`: the terminal that controls the running process.
///
/// # Errors
/// [`Errno::ENXIO`] if there is none.
pub fn open_controlling() -> Result<TtyFile, Errno> {
    job_control::controls(&sched::current().process).then_some(TtyFile).ok_or(Errno::ENXIO)
}

impl File for TtyFile {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        job_control::check_read()?;
        let wanted = to.left();
        if wanted == 0 {
            return Ok(0);
        }
        Self::wait_for_input(io, wanted)?;
        let mut chunk = Chunk::for_bytes(wanted.min(line::MOST_BYTES))?;
        let count = {
            let mut state = TERMINAL.state.lock();
            let State { settings, line } = &mut *state;
            line.take(&mut chunk, settings)
        };
        to.put(&chunk[..count])
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        job_control::check_write(TERMINAL.state.lock().settings.has_local(abi::TOSTOP))?;
        let mut chunk = Chunk::for_bytes(from.left())?;
        let mut done = 0;
        while from.left() > 0 {
            let part = chunk.len().min(from.left());
            match from.take(&mut chunk[..part]) {
                Ok(count) => {
                    // Not under the lock: the port is slow.
                    let settings = TERMINAL.state.lock().settings;
                    settings.send(&chunk[..count]);
                    done += count;
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        receive();
        let state = TERMINAL.state.lock();
        let readable = state.line.is_readable(&state.settings, 1, u64::MAX)
            && state.line.available(&state.settings) > 0
            || state.line.has_end();
        WRITABLE | if readable { READABLE } else { 0 }
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&TERMINAL.waiters)
    }

    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        requests::serve(call)
    }

    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// A process group that a session's leader leaves behind loses the terminal.
pub fn session_ended(session: u32) {
    if TERMINAL.session.compare_exchange(session, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        TERMINAL.foreground.store(0, Ordering::Release);
    }
}

/// The terminal, for `/dev/console` before any program runs.
pub fn console() -> Arc<dyn File> {
    Arc::new(TtyFile)
}
