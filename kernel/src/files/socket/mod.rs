//! Sockets inside the machine: streams, packets and datagrams of unix, and TCP from this machine to itself.
//!
//! There is no network device, so there are no packets: bytes go from one socket to the other through a pipe.
//!
//! | module | duty |
//! |---|---|
//! | `address` | addresses as programs have them |
//! | `registry` | which names are bound, and what listens there |
//! | `listener` | connections that are not accepted yet |
//! | `connect` | `connect`, with and without waiting |
//! | `connection`, `stream` | two directions, and sending and receiving on them |
//! | `direction`, `packets` | one direction: a pipe, or a queue of packets |
//! | `datagram` | queues to which any socket sends |
//! | `file` | a socket as an open file |
//! | `options` | `setsockopt` |

pub mod address;
mod connect;
pub mod connection;
pub mod datagram;
mod direction;
mod file;
mod listener;
pub mod options;
pub mod packets;
pub mod registry;
pub mod stream;

pub use listener::MOST_WAITING;
pub use registry::EPHEMERAL;

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Mutex;
use linux_raw_sys::net as abi;

use self::address::{Address, Family, is_local};
use self::connection::{Connection, Endpoint, Maker, READ, Side};
use self::datagram::Datagrams;
use self::listener::Listener;
use self::options::Options;
use self::packets::Beside;
use self::registry::{Binding, Name};
use self::stream::Transfer;
use super::io::{Sink, Source};
use super::open::Io;
use super::rights::{Rights, Traffic};
use crate::errno::Errno;
use crate::task::sched;

/// What a socket sends, by its number in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SocketType {
    /// `SOCK_STREAM`: bytes through a connection.
    Stream = abi::SOCK_STREAM,
    /// `SOCK_DGRAM`: datagrams to any socket.
    Datagram = abi::SOCK_DGRAM,
    /// `SOCK_SEQPACKET`: packets through a connection.
    Packet = abi::SOCK_SEQPACKET,
}

/// A socket.
pub struct Socket {
    /// What its addresses are.
    pub family: Family,
    /// What it sends.
    pub kind: SocketType,
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
    /// From the beginning.
    Datagrams(Arc<Datagrams>),
}

/// Where what a socket sends goes.
pub enum Outlet {
    /// Through its connection.
    Connection(Arc<Connection>),
    /// From its datagrams to those of another socket.
    Datagrams(Arc<Datagrams>, Arc<Datagrams>),
}

