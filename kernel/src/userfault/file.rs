//! The open file of a handler.

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::handler::Handler;
use super::message::{BYTES, Message};
use crate::errno::Errno;
use crate::files::anonymous;
use crate::files::events::{Events, READABLE, Waiters};
use crate::files::io::Sink;
use crate::files::open::{File, Io, Ioctl, OpenFile};
use crate::memory::manager::Space;
use crate::task::sched;

/// An open handler.
struct UserfaultFile {
    handler: Arc<Handler>,
    /// It was opened with `O_NONBLOCK`, without which `poll` does not work (`userfaultfd(2)`).
    nonblocking: bool,
}

/// Opens a handler of this address space's faults.
pub fn open(space: &Arc<Space>, nonblocking: bool) -> Arc<OpenFile> {
    open_handler(Handler::new(space), nonblocking)
}

fn open_handler(handler: Arc<Handler>, nonblocking: bool) -> Arc<OpenFile> {
    let flags = if nonblocking { abi::O_NONBLOCK } else { 0 };
    let file = UserfaultFile { handler, nonblocking };
    anonymous::open(Box::new(file), "anon_inode:[userfaultfd]", abi::O_RDWR | flags)
}

impl UserfaultFile {
    /// The next message; of a fork, with a descriptor of the running process for the child's handler.
    fn next(&self, nonblocking: bool) -> Result<Message, Errno> {
        let mut message = self.handler.read(nonblocking)?;
        if let Some(child) = message.child.take() {
            let files = sched::current_ref().process.files.lock().clone();
            let descriptor = files.add(open_handler(child, self.nonblocking), true)?;
            message.set_descriptor(descriptor);
        }
        Ok(message)
    }
}

impl Drop for UserfaultFile {
    /// A fork may have the handler still.
    fn drop(&mut self) {
        self.handler.close();
    }
}

impl File for UserfaultFile {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.handler.ready()?;
        if to.left() < BYTES {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while to.left() >= BYTES {
            // Only the first message is waited for.
            match self.next(io.nonblocking || done > 0) {
                Ok(message) => done += to.put(&message.bytes())?,
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
        match self.handler.ready() {
            Ok(_) if self.nonblocking && self.handler.is_readable() => READABLE,
            Ok(_) if self.nonblocking => 0,
            _ => abi::POLLERR,
        }
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.handler.readers)
    }

    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        self.handler.serve(call.memory, call.request, call.argument)
    }
}
