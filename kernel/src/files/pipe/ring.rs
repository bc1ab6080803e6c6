//! The bytes in a pipe, and what uses it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;


use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::io::{Chunk, Sink, Source};
use crate::files::open::Io;
use crate::sync::Mutex;
use crate::task::sleep_lock::SleepLock;
use linux_raw_sys::general as abi;

/// Writes of up to so many bytes are not torn apart (`PIPE_BUF`).
pub const ATOMIC_BYTES: usize = 4096;
/// How many bytes a pipe holds at first, as in Linux.
const CAPACITY: usize = 64 << 10;
/// The most that it can be made to hold (`fs.pipe-max-size`).
const MOST_BYTES: usize = 1 << 20;

/// A pipe.
pub struct Pipe {
    state: Mutex<State>,
    /// One reader at a time copies to its program, so that bytes are taken in their order.
    reading: SleepLock<()>,
    waiters: Waiters,
}

struct State {
    bytes: VecDeque<u8>,
    capacity: usize,
    readers: usize,
    writers: usize,
    /// How often each end was opened: an opener of the other end waits for a change.
    reader_opens: u64,
    writer_opens: u64,
}

impl State {
    fn free(&self) -> usize {
        self.capacity - self.bytes.len()
    }
}

impl Pipe {
    /// An empty pipe that is not open.
    pub fn new() -> Arc<Self> {
        let state = State {
            bytes: VecDeque::new(),
            capacity: CAPACITY,
            readers: 0,
            writers: 0,
            reader_opens: 0,
            writer_opens: 0,
        };
        Arc::new(Self { state: Mutex::new(state), reading: SleepLock::new(()), waiters: Waiters::new() })
    }

    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub(super) fn enter(&self, reads: bool, writes: bool) {
        let mut state = self.state.lock();
        state.readers += usize::from(reads);
        state.writers += usize::from(writes);
        state.reader_opens += u64::from(reads);
        state.writer_opens += u64::from(writes);
        drop(state);
        self.waiters.notify();
    }

    pub(super) fn leave(&self, reads: bool, writes: bool) {
        let mut state = self.state.lock();
        state.readers -= usize::from(reads);
        state.writers -= usize::from(writes);
        drop(state);
        self.waiters.notify();
    }

    /// Whether it is open for reading.
    pub fn has_readers(&self) -> bool {
        self.state.lock().readers > 0
    }

    pub(super) fn wait_for_writer(&self) -> Result<(), Errno> {
        let before = self.state.lock().writer_opens;
        self.waiters.wait(false, || {
            let state = self.state.lock();
            (state.writers > 0 || state.writer_opens != before).then_some(())
        })
    }

    pub(super) fn wait_for_reader(&self) -> Result<(), Errno> {
        let before = self.state.lock().reader_opens;
        self.waiters.wait(false, || {
            let state = self.state.lock();
            (state.readers > 0 || state.reader_opens != before).then_some(())
        })
    }

    /// Reads what is there, and waits only while nothing is and a writer may come.
    pub(super) fn read(&self, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        if to.left() == 0 {
            return Ok(0);
        }
        loop {
            let open = self.waiters.wait(io.nonblocking, || {
                let state = self.state.lock();
                (!state.bytes.is_empty() || state.writers == 0).then_some(state.writers > 0)
            })?;
            let reading = self.reading.lock();
            let done = self.copy_out(to)?;
            drop(reading);
            if done > 0 {
                self.waiters.notify();
                return Ok(done);
            }
            // Another reader was faster, or there is no writer.
            if !open {
                return Ok(0);
            }
        }
    }

    fn copy_out(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let mut chunk = Chunk::for_bytes(to.left().min(self.state.lock().bytes.len()))?;
        let mut done = 0;
        while to.left() > 0 {
            let part = self.peek(&mut chunk, to.left());
            if part == 0 {
                break;
            }
            match to.put(&chunk[..part]) {
                Ok(put) => {
                    self.state.lock().bytes.drain(..put);
                    done += put;
                    if put < part {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Copies the first bytes without taking them.
    fn peek(&self, chunk: &mut [u8], most: usize) -> usize {
        let state = self.state.lock();
        let count = state.bytes.len().min(chunk.len()).min(most);
        let (first, second) = state.bytes.as_slices();
        let from_first = first.len().min(count);
        chunk[..from_first].copy_from_slice(&first[..from_first]);
        chunk[from_first..count].copy_from_slice(&second[..count - from_first]);
        count
    }

    /// Writes all bytes, and waits for room.
    pub(super) fn write(&self, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let whole = from.left();
        let mut chunk = Chunk::for_bytes(whole)?;
        let (mut done, mut taken, mut sent) = (0, 0, 0);
        while done < whole {
            if sent == taken {
                let part = chunk.len().min(whole - done);
                match from.take(&mut chunk[..part]) {
                    Ok(count) => (taken, sent) = (count, 0),
                    Err(_) if done > 0 => break,
                    Err(errno) => return Err(errno),
                }
            }
            let least = if whole <= ATOMIC_BYTES { taken } else { 1 };
            match self.append(&chunk[sent..taken], least, io) {
                Ok(count) => (sent, done) = (sent + count, done + count),
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Appends what fits of these bytes, once there is room for `least` of them.
    fn append(&self, bytes: &[u8], least: usize, io: Io) -> Result<usize, Errno> {
        let appended = self.waiters.wait(io.nonblocking, || {
            let mut state = self.state.lock();
            if state.readers == 0 {
                return Some(Err(Errno::EPIPE));
            }
            if state.free() < least {
                return None;
            }
            let count = bytes.len().min(state.free());
            if state.bytes.try_reserve(count).is_err() {
                return Some(Err(Errno::ENOMEM));
            }
            state.bytes.extend(&bytes[..count]);
            Some(Ok(count))
        })?;
        self.waiters.notify();
        appended
    }

    pub(super) fn poll(&self, reads: bool, writes: bool) -> Events {
        let state = self.state.lock();
        let mut events = 0;
        if reads {
            if !state.bytes.is_empty() {
                events |= READABLE;
            }
            if state.writers == 0 && state.writer_opens > 0 {
                events |= abi::POLLHUP;
            }
        }
        if writes {
            if state.free() >= ATOMIC_BYTES.min(state.capacity) {
                events |= WRITABLE;
            }
            if state.readers == 0 {
                events |= abi::POLLERR;
            }
        }
        events
    }

    /// How many bytes are in it.
    pub(super) fn len(&self) -> usize {
        self.state.lock().bytes.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Changes how many bytes it holds, to a power of two.
    pub(super) fn set_capacity(&self, bytes: usize) -> Result<usize, Errno> {
        if bytes > MOST_BYTES {
            return Err(Errno::EPERM);
        }
        let bytes = bytes.max(ATOMIC_BYTES).next_power_of_two();
        let mut state = self.state.lock();
        if bytes < state.bytes.len() {
            return Err(Errno::EBUSY);
        }
        state.capacity = bytes;
        drop(state);
        self.waiters.notify();
        Ok(bytes)
    }
}
