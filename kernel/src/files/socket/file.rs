//! A socket as an open file.

use linux_raw_sys::general::{POLLERR, POLLHUP, POLLRDHUP};
use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};
use quire::addr::VirtAddr;

use super::address::Family;
use super::packets::Beside;
use super::{Role, Socket, SocketType, registry};
use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::io::{Sink, Source};
use crate::files::open::{File, Io, Ioctl};
use crate::files::pipe::broken_pipe;

/// `SO_LINGER` that is on for no time: closing throws the connection away.
const RESET_ON_CLOSE: u64 = 1;

impl Drop for Socket {
    fn drop(&mut self) {
        let resets = self.family != Family::Unix && *self.linger.get_mut() == RESET_ON_CLOSE;
        let state = self.state.get_mut();
        match &state.role {
            Role::Listener(listener) => listener.close(),
            Role::Connection { connection, .. } if resets => connection.reset(),
            Role::Datagrams(own) => own.close(),
            _ => {}
        }
        if let Some((binding, _)) = state.bound.take() {
            registry::release(&binding);
        }
    }
}

impl File for Socket {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.receive(to, self.transfer(io, false), &mut Beside::default())
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let sent = self.outlet(None).and_then(|to| to.send(from, self.transfer(io, true), &mut None));
        if sent == Err(Errno::EPIPE) && self.kind == SocketType::Stream {
            broken_pipe();
        }
        sent
    }

    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        match self.role() {
            Role::Listener(listener) if listener.is_ready() => READABLE,
            Role::Listener(_) => 0,
            Role::Connection { connection, .. } => connection.poll(),
            Role::Datagrams(own) => own.poll(),
            Role::Idle if self.endpoint.has_error() => READABLE | WRITABLE | POLLHUP | POLLERR | POLLRDHUP,
            Role::Idle => WRITABLE | POLLHUP,
        }
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.endpoint.waiters)
    }

    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        let connection = self.connection();
        let bytes = match call.request {
            FIONREAD if self.is_listening() => return Err(Errno::EINVAL),
            FIONREAD if self.kind == SocketType::Datagram => {
                self.datagrams().map_or(0, |own| own.first_len())
            }
            FIONREAD => connection.map_or(0, |connection| connection.input().len()),
            TIOCOUTQ => connection.map_or(0, |connection| connection.output().len()),
            _ => return Err(Errno::ENOTTY),
        };
        call.memory.write(VirtAddr(call.argument), &(bytes as u32).to_le_bytes())?;
        Ok(0)
    }

    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}
