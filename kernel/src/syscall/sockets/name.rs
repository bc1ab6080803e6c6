//! The names of sockets, and listening.

use core::ops::RangeInclusive;

use linux_raw_sys::general::S_IFSOCK;

use crate::errno::Errno;
use crate::files::node::Kind;
use crate::files::socket::Socket;
use crate::files::socket::address::{Address, is_local, reached};
use crate::files::socket::registry::{self, Name};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{Right, WRITE, check, check_file};

/// The ports of services, which not every user may take (`net.ipv4.ip_unprivileged_port_start`).
const PRIVILEGED: RangeInclusive<u16> = 1..=1023;

impl Call<'_> {
    pub(in crate::syscall) fn bind(&self) -> Answer {
        let [_, at, bytes, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let address = self.load_address(&socket, at, bytes)?;
        socket.bind(address.clone(), || match &address {
            Address::Inet(address) => {
                let name = socket.port(*address)?;
                if PRIVILEGED.contains(&address.port()) {
                    check(Right::BindPort).map_err(|_| Errno::EACCES)?;
                }
                Ok(name)
            }
            Address::Unix(name) if name.first() == Some(&0) => Ok(Name::Abstract(socket.kind, name.clone())),
            Address::Unix(path) if path.is_empty() => Ok(registry::any_name(socket.kind)),
            Address::Unix(path) => self.make_socket_node(path),
        })?;
        Ok(0)
    }

    /// Makes the node of a socket that is bound to a path.
    fn make_socket_node(&self, path: &[u8]) -> Result<Name, Errno> {
        let made = self.make_node(path, S_IFSOCK | 0o777, Kind::Socket);
        let node = made.map_err(|errno| if errno == Errno::EEXIST { Errno::EADDRINUSE } else { errno })?;
        let node = node.node().attributes();
        Ok(Name::Node(node.fs, node.number))
    }

    /// The name to connect to.
    pub(super) fn target(&self, socket: &Socket, address: &Address) -> Result<Name, Errno> {
        match address {
            Address::Inet(address) if !is_local(*address) => Err(Errno::ENETUNREACH),
            Address::Inet(address) => socket.port(reached(*address)),
            Address::Unix(name) if name.first() == Some(&0) => Ok(Name::Abstract(socket.kind, name.clone())),
            Address::Unix(path) if path.is_empty() => Err(Errno::EINVAL),
            Address::Unix(path) => {
                let node = self.existing_node(path)?;
                let node = node.node().attributes();
                check_file(WRITE, || node)?;
                if node.kind != Kind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                Ok(Name::Node(node.fs, node.number))
            }
        }
    }

    pub(in crate::syscall) fn listen(&self) -> Answer {
        self.socket_argument()?.listen(self.arguments[1] as u32)?;
        Ok(0)
    }

    pub(in crate::syscall) fn getsockname(&self) -> Answer {
        let socket = self.socket_argument()?;
        self.store_address(&socket, &socket.name(), self.arguments[1], self.arguments[2])?;
        Ok(0)
    }

    pub(in crate::syscall) fn getpeername(&self) -> Answer {
        let socket = self.socket_argument()?;
        self.store_address(&socket, &socket.peer_name()?, self.arguments[1], self.arguments[2])?;
        Ok(0)
    }
}
