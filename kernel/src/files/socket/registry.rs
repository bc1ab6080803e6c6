//! Which names are bound, and what listens there.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sync::Mutex;

use super::SocketType;
use super::datagram::Datagrams;
use super::listener::Listener;
use crate::errno::Errno;

/// The ports that are given to sockets that ask for none, as in Linux (`net.ipv4.ip_local_port_range`).
pub const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// A name by which a socket is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// An address and a port.
    Port {
        /// The address and port.
        address: SocketAddr,
        /// An unspecified address of IPv6 does not stand for those of IPv4.
        only_v6: bool,
    },
    /// A node of a file system, by the numbers of both.
    Node(u64, u64),
    /// A name outside the file systems, for sockets of one type.
    Abstract(SocketType, Arc<[u8]>),
}

impl Name {
    /// Whether a connection to `target` may come to a socket with this name.
    fn covers(&self, target: &Name) -> bool {
        let (Self::Port { address, only_v6 }, Self::Port { address: other, .. }) = (self, target) else {
            return self == target;
        };
        let same_kind = address.is_ipv4() == other.is_ipv4();
        let any = address.ip().is_unspecified() && (same_kind || address.is_ipv6() && !only_v6);
        address.port() == other.port() && (any || address.ip() == other.ip())
    }

    fn port(&self) -> Option<u16> {
        if let Self::Port { address, .. } = self { Some(address.port()) } else { None }
    }

    fn overlaps(&self, other: &Name) -> bool {
        self.covers(other) || other.covers(self)
    }
}

/// A bound name.
pub struct Binding {
    name: Name,
    reuse: bool,
    listener: Mutex<Option<Arc<Listener>>>,
    datagrams: Option<Arc<Datagrams>>,
}

impl Binding {
    fn is_listening(&self) -> bool {
        self.listener.lock().is_some()
    }
}

struct Registry {
    bindings: Vec<Arc<Binding>>,
    /// A bit for each ephemeral port: whether any binding has it.
    used: [u64; EPHEMERAL_WORDS],
    /// The ephemeral port that was given last.
    port: u16,
}

const EPHEMERAL_WORDS: usize = (*EPHEMERAL.end() - *EPHEMERAL.start()) as usize / 64 + 1;

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { bindings: Vec::new(), used: [0; EPHEMERAL_WORDS], port: *EPHEMERAL.end() });

/// A port that a connection has until both of its sides are closed.
pub struct Port(Arc<Binding>);

impl Drop for Port {
    fn drop(&mut self) {
        release(&self.0);
    }
}

impl Registry {
    fn in_the_way(&self, name: &Name) -> impl Iterator<Item = &Arc<Binding>> {
        self.bindings.iter().filter(move |other| other.name.overlaps(name))
    }

    /// Whether a socket may have a name. With `SO_REUSEADDR` sockets share it as long as none of them listens.
    fn may_bind(&self, name: &Name, reuse: bool) -> bool {
        self.in_the_way(name).all(|other| reuse && other.reuse && !other.is_listening())
    }

    /// The next port that no binding has.
    fn free_port(&mut self) -> Result<u16, Errno> {
        for _ in EPHEMERAL {
            self.port = if self.port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { self.port + 1 };
            if !self.is_used(self.port) {
                return Ok(self.port);
            }
        }
        Err(Errno::EADDRINUSE)
    }

    fn is_used(&self, port: u16) -> bool {
        bit_of(port).is_some_and(|(word, bit)| self.used[word] & bit != 0)
    }

    fn set_used(&mut self, name: &Name, used: bool) {
        if let Name::Port { address, .. } = name
            && let Some((word, bit)) = bit_of(address.port())
        {
            self.used[word] = self.used[word] & !bit | if used { bit } else { 0 };
        }
    }

    fn bind(
        &mut self,
        mut name: Name,
        reuse: bool,
        datagrams: Option<Arc<Datagrams>>,
    ) -> Result<Arc<Binding>, Errno> {
        if let Name::Port { address, .. } = &mut name
            && address.port() == 0
        {
            address.set_port(self.free_port()?);
        }
        if !self.may_bind(&name, reuse) {
            return Err(Errno::EADDRINUSE);
        }
        self.bindings.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.set_used(&name, true);
        let binding = Arc::new(Binding { name, reuse, listener: Mutex::default(), datagrams });
        self.bindings.push(binding.clone());
        Ok(binding)
    }
}

