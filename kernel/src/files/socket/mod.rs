//! Sockets for streams inside the machine: those of unix, and TCP from this machine to itself.
//!
//! There is no network device, so there are no packets: bytes go from one socket to the other through a pipe.
//!
//! | module | duty |
//! |---|---|
//! | `address` | addresses as programs have them |
//! | `registry` | which names are bound, and what listens there |
//! | `listener` | connections that are not accepted yet |
//! | `connect` | `connect`, with and without waiting |
//! | `connection`, `stream` | two pipes, and sending and receiving on them |
//! | `options` | `setsockopt` |

pub mod address;
mod connect;
pub mod connection;
mod listener;
pub mod options;
pub mod registry;
pub mod stream;

pub use listener::MOST_WAITING;
pub use registry::EPHEMERAL;

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Mutex;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLRDHUP};
use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};
use quire::addr::VirtAddr;

use self::address::{Address, Family, is_local};
use self::connection::{Connection, Endpoint, Maker, READ, Side};
use self::listener::Listener;
use self::options::Options;
use self::registry::{Binding, Name};
use self::stream::Transfer;
use super::events::{Events, READABLE, WRITABLE, Waiters};
use super::io::{Sink, Source};
use super::open::{File, Io, Ioctl};
use super::pipe::broken_pipe;
use crate::errno::Errno;
use crate::task::sched;

/// A socket.
pub struct Socket {
    /// What its addresses are.
    pub family: Family,
    /// Its options.
    pub options: Options,
    /// How many nanoseconds it waits to receive, and to send (`SO_RCVTIMEO`, `SO_SNDTIMEO`); 0 for as long as it takes.
    pub timeouts: [AtomicU64; 2],
    /// The words of `SO_LINGER`.
    pub linger: AtomicU64,
    endpoint: Arc<Endpoint>,
    state: Mutex<State>,
}

/// What a socket has become.
struct State {
    bound: Option<(Arc<Binding>, Address)>,
    role: Role,
}

#[derive(Clone)]
enum Role {
    /// Nothing yet.
    Idle,
    Listener(Arc<Listener>),
    Connection {
        connection: Arc<Connection>,
        /// `connect` has not returned success yet.
        pending: bool,
    },
}

/// `SO_LINGER` that is on for no time: closing throws the connection away.
const RESET_ON_CLOSE: u64 = 1;

impl Socket {
    /// A socket that is neither bound nor connected.
    pub fn new(family: Family) -> Self {
        Self::with(family, Options::new(), Arc::default(), Role::Idle)
    }

    fn with(family: Family, options: Options, endpoint: Arc<Endpoint>, role: Role) -> Self {
        let state = Mutex::new(State { bound: None, role });
        Self { family, options, timeouts: Default::default(), linger: AtomicU64::new(0), endpoint, state }
    }

    fn connected(family: Family, options: Options, connection: Connection) -> Self {
        let endpoint = connection.near().endpoint.clone();
        let role = Role::Connection { connection: Arc::new(connection), pending: false };
        Self::with(family, options, endpoint, role)
    }

    /// Two sockets of unix that are connected to each other.
    pub fn pair() -> [Self; 2] {
        let side = || Side::new(Maker::running(), &Arc::default(), Address::none(Family::Unix));
        let connections = Connection::pair(Family::Unix, [side(), side()], true);
        connections.map(|connection| Self::connected(Family::Unix, Options::new(), connection))
    }

    fn role(&self) -> Role {
        self.state.lock().role.clone()
    }

    /// Its connection, if it has one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        match self.role() {
            Role::Connection { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        matches!(self.role(), Role::Listener(_))
    }

    /// The error that comes next (`SO_ERROR`).
    pub fn take_error(&self) -> Option<Errno> {
        self.endpoint.take_error()
    }

