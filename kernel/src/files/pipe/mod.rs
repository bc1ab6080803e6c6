//! Pipes, with and without names (`pipe(7)`, `fifo(7)`).

mod end;
mod ring;

use alloc::boxed::Box;
use alloc::sync::Arc;

pub use end::{PipeEnd, broken_pipe};
pub use ring::Pipe;

use super::anonymous;
use super::dentry::Dentry;
use super::node::{Attributes, FsInfo, Kind, Node};
use super::open::{File, OpenFile, Opening};
use crate::errno::Errno;
use crate::task::credentials;
use linux_raw_sys::general as abi;

/// The node of a pipe without a name.
struct PipeNode {
    pipe: Arc<Pipe>,
    number: u64,
    /// The user and the group that made it.
    owner: (u32, u32),
}

impl Node for PipeNode {
    fn attributes(&self) -> Attributes {
        let (uid, gid) = self.owner;
        Attributes { uid, gid, ..anonymous::attributes(self.number, Kind::Fifo) }
    }

    /// Through `/proc/PID/fd`: one more end. It does not wait for the other one, which no name leads to.
    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Ok(Box::new(PipeEnd::new(&self.pipe, opening.reads(), opening.writes())))
    }

    fn fs_info(&self) -> FsInfo {
        anonymous::fs_info()
    }
}

/// Makes a pipe. Returns the end to read from and the end to write to.
pub fn open_pair(flags: u32) -> (Arc<OpenFile>, Arc<OpenFile>) {
    let pipe = Pipe::new();
    let number = anonymous::take_number();
    let name = alloc::format!("pipe:[{number}]");
    let ends = [(true, false), (false, true)].map(|(reads, writes)| PipeEnd::new(&pipe, reads, writes));
    let node = PipeNode { pipe, number, owner: credentials::owner() };
    let place = Dentry::unnamed(name.as_bytes(), Arc::new(node));
    let [reader, writer] = ends;
    let reader = OpenFile::new(Box::new(reader), place.clone(), flags | abi::O_RDONLY);
    let writer = OpenFile::new(Box::new(writer), place, flags | abi::O_WRONLY);
    (reader, writer)
}

/// Opens an end of a named pipe: waits until the other end is open too, unless it is opened for both.
///
/// # Errors
/// [`Errno::ENXIO`] for a writer without readers that must not wait; [`Errno::EINTR`].
pub fn open_fifo(pipe: &Arc<Pipe>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
    // The other end may be closed again before this one looks: it is enough that it was open meanwhile.
    let (end, [readers, writers]) = PipeEnd::open(pipe, opening.reads(), opening.writes());
    match (opening.reads(), opening.writes()) {
        (true, false) if !opening.nonblocking() => pipe.wait_for_writer(writers)?,
        (false, true) if opening.nonblocking() && !pipe.has_readers() => return Err(Errno::ENXIO),
        (false, true) => pipe.wait_for_reader(readers)?,
        _ => {}
    }
    Ok(Box::new(end))
}
