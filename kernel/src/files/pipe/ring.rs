//! The bytes in a pipe, and what uses it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ops::Range;

use super::end::broken_pipe;
use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::io::{Chunk, Sink, Source};
use crate::files::open::Io;
use crate::files::rights::Rights;
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
    /// One reader at a time copies to its program, so that bytes are taken in their order; and one writer.
    reading: SleepLock<()>,
    writing: SleepLock<()>,
    /// What waits for bytes, and what waits for room.
    readers: Arc<Waiters>,
    writers: Arc<Waiters>,
}

struct State {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// How many bytes were taken so far.
    taken: u64,
    /// Files on their way, with the bytes that they came with, counted as `taken` does.
    rights: VecDeque<(Range<u64>, Rights)>,
    readers: usize,
    writers: usize,
    /// How often each end was opened: see [`Pipe::wait_for_writer`].
    reader_opens: u64,
    writer_opens: u64,
}

impl State {
    fn free(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// How many bytes a read may take at once: no more than those that files came with.
    fn readable(&self) -> usize {
        self.rights.front().map_or(self.bytes.len(), |(with, _)| (with.end - self.taken) as usize)
    }

    /// The files that came with bytes that were just taken.
    fn take_rights(&mut self) -> Option<Rights> {
        let taken = self.taken;
        self.rights.pop_front_if(|(with, _)| with.start < taken).map(|(_, rights)| rights)
    }

    /// The bytes behind the first `skipped`, in two pieces.
    fn pieces(&self, skipped: usize) -> (&[u8], &[u8]) {
        let (first, second) = self.bytes.as_slices();
        match skipped.checked_sub(first.len()) {
            Some(skipped) => (&second[skipped.min(second.len())..], &[]),
            None => (&first[skipped..], second),
        }
    }
}

impl Pipe {
    /// An empty pipe that is not open.
    pub fn new() -> Arc<Self> {
        let waiters = Arc::new(Waiters::new());
        Arc::new(Self::with(waiters.clone(), waiters, 0))
    }

    /// A pipe with one open end each for reading and for writing, whose users wait apart.
    pub fn between(reader: &Arc<Waiters>, writer: &Arc<Waiters>) -> Self {
        Self::with(reader.clone(), writer.clone(), 1)
    }

    fn with(readers: Arc<Waiters>, writers: Arc<Waiters>, opens: usize) -> Self {
        let state = State {
            bytes: VecDeque::new(),
            capacity: CAPACITY,
            taken: 0,
            rights: VecDeque::new(),
            readers: opens,
            writers: opens,
            reader_opens: opens as u64,
            writer_opens: opens as u64,
        };
        let (reading, writing) = (SleepLock::new(()), SleepLock::new(()));
        Self { state: Mutex::new(state), reading, writing, readers, writers }
    }

    pub(super) fn waiters(&self) -> &Waiters {
        &self.readers
    }

    /// An end was opened or closed: both sides look again.
    fn notify(&self) {
        self.readers.notify();
        if !Arc::ptr_eq(&self.readers, &self.writers) {
            self.writers.notify();
        }
    }

    /// Opens an end. Returns how many readers and writers had gone before: see [`Self::wait_for_writer`].
    pub(super) fn enter(&self, reads: bool, writes: bool) -> [u64; 2] {
        let mut state = self.state.lock();
        let gone = [state.reader_opens - state.readers as u64, state.writer_opens - state.writers as u64];
        state.readers += usize::from(reads);
        state.writers += usize::from(writes);
        state.reader_opens += u64::from(reads);
        state.writer_opens += u64::from(writes);
        drop(state);
        self.notify();
        gone
    }

    /// An end is closed.
    pub fn leave(&self, reads: bool, writes: bool) {
        let mut state = self.state.lock();
        state.readers -= usize::from(reads);
        state.writers -= usize::from(writes);
        drop(state);
        self.notify();
    }

    /// Drops what it contains once its reader has gone for ever.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        let bytes = core::mem::take(&mut state.bytes);
        state.taken += bytes.len() as u64;
        let rights = core::mem::take(&mut state.rights);
        drop(state);
        // Without the lock: this may close files.
        drop(rights);
    }

    /// Whether it is open for reading.
    pub fn has_readers(&self) -> bool {
        self.state.lock().readers > 0
    }

    /// Waits until there have been more writers than those that had gone when the reader entered: one was there then,
    /// or came since. It may be gone too by now.
    pub(super) fn wait_for_writer(&self, gone: u64) -> Result<(), Errno> {
        self.readers.wait(false, || (self.state.lock().writer_opens > gone).then_some(()))
    }

    /// The same for a writer and readers.
    pub(super) fn wait_for_reader(&self, gone: u64) -> Result<(), Errno> {
        self.writers.wait(false, || (self.state.lock().reader_opens > gone).then_some(()))
    }

    /// Reads what is there, and waits only while nothing is and a writer may come.
    pub(super) fn read(&self, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        loop {
            if let Some(done) = self.read_now(to, true, &mut None)? {
                return Ok(done);
            }
            self.readers.wait(io.nonblocking, || {
                let state = self.state.lock();
                (!state.bytes.is_empty() || state.writers == 0).then_some(())
            })?;
        }
    }

