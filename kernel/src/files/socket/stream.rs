//! Sending and receiving on a connection.

use super::connection::{Connection, READ, WRITE};
use super::direction::Direction;
use super::packets::Beside;
use crate::errno::Errno;
use crate::files::io::{Sink, Source};
use crate::files::rights::Rights;

/// How bytes are sent or received.
#[derive(Clone, Copy, Default, Debug)]
pub struct Transfer {
    /// It fails instead of waiting.
    pub nonblocking: bool,
    /// When it gives up waiting.
    pub deadline: Option<u64>,
    /// It waits until the buffer is full (`MSG_WAITALL`).
    pub all: bool,
    /// It only looks (`MSG_PEEK`).
    pub peek: bool,
}

impl Connection {
    /// Receives bytes, or a packet; 0 at the end. What comes with them is put `beside` them.
    ///
    /// # Errors
    /// [`Errno::ECONNRESET`] and others that the connection got; [`Errno::EAGAIN`], [`Errno::EINTR`],
    /// [`Errno::EFAULT`].
    pub fn receive(&self, to: &mut dyn Sink, how: Transfer, beside: &mut Beside) -> Result<usize, Errno> {
        let ready = || self.input().poll(true, false) != 0 || self.has_shut(READ);
        self.repeat(how, ready, |moved| {
            let Some(count) = self.receive_now(to, how, beside, *moved)? else { return Ok(false) };
            *moved += count;
            let is_whole = beside.packet.is_some() || beside.rights.is_some();
            Ok(count == 0 || to.left() == 0 || !how.all || how.peek || is_whole)
        })
    }

    /// Receives what is there; `None` if more may come. The call has `moved` bytes already.
    fn receive_now(
        &self,
        to: &mut dyn Sink,
        how: Transfer,
        beside: &mut Beside,
        moved: usize,
    ) -> Result<Option<usize>, Errno> {
        let (received, is_end) = match self.input() {
            Direction::Bytes(pipe) => {
                let count = pipe.read_now(to, !how.peek, &mut beside.rights)?;
                (count, count == Some(0) && to.left() > 0)
            }
            Direction::Packets(packets) => {
                let count = packets.receive(to, !how.peek, beside)?;
                (count, beside.packet.is_none())
            }
        };
        match received {
            Some(count) if !is_end => Ok(Some(count)),
            // An error comes after the bytes that came before it, and instead of the end.
            end => match self.next_error(moved) {
                Some(errno) => Err(errno),
                None if self.has_shut(READ) => Ok(Some(0)),
                None => Ok(end),
            },
        }
    }

    /// Sends bytes, all of them unless it must not wait.
    ///
    /// # Errors
    /// [`Errno::EPIPE`] when nothing reads them, and as [`Self::receive`].
    pub fn send(
        &self,
        from: &mut dyn Source,
        how: Transfer,
        rights: &mut Option<Rights>,
    ) -> Result<usize, Errno> {
        let ready = || self.output().poll(false, true) != 0 || self.has_shut(WRITE);
        self.repeat(how, ready, |moved| {
            if let Some(errno) = self.next_error(*moved) {
                return Err(errno);
            }
            if self.has_shut(WRITE) {
                return Err(Errno::EPIPE);
            }
            let left = from.left();
            let pipe = match self.output() {
                Direction::Bytes(pipe) => pipe,
                Direction::Packets(packets) => {
                    let sent = packets.send(from, &self.near().address, rights)?;
                    *moved = sent.unwrap_or(0);
                    return Ok(sent.is_some());
                }
            };
            let (written, end) = pipe.write_now(from, 1, rights);
            if end == Err(Errno::EPIPE) && written == 0 && self.sends_in_vain() {
                *moved += left;
                return Ok(true);
            }
            *moved += written;
            end.map(|()| from.left() == 0)
        })
    }

    /// The error to report. Over TCP it waits for the next call if this one has moved bytes; over unix it is lost then,
    /// as on Linux.
    fn next_error(&self, moved: usize) -> Option<Errno> {
        let endpoint = &self.near().endpoint;
        if moved > 0 && self.is_tcp() { endpoint.error() } else { endpoint.take_error() }
    }

    /// Repeats a step, and waits in between, until it is done. Returns how many bytes it moved, also before a
    /// failure.
    fn repeat(
        &self,
        how: Transfer,
        ready: impl Fn() -> bool,
        mut step: impl FnMut(&mut usize) -> Result<bool, Errno>,
    ) -> Result<usize, Errno> {
        let (endpoint, mut moved) = (&self.near().endpoint, 0);
        let wait = || {
            let ready = || (ready() || endpoint.has_error()).then_some(false);
            endpoint.waiters.wait_until(how.nonblocking, how.deadline, ready)
        };
        loop {
            match step(&mut moved).and_then(|done| if done { Ok(true) } else { wait() }) {
                Ok(false) => {}
                Err(errno) if moved == 0 => return Err(errno),
                _ => return Ok(moved),
            }
        }
    }
}
