//! An open end of a pipe.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl::FIONREAD;

use super::ring::Pipe;
use crate::errno::Errno;
use crate::files::events::{Events, Waiters};
use crate::files::io::{Sink, Source};
use crate::files::open::{File, Io, Ioctl};
use crate::task::sched;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send;
use quire::addr::VirtAddr;

/// An end that is open for reading, writing or both.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
}

impl PipeEnd {
    /// Opens an end.
    pub fn new(pipe: &Arc<Pipe>, reads: bool, writes: bool) -> Self {
        Self::open(pipe, reads, writes).0
    }

    /// The same, with how many readers and writers had gone before.
    pub(super) fn open(pipe: &Arc<Pipe>, reads: bool, writes: bool) -> (Self, [u64; 2]) {
        let gone = pipe.enter(reads, writes);
        (Self { pipe: pipe.clone(), reads, writes }, gone)
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.pipe.leave(self.reads, self.writes);
    }
}

impl File for PipeEnd {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.pipe.read(to, io)
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        self.pipe.write(from, io)
    }

    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        self.pipe.poll(self.reads, self.writes)
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(self.pipe.waiters())
    }

    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        match call.request {
            FIONREAD => {
                let bytes = self.pipe.len() as u32;
                call.memory.write(VirtAddr(call.argument), &bytes.to_le_bytes())?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn control(&self, command: u32, argument: u64) -> Result<u64, Errno> {
        match command {
            abi::F_GETPIPE_SZ => Ok(self.pipe.capacity() as u64),
            abi::F_SETPIPE_SZ => Ok(self.pipe.set_capacity(argument as u32 as usize)? as u64),
            _ => Err(Errno::EINVAL),
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// The running task wrote to a pipe or socket without a reader: it gets `SIGPIPE`.
pub fn broken_pipe() {
    send::to_task(&sched::current(), SigInfo::kernel(abi::SIGPIPE));
}
