//! Symbolic links in `/proc`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Generated;
use super::folder::take_number;
use super::process::check_trace;
use crate::errno::Errno;
use crate::files::node::{Attributes, FsInfo, Kind, Node, Target};
use crate::files::open::{File, Opening};
use crate::task::process::Process;

/// A link.
pub(super) struct Link {
    fs: Generated,
    number: u64,
    mode: u32,
    to: To,
}

enum To {
    Path(fn() -> Vec<u8>),
    /// For those that may trace the process.
    Of(Arc<Process>, Target),
}

impl Link {
    /// A link to a path that depends on the reader.
    pub(super) fn to_path(fs: Generated, path: fn() -> Vec<u8>) -> Self {
        Self { fs, number: take_number(), mode: 0o777, to: To::Path(path) }
    }

    /// A link of a process to a path, or to a place, whatever its path is.
    pub(super) fn of(process: Arc<Process>, fs: Generated, number: u64, mode: u32, target: Target) -> Self {
        Self { fs, number, mode, to: To::Of(process, target) }
    }
}

impl Node for Link {
    fn attributes(&self) -> Attributes {
        let size = match self.to {
            To::Of(_, Target::Place(_)) => 64,
            To::Path(_) | To::Of(_, Target::Path(_)) => 0,
        };
        Attributes { size, ..Attributes::of_kernel(self.fs.fs, self.number, Kind::Symlink, self.mode) }
    }

    fn open(self: Arc<Self>, _opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Err(Errno::ELOOP)
    }

    fn target(&self) -> Result<Target, Errno> {
        match &self.to {
            To::Path(path) => Ok(Target::Path(path())),
            // It leads past directories that the caller may not be allowed to search.
            To::Of(process, target) => check_trace(process).map(|()| target.clone()),
        }
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}
