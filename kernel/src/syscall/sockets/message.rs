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
use crate::files::rights::{Rights, Traffic};
use crate::files::socket::address::{Address, Family};
use crate::files::socket::packets::Beside;
use crate::files::socket::stream::Transfer;
use crate::files::socket::{Outlet, Socket, SocketType};
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
    name_bytes: u64,
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
        let [_, at, bytes, flags, to, to_bytes] = self.arguments;
        let socket = self.socket_argument()?;
        let mut from = UserParts::one(self.memory, VirtAddr(at), bytes)?;
        self.send(&socket, &mut from, flags, [to, to_bytes], Vec::new())
    }

    pub(in crate::syscall) fn sendmsg(&self) -> Answer {
        let [_, at, flags, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let header = self.header(at)?;
        let mut parts = self.buffers(header.parts[0], header.parts[1])?;
        let mut files = self.files_to_send(&header)?;
        if socket.family != Family::Unix {
            files.clear();
        }
        self.send(&socket, &mut parts, flags, [header.name, header.name_bytes], files)
    }

    fn send(
        &self,
        socket: &Open,
        from: &mut UserParts<'_>,
        flags: u64,
        [name, name_bytes]: [u64; 2],
        files: Vec<Arc<OpenFile>>,
    ) -> Answer {
        if flags as u32 & abi::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let named = match socket.kind {
            _ if name == 0 => None,
            SocketType::Datagram => {
                let address = self.load_address(socket, name, name_bytes)?;
                Some(self.target(socket, &address)?)
            }
            SocketType::Stream if socket.family == Family::Unix => {
                return Err(if socket.outlet(None).is_ok() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
            }
            // A name is not looked at.
            SocketType::Stream | SocketType::Packet => None,
        };
        let send = |to: Outlet| {
            let carries = !files.is_empty();
            let mut rights = carries.then(|| rights_through(to.traffic(), files)).transpose()?;
            to.send(from, transfer(socket, flags, true), &mut rights)
        };
        let sent = socket.outlet(named.as_ref()).and_then(send);
        let signals = socket.kind == SocketType::Stream && flags as u32 & abi::MSG_NOSIGNAL == 0;
        if sent == Err(Errno::EPIPE) && signals {
            broken_pipe();
        }
        Ok(sent? as u64)
    }

    pub(in crate::syscall) fn recvfrom(&self) -> Answer {
        let [_, at, bytes, flags, from, from_length] = self.arguments;
        let socket = self.socket_argument()?;
        let mut to = UserParts::one(self.memory, VirtAddr(at), bytes)?;
        let mut beside = Beside::default();
        let received = self.receive(&socket, &mut to, flags, &mut beside)?;
        if from != 0 {
            self.store_counted(from, from_length, &sender(&socket, &beside), true)?;
        }
        Ok(received)
    }

    pub(in crate::syscall) fn recvmsg(&self) -> Answer {
        let [_, at, flags, ..] = self.arguments;
        let socket = self.socket_argument()?;
        let header = self.header(at)?;
        let mut to = self.buffers(header.parts[0], header.parts[1])?;
        let mut beside = Beside::default();
        let room = to.left();
        let received = self.receive(&socket, &mut to, flags, &mut beside)?;
        let files = beside.rights.take().map(Rights::into_files).unwrap_or_default();
        let (control_bytes, cut) = self.store_files(&header, files, flags)?;
        if header.name != 0 {
            self.store_counted(header.name, at + NAME_LENGTH, &sender(&socket, &beside), true)?;
        }
        self.memory.write(VirtAddr(at + CONTROL_LENGTH), &control_bytes.to_le_bytes())?;
        let is_short = beside.packet.is_some_and(|(bytes, _)| bytes > room);
        let answer = flags as u32 & abi::MSG_CMSG_CLOEXEC
            | if cut { abi::MSG_CTRUNC } else { 0 }
            | if is_short { abi::MSG_TRUNC } else { 0 };
        self.memory.write(VirtAddr(at + FLAGS), &answer.to_le_bytes())?;
        Ok(received)
    }

    fn receive(&self, socket: &Open, to: &mut UserParts<'_>, flags: u64, beside: &mut Beside) -> Answer {
        let flags32 = flags as u32;
        if flags32 & (abi::MSG_OOB | abi::MSG_ERRQUEUE) != 0 {
            return Err(if flags32 & abi::MSG_OOB != 0 { Errno::EINVAL } else { Errno::EAGAIN });
        }
        let (how, cuts) = (transfer(socket, flags, false), flags32 & abi::MSG_TRUNC != 0);
        if cuts && socket.family != Family::Unix {
            // TCP throws away what it would receive.
            return Ok(socket.receive(&mut Discard(to.left()), how, beside)? as u64);
        }
        let received = socket.receive(to, how, beside)?;
        // The caller asks how many bytes a packet has.
        let whole = beside.packet.as_ref().map(|(bytes, _)| *bytes).filter(|_| cuts);
        Ok(whole.unwrap_or(received) as u64)
    }

    fn header(&self, at: u64) -> Result<Header, Errno> {
        let [name, name_bytes, parts, count, control, control_bytes, _] = self.load_words(at)?;
        if name != 0 && (name_bytes as i32) < 0 {
            return Err(Errno::EINVAL);
        }
        let name_bytes = u64::from(name_bytes as u32);
        Ok(Header { name, name_bytes, parts: [parts, count], control, control_bytes })
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

/// The address from which a packet came, as its receiver gets it: nothing if the sender has none. A stream does not say
/// whence each byte comes.
fn sender(socket: &Open, beside: &Beside) -> Vec<u8> {
    let from = beside.packet.as_ref().map(|(_, from)| from);
    let named = from.filter(|from| **from != Address::none(socket.family));
    named.map(|from| from.encode(socket.family)).unwrap_or_default()
}

/// Puts files on their way.
fn rights_through(carrier: &Arc<Traffic>, files: Vec<Arc<OpenFile>>) -> Result<Rights, Errno> {
    let sockets = files.iter().filter_map(|file| file.file_as::<Socket>());
    let unix = sockets.filter(|socket| socket.family == Family::Unix);
    // One that is not connected may yet become anything.
    let carried = unix.map(Socket::traffic).collect::<Option<Vec<_>>>().ok_or(Errno::ETOOMANYREFS)?;
    Rights::new(files, carrier, carried)
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
