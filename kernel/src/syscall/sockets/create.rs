//! Making sockets.

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK, O_RDWR};
use linux_raw_sys::net as abi;
use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::anonymous;
use crate::files::open::OpenFile;
use crate::files::socket::address::Family;
use crate::files::socket::{Socket, SocketType};
use crate::syscall::{Answer, Call};

const TYPE: u32 = 0xf;
/// One more than the largest type.
const TYPES: u32 = 11;

impl Call<'_> {
    pub(in crate::syscall) fn socket(&self) -> Answer {
        let (kind, flags) = self.kind_of_socket()?;
        self.add_socket(Socket::new(kind), flags)
    }

    pub(in crate::syscall) fn socketpair(&self) -> Answer {
        let ((family, kind), flags) = self.kind_of_socket()?;
        if family != Family::Unix {
            return Err(Errno::EOPNOTSUPP);
        }
        let [one, other] = Socket::pair(kind)?;
        let one = self.add_socket(one, flags)?;
        let other = self.add_socket(other, flags).inspect_err(|_| _ = self.table().close(one))?;
        let image = [one as u32, other as u32].map(u32::to_le_bytes);
        let stored = self.memory.write(VirtAddr(self.arguments[3]), image.as_flattened());
        if stored.is_err() {
            // They were opened just now.
            let _ = (self.table().close(one), self.table().close(other));
        }
        stored.map(|()| 0)
    }

    /// Gives a socket a descriptor, with `SOCK_CLOEXEC` and `SOCK_NONBLOCK`, which are flags of `open`.
    pub(super) fn add_socket(&self, socket: Socket, flags: u32) -> Answer {
        self.table().add(open(socket, flags), flags & O_CLOEXEC != 0)
    }

    /// Which kind of socket the first three arguments want, and the flags.
    fn kind_of_socket(&self) -> Result<((Family, SocketType), u32), Errno> {
        let [family, kind, protocol, ..] = self.arguments.map(|argument| argument as u32);
        let flags = kind & !TYPE;
        if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 || kind & TYPE >= TYPES {
            return Err(Errno::EINVAL);
        }
        let family = Family::of(family)?;
        let unix = family == Family::Unix;
        let own_protocol = if unix { abi::AF_UNIX } else { abi::SOL_TCP };
        let kind = match kind & TYPE {
            abi::SOCK_STREAM => SocketType::Stream,
            abi::SOCK_DGRAM if unix => SocketType::Datagram,
            abi::SOCK_SEQPACKET if unix => SocketType::Packet,
            // There are none over IP.
            abi::SOCK_DGRAM => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        let known = protocol == 0 || protocol == own_protocol;
        if known { Ok(((family, kind), flags)) } else { Err(Errno::EPROTONOSUPPORT) }
    }
}

/// A socket as an open file.
pub(super) fn open(socket: Socket, flags: u32) -> Arc<OpenFile> {
    anonymous::open_socket(Box::new(socket), O_RDWR | flags & O_NONBLOCK)
}