impl Outlet {
    /// The files that are carried the same way.
    pub fn traffic(&self) -> &Arc<Traffic> {
        match self {
            Self::Connection(connection) => connection.traffic(),
            Self::Datagrams(_, to) => &to.traffic,
        }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Datagrams::send`].
    pub fn send(
        &self,
        from: &mut dyn Source,
        how: Transfer,
        rights: &mut Option<Rights>,
    ) -> Result<usize, Errno> {
        match self {
            Self::Connection(connection) => connection.send(from, how, rights),
            Self::Datagrams(own, to) => own.send(to, from, how, rights),
        }
    }
}

impl Socket {
    /// A socket that is neither bound nor connected.
    pub fn new(kind: (Family, SocketType)) -> Self {
        let endpoint = Arc::default();
        let role = match kind.1 {
            SocketType::Datagram => Role::Datagrams(Datagrams::new(&endpoint, None)),
            SocketType::Stream | SocketType::Packet => Role::Idle,
        };
        Self::with(kind, Options::new(), endpoint, role)
    }

    fn with(
        (family, kind): (Family, SocketType),
        options: Options,
        endpoint: Arc<Endpoint>,
        role: Role,
    ) -> Self {
        let state = Mutex::new(State { bound: None, role });
        Self {
            family,
            kind,
            options,
            timeouts: Default::default(),
            linger: AtomicU64::new(0),
            endpoint,
            state,
        }
    }

    fn connected(kind: (Family, SocketType), options: Options, connection: Connection) -> Self {
        let endpoint = connection.near().endpoint.clone();
        let role = Role::Connection { connection: Arc::new(connection), pending: false };
        Self::with(kind, options, endpoint, role)
    }

    /// Two sockets of unix that are connected to each other.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn pair(kind: SocketType) -> Result<[Self; 2], Errno> {
        let kind = (Family::Unix, kind);
        if kind.1 == SocketType::Datagram {
            let endpoints: [Arc<Endpoint>; 2] = Default::default();
            let [one, other] = endpoints.each_ref().map(|end| Datagrams::new(end, Some(Maker::running())));
            one.connect(Some(&other))?;
            other.connect(Some(&one))?;
            let [first, second] = endpoints;
            return Ok([(first, one), (second, other)]
                .map(|(end, own)| Self::with(kind, Options::new(), end, Role::Datagrams(own))));
        }
        let side = || Side::new(Maker::running(), &Arc::default(), Address::none(Family::Unix));
        let connections = Connection::pair(kind, [side(), side()], true);
        Ok(connections.map(|connection| Self::connected(kind, Options::new(), connection)))
    }

    /// Its datagrams, if it sends them.
    pub fn datagrams(&self) -> Option<Arc<Datagrams>> {
        if let Role::Datagrams(own) = self.role() { Some(own) } else { None }
    }

    /// What made the other side, if that is known.
    pub fn peer_maker(&self) -> Option<Maker> {
        match self.role() {
            Role::Connection { connection, .. } => Some(connection.far().maker),
            Role::Datagrams(own) => own.pair_maker,
            Role::Idle | Role::Listener(_) => None,
        }
    }

    /// The files that are on their way through it; `None` if it is not connected, so that it may yet become anything.
    pub fn traffic(&self) -> Option<Arc<Traffic>> {
        match self.role() {
            Role::Connection { connection, .. } => Some(connection.traffic().clone()),
            Role::Datagrams(own) => Some(own.traffic.clone()),
            Role::Idle | Role::Listener(_) => None,
        }
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
        if let Role::Datagrams(own) = self.role() {
            return Ok(own.peer().map_err(|_| Errno::ENOTCONN)?.address());
        }
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
            let idle = matches!(state.role, Role::Idle | Role::Datagrams(_)) && state.bound.is_none();
            if idle { Ok(state) } else { Err(Errno::EINVAL) }
        };
        drop(unbound()?);
        let name = make()?;
        let mut state = unbound()?;
        let datagrams = if let Role::Datagrams(own) = &state.role { Some(own.clone()) } else { None };
        let (binding, name) = registry::bind(name, self.options.reuses_address(), datagrams.clone())?;
        let address = match name {
            Name::Port { address, .. } => Address::Inet(address),
            Name::Abstract(_, name) => Address::Unix(name),
            Name::Node(..) => address,
        };
        if let Some(datagrams) = datagrams {
            datagrams.set_address(address.clone());
        }
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
    /// [`Errno::EINVAL`] for a socket that is connected, or one of unix without a name; [`Errno::EADDRINUSE`];
    /// [`Errno::EOPNOTSUPP`] for one of datagrams.
    pub fn listen(&self, backlog: u32) -> Result<(), Errno> {
        self.check_connects()?;
        if let Address::Inet(any) = Address::none(self.family)
            && self.state.lock().bound.is_none()
        {
            self.bind(Address::Inet(any), || self.port(any))?;
        }
        let mut state = self.state.lock();
        let listener = match (&state.role, &state.bound) {
            (Role::Listener(listener), _) => listener.clone(),
            (Role::Idle, Some((binding, address))) => {
                let kind = (self.family, self.kind);
                let listener = Listener::new(Maker::running(), kind, &self.endpoint, address.clone());
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
    /// [`Errno::EINVAL`] if it does not listen; [`Errno::EOPNOTSUPP`] if it never can; [`Errno::EAGAIN`],
    /// [`Errno::EINTR`].
    pub fn accept(&self, io: Io) -> Result<Self, Errno> {
        self.check_connects()?;
        let Role::Listener(listener) = self.role() else { return Err(Errno::EINVAL) };
        let how = self.transfer(io, false);
        let next = || listener.accept().transpose();
        let connection = self.endpoint.waiters.wait_until(how.nonblocking, how.deadline, next)??;
        let inherits = self.family != Family::Unix;
        let options = if inherits { self.options.inherited() } else { Options::new() };
        Ok(Self::connected((self.family, self.kind), options, connection))
    }

    /// Fails for a socket that has no connections.
    fn check_connects(&self) -> Result<(), Errno> {
        if self.kind == SocketType::Datagram { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
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
            Role::Datagrams(own) => own.shut(what),
            Role::Idle => return Err(Errno::ENOTCONN),
        }
        Ok(())
    }

    /// The connection to receive from. A socket without one has no bytes.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`], or as unix sockets have it; [`Errno::EAGAIN`] while the connection is under way.
    pub fn receives_from(&self) -> Result<Arc<Connection>, Errno> {
        let is_unix_stream = self.family == Family::Unix && self.kind == SocketType::Stream;
        self.usable(if is_unix_stream { Errno::EINVAL } else { Errno::ENOTCONN })
    }

    /// Receives bytes, a packet or a datagram.
    ///
    /// # Errors
    /// As [`Self::receives_from`], [`Connection::receive`] and [`Datagrams::receive`].
    pub fn receive(&self, to: &mut dyn Sink, how: Transfer, beside: &mut Beside) -> Result<usize, Errno> {
        match self.datagrams() {
            Some(own) => own.receive(to, how, beside),
            None => self.receives_from()?.receive(to, how, beside),
        }
    }

    /// Where to send: a socket of datagrams may send to a name.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`], or [`Errno::EPIPE`] for TCP; [`Errno::EAGAIN`] while the connection is under way; as
    /// [`Datagrams::peer`] and [`registry::find_datagrams`].
    pub fn outlet(&self, named: Option<&Name>) -> Result<Outlet, Errno> {
        let Some(own) = self.datagrams() else {
            let missing = if self.family == Family::Unix { Errno::ENOTCONN } else { Errno::EPIPE };
            return self.usable(missing).map(Outlet::Connection);
        };
        let to = match named {
            Some(name) => registry::find_datagrams(name)?,
            None => own.peer()?,
        };
        Ok(Outlet::Datagrams(own, to))
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
