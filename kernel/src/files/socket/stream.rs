//! Sending and receiving on a connection.

use super::connection::{Connection, READ, WRITE};
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
    /// Receives bytes; 0 at the end. Files that come with them are put where `rights` says.
    ///
    /// # Errors
    /// [`Errno::ECONNRESET`] and others that the connection got; [`Errno::EAGAIN`], [`Errno::EINTR`],
    /// [`Errno::EFAULT`].
    pub fn receive(
        &self,
        to: &mut dyn Sink,
        how: Transfer,
        rights: &mut Option<Rights>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            match self.receive_now(to, how, rights) {
                Ok(Some(0)) => return Ok(done),
                Ok(Some(count)) => done += count,
                Ok(None) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
            let enough = done > 0 && (!how.all || how.peek || rights.is_some());
            if enough || to.left() == 0 {
                return Ok(done);
            }
            match self.wait(how, || self.input().poll(true, false) != 0 || self.has_shut(READ)) {
                Err(_) if done > 0 => return Ok(done),
                waited => waited?,
            }
        }
    }

    fn receive_now(
        &self,
        to: &mut dyn Sink,
        how: Transfer,
        rights: &mut Option<Rights>,
    ) -> Result<Option<usize>, Errno> {
        // An error comes after the bytes that came before it, and instead of the end.
        match self.input().read_now(to, !how.peek, rights)? {
            Some(count) if count > 0 || to.left() == 0 => Ok(Some(count)),
            end => match self.near().endpoint.take_error() {
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
        let mut done = 0;
        loop {
            match self.send_now(from, rights) {
                Ok(count) => done += count,
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
            if from.left() == 0 {
                return Ok(done);
            }
            match self.wait(how, || self.output().poll(false, true) != 0 || self.has_shut(WRITE)) {
                Err(_) if done > 0 => return Ok(done),
                waited => waited?,
            }
        }
    }

    fn send_now(&self, from: &mut dyn Source, rights: &mut Option<Rights>) -> Result<usize, Errno> {
        if let Some(errno) = self.near().endpoint.take_error() {
            return Err(errno);
        }
        if self.has_shut(WRITE) {
            return Err(Errno::EPIPE);
        }
        self.output().write_now(from, 1, rights)
    }

    /// Waits until a condition holds, or there is an error to report.
    fn wait(&self, how: Transfer, condition: impl Fn() -> bool) -> Result<(), Errno> {
        let endpoint = &self.near().endpoint;
        let ready = || (condition() || endpoint.has_error()).then_some(());
        endpoint.waiters.wait_until(how.nonblocking, how.deadline, ready)
    }
}
