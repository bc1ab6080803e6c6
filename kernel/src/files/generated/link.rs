//! Symbolic links in `/proc`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Generated;
use super::folder::{attributes, take_number};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, FsInfo, Kind, Node, Target};
use crate::files::open::{File, Opening};

/// A link.
pub(super) struct Link {
    fs: Generated,
    number: u64,
    mode: u32,
    to: To,
}

enum To {
    Path(fn() -> Vec<u8>),
    Fixed(Vec<u8>),
    Place(Arc<Dentry>),
}

impl Link {
    /// A link to a path that depends on the reader.
    pub(super) fn to_path(fs: Generated, path: fn() -> Vec<u8>) -> Self {
        Self { fs, number: take_number(), mode: 0o777, to: To::Path(path) }
    }

    /// A link to a path.
    pub(super) fn fixed(fs: Generated, number: u64, path: Vec<u8>) -> Self {
        Self { fs, number, mode: 0o777, to: To::Fixed(path) }
    }

    /// A link to a place, whatever its path is.
    pub(super) fn to_place(fs: Generated, number: u64, mode: u32, place: Arc<Dentry>) -> Self {
        Self { fs, number, mode, to: To::Place(place) }
    }
}

impl Node for Link {
    fn attributes(&self) -> Attributes {
        let size = match self.to {
            To::Place(_) => 64,
            To::Path(_) | To::Fixed(_) => 0,
        };
        Attributes { size, ..attributes(self.fs, self.number, Kind::Symlink, self.mode) }
    }

    fn open(self: Arc<Self>, _opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Err(Errno::ELOOP)
    }

    fn target(&self) -> Result<Target, Errno> {
        Ok(match &self.to {
            To::Path(path) => Target::Path(path()),
            To::Fixed(path) => Target::Path(path.clone()),
            To::Place(place) => Target::Place(place.clone()),
        })
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}
