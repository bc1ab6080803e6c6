//! Connecting, and ending connections.

use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use linux_raw_sys::net as abi;
use quire::addr::VirtAddr;

use super::create::open;
use crate::errno::Errno;
use crate::files::socket::address::MOST_BYTES;
use crate::files::socket::connection::{READ, WRITE};
use crate::syscall::{Answer, Call};

impl Call<'_> {
    pub(in crate::syscall) fn connect(&self) -> Answer {
        let [_, at, bytes, ..] = self.arguments;
        let socket = self.socket_argument()?;
        if let Some(datagrams) = socket.datagrams()
            && self.names_no_family(at, bytes)?
        {
            datagrams.connect(None)?;
            return Ok(0);
        }
        let address = self.load_address(&socket, at, bytes)?;
        socket.connect(&self.target(&socket, &address)?, socket.io())?;
        Ok(0)
    }

    /// Whether an address has the family `AF_UNSPEC`, which ends that a socket of datagrams is connected.
    fn names_no_family(&self, at: u64, bytes: u64) -> Result<bool, Errno> {
        let mut family = [0; 2];
        if self.length(bytes, MOST_BYTES)? < family.len() {
            return Ok(false);
        }
        self.memory.read(VirtAddr(at), &mut family)?;
        Ok(u32::from(u16::from_le_bytes(family)) == abi::AF_UNSPEC)
    }

    pub(in crate::syscall) fn accept(&self) -> Answer {
        self.accept_with(0)
    }

    pub(in crate::syscall) fn accept4(&self) -> Answer {
        self.accept_with(self.arguments[3] as u32)
    }

    fn accept_with(&self, flags: u32) -> Answer {
        if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let [_, at, length_at, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let table = self.table();
        // First, so that without a descriptor the connection waits on.
        let descriptor = table.reserve()?;
        let accepted = socket.accept(socket.io())?;
        if at != 0 {
            self.store_address(&accepted, &accepted.peer_name()?, at, length_at)?;
        }
        Ok(descriptor.fill(open(accepted, flags), flags & O_CLOEXEC != 0))
    }

    pub(in crate::syscall) fn shutdown(&self) -> Answer {
        let what = match self.arguments[1] as u32 {
            abi::SHUT_RD => READ,
            abi::SHUT_WR => WRITE,
            abi::SHUT_RDWR => READ | WRITE,
            _ => return Err(Errno::EINVAL),
        };
        self.socket_argument()?.shut(what)?;
        Ok(0)
    }
}
