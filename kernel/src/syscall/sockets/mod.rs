//! The calls about sockets, by verb.

mod connect;
mod create;
mod message;
mod name;
mod options;

use alloc::sync::Arc;
use core::ops::Deref;

use quire::addr::VirtAddr;

use super::Call;
use crate::errno::Errno;
use crate::files::open::{Io, OpenFile};
use crate::files::socket::Socket;
use crate::files::socket::address::{Address, MOST_BYTES};

/// An open socket.
struct Open(Arc<OpenFile>);

impl Open {
    /// How its calls behave.
    fn io(&self) -> Io {
        self.0.io()
    }
}

impl Deref for Open {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.0.file_as().expect("looked at when it was opened")
    }
}

impl Call<'_> {
    /// The socket whose descriptor is the first argument.
    fn socket_argument(&self) -> Result<Open, Errno> {
        let file = self.file(0)?;
        if file.file_as::<Socket>().is_some() { Ok(Open(file)) } else { Err(Errno::ENOTSOCK) }
    }

    /// Reads an address of so many bytes.
    fn load_address(&self, socket: &Socket, at: u64, bytes: u64) -> Result<Address, Errno> {
        let mut image = [0; MOST_BYTES];
        let image = &mut image[..self.length(bytes, MOST_BYTES)?];
        self.memory.read(VirtAddr(at), image)?;
        Address::decode(socket.family, image)
    }

    /// A length, which is signed.
    fn length(&self, bytes: u64, most: usize) -> Result<usize, Errno> {
        usize::try_from(bytes as u32 as i32).ok().filter(|bytes| *bytes <= most).ok_or(Errno::EINVAL)
    }

    /// Stores what fits of some bytes at `at`. The length at `length_at` says how many do, and becomes how many
    /// were stored, or with `whole` how many there are.
    fn store_counted(&self, at: u64, length_at: u64, image: &[u8], whole: bool) -> Result<(), Errno> {
        let room = self.memory.read_u32(VirtAddr(length_at))?;
        let stored = self.length(room.into(), i32::MAX as usize)?.min(image.len());
        self.memory.write(VirtAddr(at), &image[..stored])?;
        let length = if whole { image.len() } else { stored };
        self.memory.write(VirtAddr(length_at), &(length as u32).to_le_bytes())
    }

    fn store_address(
        &self,
        socket: &Socket,
        address: &Address,
        at: u64,
        length_at: u64,
    ) -> Result<(), Errno> {
        self.store_counted(at, length_at, &address.encode(socket.family), true)
    }
}
