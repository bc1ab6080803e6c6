//! Sending and receiving, with flags, addresses and files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::net as abi;
use quire::addr::VirtAddr;

use super::Open;
use crate::errno::Errno;
use crate::files::io::{Sink, UserParts};
use crate::files::open::OpenFile;
use crate::files::pipe::broken_pipe;
use crate::files::rights::Rights;
use crate::files::socket::Socket;
use crate::files::socket::address::Family;
use crate::files::socket::connection::Connection;
use crate::files::socket::stream::Transfer;
use crate::syscall::{Answer, Call};

/// `struct cmsghdr`: length, level and type.
const HEADER_BYTES: usize = size_of::<abi::cmsghdr>();
/// The most files of one message, as in Linux.
const MOST_FILES: usize = 253;
/// The most bytes beside a message (`net.core.optmem_max`).
const MOST_CONTROL: u64 = 20480;

/// Takes bytes nowhere.
struct Discard(usize);

impl Sink for Discard {
    fn left(&self) -> usize {
        self.0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.0 -= bytes.len();
        Ok(bytes.len())
    }
}

/// `struct msghdr`.
struct Header {
    name: u64,
    parts: [u64; 2],
    control: u64,
    control_bytes: u64,
}

/// Where the fields of a `struct msghdr` are that a call changes.
const NAME_LENGTH: u64 = 8;
const CONTROL_LENGTH: u64 = 40;
const FLAGS: u64 = 48;