    /// Its own address.
    pub fn name(&self) -> Address {
        let state = self.state.lock();
        match (&state.role, &state.bound) {
            (Role::Connection { connection, .. }, _) => connection.near().address.clone(),
            (_, Some((_, address))) => address.clone(),
            _ => Address::none(self.family),
        }
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`].
    pub fn peer_name(&self) -> Result<Address, Errno> {
        let connection = self.connection().filter(|connection| connection.is_established());
        Ok(connection.ok_or(Errno::ENOTCONN)?.far().address.clone())
    }

    /// How a call waits: it receives, or sends.
    pub fn transfer(&self, io: Io, sends: bool) -> Transfer {
        let timeout = self.timeouts[usize::from(sends)].load(Ordering::Relaxed);
        let deadline = (timeout > 0).then(|| sched::current_ref().call_end(timeout));
        Transfer { nonblocking: io.nonblocking, deadline, ..Transfer::default() }
    }

    /// Binds a name, which `make` finds or makes once the socket is known to have none. `address` is its address.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it has a name; [`Errno::EADDRINUSE`], [`Errno::EADDRNOTAVAIL`], those of `make`.
    pub fn bind(&self, address: Address, make: impl FnOnce() -> Result<Name, Errno>) -> Result<(), Errno> {
        let unbound = || {
            let state = self.state.lock();
            let idle = matches!(state.role, Role::Idle) && state.bound.is_none();
            if idle { Ok(state) } else { Err(Errno::EINVAL) }
        };
        drop(unbound()?);
        let name = make()?;
        let mut state = unbound()?;
        let (binding, name) = registry::bind(name, self.options.reuses_address())?;
        let address = match name {
            Name::Port { address, .. } => Address::Inet(address),
            Name::Abstract(name) => Address::Unix(name),
            Name::Node(..) => address,
        };
        state.bound = Some((binding, address));
        Ok(())
    }

    /// The name of an address and a port for this socket.
    ///
    /// # Errors
    /// [`Errno::EADDRNOTAVAIL`] for an address of another machine.
    pub fn port(&self, address: SocketAddr) -> Result<Name, Errno> {
        let only_v6 = self.options.is_only_v6();
        if is_local(address) { Ok(Name::Port { address, only_v6 }) } else { Err(Errno::EADDRNOTAVAIL) }
    }

    /// Lets others connect (`listen(2)`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a socket that is connected, or one of unix without a name; [`Errno::EADDRINUSE`].
    pub fn listen(&self, backlog: u32) -> Result<(), Errno> {
        if let Address::Inet(any) = Address::none(self.family)
            && self.state.lock().bound.is_none()
        {
            self.bind(Address::Inet(any), || self.port(any))?;
        }
        let mut state = self.state.lock();
        let listener = match (&state.role, &state.bound) {
            (Role::Listener(listener), _) => listener.clone(),
            (Role::Idle, Some((binding, address))) => {
                let listener = Listener::new(Maker::running(), self.family, &self.endpoint, address.clone());
                registry::listen(binding, listener.clone())?;
                listener
            }
            _ => return Err(Errno::EINVAL),
        };
        listener.set_backlog(backlog);
        state.role = Role::Listener(listener);
        Ok(())
    }

    /// Waits for a connection and takes it.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it does not listen; [`Errno::EAGAIN`], [`Errno::EINTR`].
    pub fn accept(&self, io: Io) -> Result<Self, Errno> {
        let Role::Listener(listener) = self.role() else { return Err(Errno::EINVAL) };
        let how = self.transfer(io, false);
        let next = || listener.accept().transpose();
        let connection = self.endpoint.waiters.wait_until(how.nonblocking, how.deadline, next)??;
        let inherits = self.family != Family::Unix;
        let options = if inherits { self.options.inherited() } else { Options::new() };
        Ok(Self::connected(self.family, options, connection))
    }

    /// Ends reading, writing or both (`shutdown(2)`).
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`].
    pub fn shut(&self, what: u32) -> Result<(), Errno> {
        match self.role() {
            Role::Connection { connection, .. } => connection.shut(what),
            Role::Listener(listener) if what & READ != 0 => listener.close(),
            Role::Listener(_) => {}
            Role::Idle => return Err(Errno::ENOTCONN),
        }
        Ok(())
    }

    /// The connection to receive from. A socket without one has no bytes.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`], or as unix sockets have it; [`Errno::EAGAIN`] while the connection is under way.
    pub fn receives_from(&self) -> Result<Arc<Connection>, Errno> {
        let missing = if self.family == Family::Unix { Errno::EINVAL } else { Errno::ENOTCONN };
        self.usable(missing)
    }

    /// The connection to send to.
    ///
    /// # Errors
    /// As [`Self::receives_from`]; [`Errno::EPIPE`] for TCP.
    pub fn sends_to(&self) -> Result<Arc<Connection>, Errno> {
        self.usable(if self.family == Family::Unix { Errno::ENOTCONN } else { Errno::EPIPE })
    }

    fn usable(&self, missing: Errno) -> Result<Arc<Connection>, Errno> {
        match self.connection() {
            Some(connection) if connection.is_established() => Ok(connection),
            _ if self.endpoint.has_error() => Err(self.take_error().unwrap_or(missing)),
            Some(_) => Err(Errno::EAGAIN),
            None => Err(missing),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let resets = self.family != Family::Unix && *self.linger.get_mut() == RESET_ON_CLOSE;
        let state = self.state.get_mut();
        match &state.role {
            Role::Listener(listener) => listener.close(),
            Role::Connection { connection, .. } if resets => connection.reset(),
            _ => {}
        }
        if let Some((binding, _)) = state.bound.take() {
            registry::release(&binding);
        }
    }
}

impl File for Socket {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.receives_from()?.receive(to, self.transfer(io, false), &mut None)
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let sent = self.sends_to().and_then(|to| to.send(from, self.transfer(io, true), &mut None));
        if sent == Err(Errno::EPIPE) {
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
