//! Connecting a socket (`connect(2)`).

use alloc::sync::Arc;

use super::address::{Address, Family};
use super::connection::{Connection, Maker, Side};
use super::registry::{self, Name};
use super::{Role, Socket, State};
use crate::errno::Errno;
use crate::files::open::Io;

impl Socket {
    /// Connects to what listens at a name, or waits for the connection that is under way.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub fn connect(&self, target: &Name, io: Io) -> Result<(), Errno> {
        if let Role::Datagrams(own) = self.role() {
            return own.connect(Some(&registry::find_datagrams(target)?));
        }
        let begun = self.begin(target, io)?;
        if begun && io.nonblocking && self.family != Family::Unix {
            // Linux has only sent the first packet of TCP by now.
            return Err(Errno::EINPROGRESS);
        }
        self.finish(io)
    }

    /// Asks for a connection, unless one is under way. Returns whether it did. TCP learns later that it is refused.
    fn begin(&self, target: &Name, io: Io) -> Result<bool, Errno> {
        let unix = self.family == Family::Unix;
        let mut state = self.state.lock();
        match &state.role {
            Role::Idle => self.take_error().map_or(Ok(()), Err)?,
            Role::Connection { pending: true, .. } => return Ok(false),
            Role::Listener(_) if unix => return Err(Errno::EINVAL),
            _ => return Err(Errno::EISCONN),
        }
        match self.ask(&state, target, unix && io.nonblocking) {
            Ok(connection) => {
                state.role = Role::Connection { connection: Arc::new(connection), pending: true }
            }
            Err(Errno::ECONNREFUSED) if !unix => {
                drop(state);
                self.endpoint.fail(Errno::ECONNREFUSED);
            }
            Err(errno) => return Err(errno),
        }
        Ok(true)
    }

    /// Asks a listener.
    fn ask(&self, state: &State, target: &Name, now: bool) -> Result<Connection, Errno> {
        let listener = registry::find(target, self.kind)?;
        let bound = state.bound.as_ref().map(|(_, address)| address.clone());
        let mut port = None;
        let (near, reached) = match (target, bound) {
            (Name::Port { address, .. }, bound) => {
                let near = match bound {
                    Some(Address::Inet(near)) if !near.ip().is_unspecified() => near,
                    Some(Address::Inet(near)) => (address.ip(), near.port()).into(),
                    _ => {
                        let (near, kept) =
                            registry::near_address(address.ip(), self.options.reuses_address())?;
                        port = Some(kept);
                        near
                    }
                };
                (Address::Inet(near), Some(Address::Inet(*address)))
            }
            (_, bound) => (bound.unwrap_or_else(|| Address::none(self.family)), None),
        };
        listener.connect(Side::new(Maker::running(), &self.endpoint, near).with_port(port), reached, now)
    }

    /// Waits until the connection that is under way is established or refused.
    fn finish(&self, io: Io) -> Result<(), Errno> {
        let how = self.transfer(io, true);
        let settled = || {
            let established = self.connection().is_none_or(|connection| connection.is_established());
            (established || self.endpoint.has_error()).then_some(())
        };
        let waited = self.endpoint.waiters.wait_until(how.nonblocking, how.deadline, settled);
        waited.map_err(|errno| match errno {
            Errno::EAGAIN if io.nonblocking => Errno::EALREADY,
            Errno::EAGAIN => Errno::EINPROGRESS,
            errno => errno,
        })?;
        let mut state = self.state.lock();
        match (self.take_error(), &mut state.role) {
            (Some(errno), Role::Connection { connection, .. }) if !connection.is_established() => {
                // The socket may connect again.
                state.role = Role::Idle;
                Err(errno)
            }
            (Some(errno), _) => Err(errno),
            (None, Role::Connection { pending, .. }) => {
                *pending = false;
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }
}