/// The place of a port's bit, if it is an ephemeral one.
fn bit_of(port: u16) -> Option<(usize, u64)> {
    let at = port.checked_sub(*EPHEMERAL.start()).filter(|_| EPHEMERAL.contains(&port))?;
    Some((usize::from(at) / 64, 1 << (at % 64)))
}

/// Binds a name, of a socket for datagrams if there are any. Port 0 stands for any that is free. Returns the name that it
/// is.
///
/// # Errors
/// [`Errno::EADDRINUSE`], [`Errno::ENOMEM`].
pub fn bind(
    name: Name,
    reuse: bool,
    datagrams: Option<Arc<Datagrams>>,
) -> Result<(Arc<Binding>, Name), Errno> {
    let binding = REGISTRY.lock().bind(name, reuse, datagrams)?;
    let name = binding.name.clone();
    Ok((binding, name))
}

/// An abstract name that Linux would choose: five digits.
pub fn any_name(kind: SocketType) -> Name {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & 0xf_ffff;
    Name::Abstract(kind, alloc::format!("\0{number:05x}").as_bytes().into())
}

/// An address for the near end of a connection, with the port that the connection keeps.
///
/// # Errors
/// [`Errno::EADDRNOTAVAIL`] when all ports are in use; [`Errno::ENOMEM`].
pub fn near_address(ip: IpAddr, reuse: bool) -> Result<(SocketAddr, Port), Errno> {
    let any = Name::Port { address: SocketAddr::new(ip, 0), only_v6: true };
    match bind(any, reuse, None) {
        Ok((binding, Name::Port { address, .. })) => Ok((address, Port(binding))),
        Ok(_) => unreachable!("a port is bound to a port"),
        Err(Errno::EADDRINUSE) => Err(Errno::EADDRNOTAVAIL),
        Err(errno) => Err(errno),
    }
}

/// Lets connections to a bound name come to a listener.
///
/// # Errors
/// [`Errno::EADDRINUSE`] if another socket listens there.
pub fn listen(binding: &Binding, listener: Arc<Listener>) -> Result<(), Errno> {
    let registry = REGISTRY.lock();
    if registry.in_the_way(&binding.name).any(|other| other.is_listening()) {
        return Err(Errno::EADDRINUSE);
    }
    *binding.listener.lock() = Some(listener);
    Ok(())
}

/// What takes datagrams at a name.
///
/// # Errors
/// [`Errno::ECONNREFUSED`]; [`Errno::EPROTOTYPE`] if the socket there is for something else.
pub fn find_datagrams(target: &Name) -> Result<Arc<Datagrams>, Errno> {
    let registry = REGISTRY.lock();
    let binding = registry.bindings.iter().find(|binding| binding.name.covers(target));
    binding.ok_or(Errno::ECONNREFUSED)?.datagrams.clone().ok_or(Errno::EPROTOTYPE)
}

/// What listens at a name, for sockets of a type. An address that is bound itself comes before one that stands for all.
///
/// # Errors
/// [`Errno::ECONNREFUSED`]; [`Errno::EPROTOTYPE`] if the socket there is of another type.
pub fn find(target: &Name, kind: SocketType) -> Result<Arc<Listener>, Errno> {
    let registry = REGISTRY.lock();
    let reached = registry.bindings.iter().filter(|binding| binding.name.covers(target));
    if reached.clone().any(|binding| binding.datagrams.is_some()) {
        return Err(Errno::EPROTOTYPE);
    }
    let listening = reached.filter(|binding| binding.is_listening());
    let exact = |binding: &&Arc<Binding>| target.covers(&binding.name);
    let binding = listening.max_by_key(exact).ok_or(Errno::ECONNREFUSED)?;
    let listener = binding.listener.lock().clone().ok_or(Errno::ECONNREFUSED)?;
    if listener.kind.1 == kind { Ok(listener) } else { Err(Errno::EPROTOTYPE) }
}

/// A socket gives up its name.
pub fn release(binding: &Arc<Binding>) {
    let mut registry = REGISTRY.lock();
    registry.bindings.retain(|other| !Arc::ptr_eq(other, binding));
    if !registry.bindings.iter().any(|other| other.name.port() == binding.name.port()) {
        registry.set_used(&binding.name, false);
    }
    if registry.bindings.is_empty() {
        registry.bindings = Vec::new();
    }
}
