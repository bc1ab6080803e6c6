//! Which names are bound, and what listens there.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use spin::Mutex;

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
    /// A name outside the file systems.
    Abstract(Arc<[u8]>),
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

    fn overlaps(&self, other: &Name) -> bool {
        self.covers(other) || other.covers(self)
    }
}

/// A bound name.
pub struct Binding {
    name: Name,
    reuse: bool,
    listener: Mutex<Option<Arc<Listener>>>,
}

impl Binding {
    fn is_listening(&self) -> bool {
        self.listener.lock().is_some()
    }
}

struct Registry {
    bindings: Vec<Arc<Binding>>,
    /// The ephemeral port that was given last.
    port: u16,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { bindings: Vec::new(), port: *EPHEMERAL.end() });

impl Registry {
    fn in_the_way(&self, name: &Name) -> impl Iterator<Item = &Arc<Binding>> {
        self.bindings.iter().filter(move |other| other.name.overlaps(name))
    }

    /// Whether a socket may have a name. With `SO_REUSEADDR` sockets share it as long as none of them listens.
    fn may_bind(&self, name: &Name, reuse: bool) -> bool {
        self.in_the_way(name).all(|other| reuse && other.reuse && !other.is_listening())
    }

    /// The next port that is not bound.
    fn free_port(&mut self, ip: IpAddr, only_v6: bool) -> Result<SocketAddr, Errno> {
        for _ in EPHEMERAL {
            self.port = if self.port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { self.port + 1 };
            let address = SocketAddr::new(ip, self.port);
            if self.may_bind(&Name::Port { address, only_v6 }, false) {
                return Ok(address);
            }
        }
        Err(Errno::EADDRINUSE)
    }
}

/// Binds a name. Port 0 stands for any that is free. Returns the name that it is.
///
/// # Errors
/// [`Errno::EADDRINUSE`], [`Errno::ENOMEM`].
pub fn bind(mut name: Name, reuse: bool) -> Result<(Arc<Binding>, Name), Errno> {
    let mut registry = REGISTRY.lock();
    if let Name::Port { address, only_v6 } = &mut name
        && address.port() == 0
    {
        *address = registry.free_port(address.ip(), *only_v6)?;
    }
    if !registry.may_bind(&name, reuse) {
        return Err(Errno::EADDRINUSE);
    }
    registry.bindings.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let binding = Arc::new(Binding { name: name.clone(), reuse, listener: Mutex::default() });
    registry.bindings.push(binding.clone());
    Ok((binding, name))
}

/// An abstract name that Linux would choose: five digits.
pub fn any_name() -> Name {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & 0xf_ffff;
    Name::Abstract(alloc::format!("\0{number:05x}").as_bytes().into())
}

/// An address for the near end of a connection.
///
/// # Errors
/// [`Errno::EADDRNOTAVAIL`] when all ports are in use.
pub fn near_address(ip: IpAddr) -> Result<SocketAddr, Errno> {
    REGISTRY.lock().free_port(ip, true).map_err(|_| Errno::EADDRNOTAVAIL)
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

/// What listens at a name. An address that is bound itself comes before one that stands for all.
///
/// # Errors
/// [`Errno::ECONNREFUSED`].
pub fn find(target: &Name) -> Result<Arc<Listener>, Errno> {
    let registry = REGISTRY.lock();
    let reached = registry.bindings.iter().filter(|binding| binding.name.covers(target));
    let listening = reached.filter(|binding| binding.is_listening());
    let exact = |binding: &&Arc<Binding>| target.covers(&binding.name);
    let binding = listening.max_by_key(exact).ok_or(Errno::ECONNREFUSED)?;
    binding.listener.lock().clone().ok_or(Errno::ECONNREFUSED)
}

/// A socket gives up its name.
pub fn release(binding: &Arc<Binding>) {
    let mut registry = REGISTRY.lock();
    registry.bindings.retain(|other| !Arc::ptr_eq(other, binding));
    if registry.bindings.is_empty() {
        registry.bindings = Vec::new();
    }
}
