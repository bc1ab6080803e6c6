//! A counter to wait for: what `eventfd(2)` opens.

use super::events::{Events, READABLE, WRITABLE, Waiters};
use super::io::{Sink, Source};
use super::open::{File, Io};
use crate::errno::Errno;
use crate::sync::Mutex;

/// The largest value.
const MOST: u64 = u64::MAX - 1;
const BYTES: usize = size_of::<u64>();

/// A counter.
pub struct EventCounter {
    value: Mutex<u64>,
    semaphore: bool,
    waiters: Waiters,
}

impl EventCounter {
    /// A counter with this value. As a semaphore it is read one by one.
    pub fn new(value: u32, semaphore: bool) -> Self {
        Self { value: Mutex::new(value.into()), semaphore, waiters: Waiters::new() }
    }
}

impl File for EventCounter {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        if to.left() < BYTES {
            return Err(Errno::EINVAL);
        }
        let value = self.waiters.wait(io.nonblocking, || {
            let mut value = self.value.lock();
            let taken = if self.semaphore { (*value).min(1) } else { *value };
            *value -= taken;
            (taken > 0).then_some(taken)
        })?;
        self.waiters.notify();
        to.put(&value.to_le_bytes())
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let mut bytes = [0; BYTES];
        if from.left() < BYTES {
            return Err(Errno::EINVAL);
        }
        if from.take(&mut bytes)? < BYTES {
            return Err(Errno::EFAULT);
        }
        let added = u64::from_le_bytes(bytes);
        if added > MOST {
            return Err(Errno::EINVAL);
        }
        self.waiters.wait(io.nonblocking, || {
            let mut value = self.value.lock();
            *value = value.checked_add(added).filter(|sum| *sum <= MOST)?;
            Some(())
        })?;
        self.waiters.notify();
        Ok(BYTES)
    }

    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        let value = *self.value.lock();
        (if value > 0 { READABLE } else { 0 }) | (if value < MOST { WRITABLE } else { 0 })
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.waiters)
    }
}
