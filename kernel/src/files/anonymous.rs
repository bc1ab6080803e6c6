//! Nodes without a place in a file system: pipes, sockets, and what descriptors stand for otherwise.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::limits::FRAME_SIZE;

use super::dentry::Dentry;
use super::node::{Attributes, FsInfo, Kind, Node};
use super::open::{File, OpenFile, Opening};
use crate::errno::Errno;

/// The number of their file system.
const FS: u64 = 2;
/// `ANON_INODE_FS_MAGIC`.
const MAGIC: u64 = 0x0904_1934;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number for a new node.
pub fn take_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What `stat` shows of such a node.
pub fn attributes(number: u64, kind: Kind) -> Attributes {
    Attributes::of_kernel(FS, number, kind, 0o600)
}

/// What `statfs` shows of their file system.
pub fn fs_info() -> FsInfo {
    FsInfo { magic: MAGIC, page: FRAME_SIZE, blocks: 0, free: 0, nodes: 0, free_nodes: 0, fs: FS }
}

struct AnonymousNode {
    number: u64,
    kind: Kind,
}

impl Node for AnonymousNode {
    fn attributes(&self) -> Attributes {
        attributes(self.number, self.kind)
    }

    /// It cannot be opened once more through `/proc/PID/fd`.
    fn open(self: Arc<Self>, _opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Err(Errno::ENXIO)
    }

    fn fs_info(&self) -> FsInfo {
        fs_info()
    }
}

/// Opens a file that has no other place, with its name for `/proc/PID/fd`, such as `anon_inode:[eventfd]`.
pub fn open(file: Box<dyn File>, name: &str, flags: u32) -> Arc<OpenFile> {
    let node = AnonymousNode { number: take_number(), kind: Kind::Anonymous };
    OpenFile::new(file, Dentry::unnamed(name.as_bytes(), Arc::new(node)), flags)
}

/// Opens a socket, whose name has the node's number.
pub fn open_socket(socket: Box<dyn File>, flags: u32) -> Arc<OpenFile> {
    let node = AnonymousNode { number: take_number(), kind: Kind::Socket };
    let name = alloc::format!("socket:[{}]", node.number);
    OpenFile::new(socket, Dentry::unnamed(name.as_bytes(), Arc::new(node)), flags)
}
