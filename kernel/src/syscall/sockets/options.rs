//! Options of sockets.

use core::sync::atomic::Ordering;

use linux_raw_sys::net as abi;
use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::socket::Socket;
use crate::files::socket::address::Family;
use crate::syscall::{Answer, Call};
use crate::time::SECOND;

impl Call<'_> {
    pub(in crate::syscall) fn setsockopt(&self) -> Answer {
        let [_, level, name, at, bytes, _] = self.arguments;
        let (level, name) = (level as u32, name as u32);
        let socket = self.socket_argument()?;
        let bytes = self.length(bytes, i32::MAX as usize)?;
        let least = if level == abi::SOL_SOCKET { size_of_option(name) } else { 4 };
        if bytes < least {
            return Err(Errno::EINVAL);
        }
        match (level, name) {
            (abi::SOL_SOCKET, abi::SO_RCVTIMEO | abi::SO_SNDTIMEO) => {
                let [seconds, microseconds] = self.load_words(at)?;
                if microseconds >= 1_000_000 {
                    return Err(Errno::EDOM);
                }
                let time = seconds.saturating_mul(SECOND).saturating_add(microseconds * 1000);
                socket.timeouts[timeout(name)].store(time, Ordering::Relaxed);
            }
            (abi::SOL_SOCKET, abi::SO_LINGER) => {
                let word = self.memory.read_u64(VirtAddr(at))?;
                let on = u64::from(word as u32 != 0);
                socket.linger.store(word & !u64::from(u32::MAX) | on, Ordering::Relaxed);
            }
            _ => socket.options.set(socket.family, level, name, self.memory.read_u32(VirtAddr(at))?)?,
        }
        Ok(0)
    }

    pub(in crate::syscall) fn getsockopt(&self) -> Answer {
        let [_, level, name, at, length_at, _] = self.arguments;
        let (level, name) = (level as u32, name as u32);
        let socket = self.socket_argument()?;
        let mut image = [0; 16];
        let bytes = if level == abi::SOL_SOCKET { size_of_option(name) } else { 4 };
        match (level, name) {
            (abi::SOL_SOCKET, abi::SO_RCVTIMEO | abi::SO_SNDTIMEO) => {
                let time = socket.timeouts[timeout(name)].load(Ordering::Relaxed);
                image[..8].copy_from_slice(&(time / SECOND).to_le_bytes());
                image[8..].copy_from_slice(&(time % SECOND / 1000).to_le_bytes());
            }
            (abi::SOL_SOCKET, abi::SO_LINGER) => {
                image[..8].copy_from_slice(&socket.linger.load(Ordering::Relaxed).to_le_bytes());
            }
            (abi::SOL_SOCKET, abi::SO_PEERCRED) => {
                // Without a peer there is no process, no user and no group.
                let maker = socket.peer_maker();
                let peer =
                    maker.map_or([0, u32::MAX, u32::MAX], |peer| [peer.process, peer.user, peer.group]);
                image[..12].copy_from_slice(peer.map(u32::to_le_bytes).as_flattened());
            }
            _ => image[..4].copy_from_slice(&number(&socket, level, name)?.to_le_bytes()),
        }
        self.store_counted(at, length_at, &image[..bytes], false)?;
        Ok(0)
    }
}

/// The options that are numbers, also those that cannot be set.
fn number(socket: &Socket, level: u32, name: u32) -> Result<u32, Errno> {
    let protocol = if socket.family == Family::Unix { 0 } else { abi::SOL_TCP };
    Ok(match (level, name) {
        (abi::SOL_SOCKET, abi::SO_TYPE) => socket.kind as u32,
        (abi::SOL_SOCKET, abi::SO_DOMAIN) => socket.family.number(),
        (abi::SOL_SOCKET, abi::SO_PROTOCOL) => protocol,
        (abi::SOL_SOCKET, abi::SO_ERROR) => socket.take_error().map_or(0, Errno::number) as u32,
        (abi::SOL_SOCKET, abi::SO_ACCEPTCONN) => socket.is_listening().into(),
        _ => socket.options.get(socket.family, level, name)?,
    })
}

/// How many bytes an option of the sockets' own level has.
fn size_of_option(name: u32) -> usize {
    match name {
        abi::SO_RCVTIMEO | abi::SO_SNDTIMEO => 16,
        abi::SO_LINGER => 8,
        abi::SO_PEERCRED => 12,
        _ => 4,
    }
}

fn timeout(name: u32) -> usize {
    usize::from(name == abi::SO_SNDTIMEO)
}