impl Call<'_> {
    pub(in crate::syscall) fn sendto(&self) -> Answer {
        let [_, at, bytes, flags, to, _] = self.arguments;
        let socket = self.socket_argument()?;
        self.send(&socket, &mut UserParts::one(self.memory, VirtAddr(at), bytes)?, flags, to != 0, &mut None)
    }

    pub(in crate::syscall) fn sendmsg(&self) -> Answer {
        let [_, at, flags, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let header = self.header(at)?;
        let mut parts = self.buffers(header.parts[0], header.parts[1])?;
        let mut rights = match self.files_to_send(&header)? {
            files if files.is_empty() || socket.family != Family::Unix => None,
            files => Some(rights_through(&*socket.sends_to()?, files)?),
        };
        self.send(&socket, &mut parts, flags, header.name != 0, &mut rights)
    }

    fn send(
        &self,
        socket: &Open,
        from: &mut UserParts<'_>,
        flags: u64,
        has_address: bool,
        rights: &mut Option<Rights>,
    ) -> Answer {
        let unix = socket.family == Family::Unix;
        if flags as u32 & abi::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if has_address && unix {
            return Err(if socket.sends_to().is_ok() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
        }
        let sent = socket.sends_to().and_then(|to| to.send(from, transfer(socket, flags, true), rights));
        if sent == Err(Errno::EPIPE) && flags as u32 & abi::MSG_NOSIGNAL == 0 {
            broken_pipe();
        }
        Ok(sent? as u64)
    }

    pub(in crate::syscall) fn recvfrom(&self) -> Answer {
        let [_, at, bytes, flags, from, from_length] = self.arguments;
        let socket = self.socket_argument()?;
        let mut to = UserParts::one(self.memory, VirtAddr(at), bytes)?;
        let received = self.receive(&socket, &mut to, flags, &mut None)?;
        if from != 0 {
            // A stream does not say whence each byte comes.
            self.store_counted(from, from_length, &[], true)?;
        }
        Ok(received)
    }

    pub(in crate::syscall) fn recvmsg(&self) -> Answer {
        let [_, at, flags, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let header = self.header(at)?;
        let mut to = self.buffers(header.parts[0], header.parts[1])?;
        let mut rights = None;
        let received = self.receive(&socket, &mut to, flags, &mut rights)?;
        let files = rights.map(Rights::into_files).unwrap_or_default();
        let (control_bytes, cut) = self.store_files(&header, files, flags)?;
        if header.name != 0 {
            self.memory.write(VirtAddr(at + NAME_LENGTH), &[0; 4])?;
        }
        self.memory.write(VirtAddr(at + CONTROL_LENGTH), &control_bytes.to_le_bytes())?;
        let answer = flags as u32 & abi::MSG_CMSG_CLOEXEC | if cut { abi::MSG_CTRUNC } else { 0 };
        self.memory.write(VirtAddr(at + FLAGS), &answer.to_le_bytes())?;
        Ok(received)
    }

    fn receive(
        &self,
        socket: &Open,
        to: &mut UserParts<'_>,
        flags: u64,
        rights: &mut Option<Rights>,
    ) -> Answer {
        let flags32 = flags as u32;
        if flags32 & (abi::MSG_OOB | abi::MSG_ERRQUEUE) != 0 {
            return Err(if flags32 & abi::MSG_OOB != 0 { Errno::EINVAL } else { Errno::EAGAIN });
        }
        let (from, how) = (socket.receives_from()?, transfer(socket, flags, false));
        if flags32 & abi::MSG_TRUNC != 0 && socket.family != Family::Unix {
            // TCP throws away what it would receive.
            return Ok(from.receive(&mut Discard(to.left()), how, rights)? as u64);
        }
        Ok(from.receive(to, how, rights)? as u64)
    }

    fn header(&self, at: u64) -> Result<Header, Errno> {
        let [name, name_bytes, parts, count, control, control_bytes, _] = self.load_words(at)?;
        if name != 0 && (name_bytes as i32) < 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Header { name, parts: [parts, count], control, control_bytes })
    }

    /// The files whose descriptors stand beside a message.
    fn files_to_send(&self, header: &Header) -> Result<Vec<Arc<OpenFile>>, Errno> {
        if header.control_bytes > MOST_CONTROL {
            return Err(Errno::ENOBUFS);
        }
        let mut control = Vec::new();
        control.try_reserve_exact(header.control_bytes as usize).map_err(|_| Errno::ENOMEM)?;
        control.resize(header.control_bytes as usize, 0);
        self.memory.read(VirtAddr(header.control), &mut control)?;
        let (mut rest, mut files) = (control.as_slice(), Vec::new());
        while let Some((head, _)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let [length, kind] =
                [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().expect("a word")));
            let end = usize::try_from(length).ok().filter(|end| (HEADER_BYTES..=rest.len()).contains(end));
            let data = &rest[HEADER_BYTES..end.ok_or(Errno::EINVAL)?];
            if kind != u64::from(abi::SCM_RIGHTS) << 32 | u64::from(abi::SOL_SOCKET) {
                return Err(Errno::EINVAL);
            }
            if files.len() + data.len() / 4 > MOST_FILES {
                return Err(Errno::EINVAL);
            }
            for descriptor in data.as_chunks().0 {
                files.push(self.table().get(u32::from_le_bytes(*descriptor).into())?);
            }
            rest = rest.get((HEADER_BYTES + data.len()).next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(files)
    }

    /// Gives files descriptors and stores these beside a message. Returns how many bytes that takes, and whether
    /// there was no room for some.
    fn store_files(
        &self,
        header: &Header,
        files: Vec<Arc<OpenFile>>,
        flags: u64,
    ) -> Result<(u64, bool), Errno> {
        let room = header.control_bytes.saturating_sub(HEADER_BYTES as u64) / 4;
        let close_on_exec = flags as u32 & abi::MSG_CMSG_CLOEXEC != 0;
        let (count, mut descriptors) = (files.len(), Vec::new());
        for file in files.into_iter().take(room as usize) {
            let Ok(descriptor) = self.table().add(file, close_on_exec) else { break };
            descriptors.push(descriptor as u32);
        }
        let cut = descriptors.len() < count;
        if descriptors.is_empty() {
            return Ok((0, cut));
        }
        let bytes = HEADER_BYTES + descriptors.len() * 4;
        let mut image = (bytes as u64).to_le_bytes().to_vec();
        image.extend(abi::SOL_SOCKET.to_le_bytes());
        image.extend(abi::SCM_RIGHTS.to_le_bytes());
        image.extend(descriptors.iter().flat_map(|descriptor| descriptor.to_le_bytes()));
        self.memory.write(VirtAddr(header.control), &image)?;
        Ok(((bytes.next_multiple_of(8) as u64).min(header.control_bytes), cut))
    }
}

/// Puts files on their way through a connection.
fn rights_through(carrier: &Connection, files: Vec<Arc<OpenFile>>) -> Result<Rights, Errno> {
    let sockets = files.iter().filter_map(|file| file.file_as::<Socket>());
    let unix = sockets.filter(|socket| socket.family == Family::Unix);
    // One that is not connected may yet become anything.
    let traffic = unix.map(|socket| Some(socket.connection()?.traffic().clone()));
    let carried = traffic.collect::<Option<Vec<_>>>().ok_or(Errno::ETOOMANYREFS)?;
    Rights::new(files, carrier.traffic(), carried)
}

/// What the flags of a call say.
fn transfer(socket: &Open, flags: u64, sends: bool) -> Transfer {
    let flags = flags as u32;
    let mut how = socket.transfer(socket.io(), sends);
    how.nonblocking |= flags & abi::MSG_DONTWAIT != 0;
    how.all = flags & abi::MSG_WAITALL != 0;
    how.peek = flags & abi::MSG_PEEK != 0;
    how
}
