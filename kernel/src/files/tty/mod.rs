//! The terminal on the first serial port: line discipline, job control, and its requests (`termios(3)`,
//! `ioctl_tty(2)`).
//!
//! The device behind the line goes to the first column at each line feed by itself, so ONLCR is off at first:
//! output that is not shown but stored has plain line ends.

mod job_control;
mod line;
mod requests;
mod settings;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linux_raw_sys::general as abi;

use self::line::{Input, Line};
use self::settings::Settings;
use super::events::{Events, READABLE, WRITABLE, Waiters};
use super::io::{Chunk, Sink, Source};
use super::open::{File, Io, Ioctl, Opening};
use crate::boot::command;
use crate::device::serial::Serial;
use crate::errno::Errno;
use crate::service::EVENTS;
use crate::sync::IrqLock;
use crate::task::signal::send;
use crate::task::{sched, table};
use crate::time;

/// How often the task looks at a serial port that does not interrupt.
const POLL_NS: u64 = 10_000_000;

/// So many bytes are written between two looks at signals and the time slice, as in Linux.
const WRITTEN_AT_ONCE: usize = 2048;

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

/// Whether the serial port interrupts.
static INTERRUPTS: AtomicBool = AtomicBool::new(false);

/// Connects the serial port's interrupt, and learns how large the user's terminal is.
pub fn connect() {
    if let Some([rows, columns]) = command::terminal_size() {
        TERMINAL.state.lock().settings.window = [rows, columns, 0, 0];
    }
    INTERRUPTS.store(Serial.on_receive(arrived), Ordering::Relaxed);
}

/// When a serial port that does not interrupt is to be looked at again.
pub fn next_look() -> Option<u64> {
    let polls = !INTERRUPTS.load(Ordering::Relaxed);
    polls.then(|| time::now_ns() + POLL_NS)
}

/// Takes a byte that has arrived, for [`receive`], unless a reader must make room first.
pub fn next_byte() -> Option<u8> {
    arrived();
    if TERMINAL.is_full() { None } else { ARRIVED.lock().pop() }
}

impl Terminal {
    /// Whether a byte more would be lost, although a reader makes room when it comes.
    fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.line.is_full(&state.settings)
    }
}

/// Bytes that have arrived and were not looked at.
struct Arrived {
    bytes: [u8; 256],
    first: usize,
    count: usize,
}

impl Arrived {
    fn push(&mut self, byte: u8) {
        // Bytes that come faster than they are read are lost, as on a real line.
        if self.count < self.bytes.len() {
            self.bytes[(self.first + self.count) % self.bytes.len()] = byte;
            self.count += 1;
        }
    }

    fn pop(&mut self) -> Option<u8> {
        let byte = self.bytes[self.first];
        self.count = self.count.checked_sub(1)?;
        self.first = (self.first + 1) % self.bytes.len();
        Some(byte)
    }
}

static ARRIVED: IrqLock<Arrived> = IrqLock::new(Arrived { bytes: [0; 256], first: 0, count: 0 });

/// Takes the bytes that the serial port has received. Runs in its interrupt handler, too.
fn arrived() {
    let mut arrived = ARRIVED.lock();
    let before = arrived.count;
    // What does not fit stays in the port until the task has made room.
    while arrived.count < arrived.bytes.len()
        && let Some(byte) = Serial.receive()
    {
        arrived.push(byte);
    }
    let more = arrived.count > before;
    drop(arrived);
    if more {
        EVENTS.wake_all();
    }
}

/// Passes a byte to the line discipline. Signals cannot be sent in an interrupt handler, so a task calls it.
pub fn receive(byte: u8) {
    let mut state = TERMINAL.state.lock();
    let State { settings, line } = &mut *state;
    let input = line.input(byte, settings);
    drop(state);
    match input {
        Input::Nothing => return,
        Input::Ready => {}
        Input::Signal(signal) => job_control::signal_foreground(signal),
    }
    TERMINAL.waiters.notify();
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

    /// Waits for input and takes it. Another reader may have taken what this one was woken for.
    fn take_input(io: Io, wanted: usize, to: &mut [u8]) -> Result<usize, Errno> {
        let mut seen = (0, time::now_ns());
        loop {
            let take = || {
                let mut state = TERMINAL.state.lock();
                let State { settings, line } = &mut *state;
                let length = line.available(settings);
                if length != seen.0 {
                    seen = (length, time::now_ns());
                }
                // Without waiting it takes what there is, however little.
                let least = if io.nonblocking { 1 } else { settings.least().min(wanted) };
                let is_readable = line.is_readable(settings, least, time::now_ns() - seen.1);
                let was_full = line.is_full(settings);
                let count = is_readable.then(|| line.take(to, settings))?;
                drop(state);
                if was_full {
                    EVENTS.wake_all();
                }
                Some(count)
            };
            if io.nonblocking {
                return TERMINAL.waiters.wait(true, take);
            }
            // Between bytes only as long as the settings say; they may change while the task sleeps.
            let patience = TERMINAL.state.lock().settings.reading_patience_ns();
            let deadline = patience.map(|ns| time::now_ns() + ns);
            if let Some(count) = TERMINAL.waiters.queue().wait_until_deadline(deadline, take)? {
                return Ok(count);
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
        let mut chunk = Chunk::for_bytes(wanted.min(line::MOST_BYTES))?;
        let count = Self::take_input(io, wanted, &mut chunk)?;
        to.put(&chunk[..count])
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        job_control::check_write(TERMINAL.state.lock().settings.has_local(abi::TOSTOP))?;
        let mut chunk = Chunk::for_bytes(from.left().min(WRITTEN_AT_ONCE))?;
        let mut done = 0;
        while from.left() > 0 {
            let part = chunk.len().min(from.left());
            match from.take(&mut chunk[..part]) {
                Ok(count) => {
                    // Not under the lock: the port is slow.
                    let settings = TERMINAL.state.lock().settings;
                    settings.send(&chunk[..count]);
                    done += count;
                    if sched::call_shall_end() {
                        break;
                    }
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
        let state = TERMINAL.state.lock();
        let readable = state.line.is_worth_a_read(&state.settings);
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

/// A session whose leader ends or gives the terminal up loses it. The process group in the foreground is told.
pub fn session_ended(session: u32) {
    if TERMINAL.session.compare_exchange(session, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        send::hang_up(TERMINAL.foreground.swap(0, Ordering::AcqRel));
    }
}