    /// Reads what is there, or only looks at it; 0 at the end, `None` if more may come. Takes also the files that
    /// came with it; a reader that does not want them drops them.
    pub fn read_now(
        &self,
        to: &mut dyn Sink,
        take: bool,
        rights: &mut Option<Rights>,
    ) -> Result<Option<usize>, Errno> {
        let reading = self.reading.lock();
        let (readable, open) = {
            let state = self.state.lock();
            (state.readable(), state.writers > 0)
        };
        if to.left() == 0 || readable == 0 {
            return Ok((to.left() == 0 || !open).then_some(0));
        }
        let done = self.copy_out(to, readable, take)?;
        if take {
            *rights = self.state.lock().take_rights();
        }
        drop(reading);
        if take {
            self.writers.notify();
        }
        Ok(Some(done))
    }

    fn copy_out(&self, to: &mut dyn Sink, readable: usize, take: bool) -> Result<usize, Errno> {
        let most = to.left().min(readable);
        let mut chunk = Chunk::for_bytes(most)?;
        let mut done = 0;
        while done < most {
            let skipped = if take { 0 } else { done };
            let part = self.peek(&mut chunk, skipped, most - done);
            match to.put(&chunk[..part]) {
                Ok(put) => {
                    if take {
                        self.drop_first(put);
                    }
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

    /// Copies bytes behind the first `skipped` without taking them.
    fn peek(&self, chunk: &mut [u8], skipped: usize, most: usize) -> usize {
        let state = self.state.lock();
        let (first, second) = state.pieces(skipped);
        let count = (first.len() + second.len()).min(chunk.len()).min(most);
        let from_first = first.len().min(count);
        chunk[..from_first].copy_from_slice(&first[..from_first]);
        chunk[from_first..count].copy_from_slice(&second[..count - from_first]);
        count
    }

    fn drop_first(&self, count: usize) {
        let mut state = self.state.lock();
        state.bytes.drain(..count);
        state.taken += count as u64;
    }

    /// Writes all bytes, and waits for room. Without a reader the writer gets `SIGPIPE`, also when some were written.
    pub(super) fn write(&self, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let whole = from.left();
        let least = if whole <= ATOMIC_BYTES { whole } else { 1 };
        let mut done = 0;
        while from.left() > 0 {
            // Less than the whole was written at once where the buffer faults: the rest is not waited for.
            let least = if done == 0 { least } else { 1 };
            let (count, end) = self.write_now(from, least, &mut None);
            done += count;
            let step = end.and_then(|()| match count {
                0 => self.writers.wait(io.nonblocking, || self.has_room(least).then_some(())),
                _ => Ok(()),
            });
            if step == Err(Errno::EPIPE) {
                broken_pipe();
            }
            match step {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Whether so many bytes fit, or a write would fail.
    fn has_room(&self, least: usize) -> bool {
        let state = self.state.lock();
        state.free() >= least || state.readers == 0
    }

    /// Writes what fits, but nothing if there is no room for `least` bytes. The files go with the first byte. Returns
    /// how many bytes were written, and the error that ended it behind them: [`Errno::EPIPE`] without a reader,
    /// [`Errno::EFAULT`], [`Errno::ENOMEM`].
    pub fn write_now(
        &self,
        from: &mut dyn Source,
        least: usize,
        rights: &mut Option<Rights>,
    ) -> (usize, Result<(), Errno>) {
        let mut done = 0;
        let end = self.fill(from, least, rights, &mut done);
        if done > 0 {
            self.readers.notify();
        }
        (done, end)
    }

    fn fill(
        &self,
        from: &mut dyn Source,
        least: usize,
        rights: &mut Option<Rights>,
        done: &mut usize,
    ) -> Result<(), Errno> {
        let _writing = self.writing.lock();
        let mut chunk = Chunk::for_bytes(from.left())?;
        // Others may make room meanwhile, but not take it.
        while from.left() > 0 {
            let (most, least) = (from.left().min(chunk.len()), if *done == 0 { least } else { 1 });
            let Some(part) = self.reserve(most, least, rights.is_some())? else { break };
            let count = from.take(&mut chunk[..part])?;
            self.append(&chunk[..count], rights)?;
            *done += count;
        }
        Ok(())
    }

    /// Reserves memory for bytes that the writer takes next, at most `most`: once they are taken from the source, only
    /// the end of the last reader may keep them out of the pipe. `None` if there is no room for `least` bytes.
    fn reserve(&self, most: usize, least: usize, with_rights: bool) -> Result<Option<usize>, Errno> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let part = most.min(state.free());
        if state.free() < least {
            return Ok(None);
        }
        state.bytes.try_reserve(part).map_err(|_| Errno::ENOMEM)?;
        state.rights.try_reserve(usize::from(with_rights)).map_err(|_| Errno::ENOMEM)?;
        Ok(Some(part))
    }

    /// Appends bytes that have memory reserved.
    fn append(&self, bytes: &[u8], rights: &mut Option<Rights>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let at = state.taken + state.bytes.len() as u64;
        if let Some(rights) = rights.take() {
            state.rights.push_back((at..at + bytes.len() as u64, rights));
        }
        state.bytes.extend(bytes);
        Ok(())
    }

    /// What an end that reads, writes, or does both is ready for.
    pub fn poll(&self, reads: bool, writes: bool) -> Events {
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
    pub fn len(&self) -> usize {
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
        // A writer copies as much as fits, and may sleep before it appends that: there must be room for it still.
        let writing = self.writing.lock();
        let mut state = self.state.lock();
        if bytes < state.bytes.len() {
            return Err(Errno::EBUSY);
        }
        state.capacity = bytes;
        drop(state);
        drop(writing);
        self.writers.notify();
        Ok(bytes)
    }
}
