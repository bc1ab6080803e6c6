//! Nodes of a file system (inodes), whichever it is.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general as abi;
use quire::limits::FRAME_SIZE;

use super::claim::Claims;
use super::dentry::Dentry;
use super::open::{File, Opening};
use crate::errno::Errno;
use crate::task::credentials::{self, Right};
use crate::time;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
    /// None of these: what a descriptor stands for otherwise.
    Anonymous,
}

impl Kind {
    /// The bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Directory => abi::S_IFDIR,
            Self::Regular => abi::S_IFREG,
            Self::Symlink => abi::S_IFLNK,
            Self::Fifo => abi::S_IFIFO,
            Self::Socket => abi::S_IFSOCK,
            Self::CharDevice(_) => abi::S_IFCHR,
            Self::BlockDevice(_) => abi::S_IFBLK,
            Self::Anonymous => 0,
        }
    }

    /// The kind with these bits of a mode; devices have this number.
    pub fn of_mode(mode: u32, device: u64) -> Option<Self> {
        Some(match mode & abi::S_IFMT {
            abi::S_IFDIR => Self::Directory,
            abi::S_IFREG => Self::Regular,
            abi::S_IFLNK => Self::Symlink,
            abi::S_IFIFO => Self::Fifo,
            abi::S_IFSOCK => Self::Socket,
            abi::S_IFCHR => Self::CharDevice(device),
            abi::S_IFBLK => Self::BlockDevice(device),
            _ => return None,
        })
    }

    /// The number of a device; 0 for others.
    pub fn device(self) -> u64 {
        match self {
            Self::CharDevice(number) | Self::BlockDevice(number) => number,
            _ => 0,
        }
    }
}

/// What `stat` shows. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// The file system's number.
    pub fs: u64,
    /// The node's number.
    pub number: u64,
    /// What it is.
    pub kind: Kind,
    /// Permissions, and the bits for set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// The unit in which it is best read.
    pub unit: u64,
    /// What it takes, in units of 512 bytes.
    pub blocks: u64,
    /// The last read.
    pub accessed: u64,
    /// The last write.
    pub modified: u64,
    /// The last change of contents or attributes.
    pub changed: u64,
    /// When it was made.
    pub created: u64,
}

impl Attributes {
    /// Those of a node of the kernel's own that has no contents, as if it had just been made.
    pub fn of_kernel(fs: u64, number: u64, kind: Kind, mode: u32) -> Self {
        let now = time::realtime_ns();
        Self {
            fs,
            number,
            kind,
            mode,
            links: if kind == Kind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size: 0,
            unit: FRAME_SIZE,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        }
    }
}

/// A change of attributes; what is `None` stays.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    /// See [`Attributes::mode`].
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The last read.
    pub accessed: Option<u64>,
    /// The last write.
    pub modified: Option<u64>,
    /// What becomes of set-user-ID and set-group-ID.
    pub set_ids: SetIds,
}

/// What becomes of the bits with which a program runs as its file's owner or group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SetIds {
    /// They stay.
    #[default]
    Keep,
    /// They go. Set-group-ID stays where the group cannot execute the file: it means something else there.
    DropOfPrograms,
    /// Both go.
    Drop,
}

impl Change {
    /// A change that takes set-user-ID and set-group-ID away, by the running process, from a file of this group. What
    /// is no program's stays for members of the group.
    pub fn dropping_set_ids(group: u32) -> Self {
        let is_kept = credentials::own().may_set_group(group);
        let set_ids = if is_kept { SetIds::DropOfPrograms } else { SetIds::Drop };
        Self { set_ids, ..Self::default() }
    }

    /// The mode after the change.
    pub fn mode_of(&self, old: u32) -> u32 {
        let mode = self.mode.unwrap_or(old);
        match self.set_ids {
            SetIds::Keep => mode,
            SetIds::DropOfPrograms if mode & abi::S_IXGRP == 0 => mode & !abi::S_ISUID,
            SetIds::DropOfPrograms | SetIds::Drop => mode & !(abi::S_ISUID | abi::S_ISGID),
        }
    }
}

/// Where a symbolic link leads.
#[derive(Clone)]
pub enum Target {
    /// To this path.
    Path(Vec<u8>),
    /// To this place, whatever its path (links in `/proc`).
    Place(Arc<Dentry>),
}

/// What `statfs` shows.
#[derive(Clone, Copy, Debug)]
pub struct FsInfo {
    /// The magic number of its type.
    pub magic: u64,
    /// The size of its pages.
    pub page: u64,
    /// How many pages it has.
    pub blocks: u64,
    /// How many of them are free.
    pub free: u64,
    /// How many nodes it has.
    pub nodes: u64,
    /// How many of them are free.
    pub free_nodes: u64,
    /// Its number, as in [`Attributes::fs`].
    pub fs: u64,
}

/// A node to make.
pub struct New {
    /// What it is.
    pub kind: NewKind,
    /// Its permissions, without those that the umask takes.
    pub mode: u32,
    /// Its user and its group.
    pub owner: (u32, u32),
}

impl New {
    /// One of the running process, wherever it is made.
    pub fn own(kind: NewKind, mode: u32) -> Self {
        Self { kind, mode, owner: credentials::owner() }
    }

    /// One that the running process makes in a directory. With set-group-ID the directory passes on its group, and the bit
    /// to directories. Programs get it from members of the group only.
    pub fn within(directory: &Attributes, kind: NewKind, mode: u32) -> Self {
        let mut new = Self::own(kind, mode);
        if directory.mode & abi::S_ISGID == 0 {
            return new;
        }
        new.owner.1 = directory.gid;
        const PROGRAM: u32 = abi::S_ISGID | abi::S_IXGRP;
        if matches!(new.kind, NewKind::Other(Kind::Directory)) {
            new.mode |= abi::S_ISGID;
        } else if mode & PROGRAM == PROGRAM && !credentials::own().may_set_group(directory.gid) {
            new.mode &= !abi::S_ISGID;
        }
        new
    }
}

/// What to make.
pub enum NewKind {
    /// A symbolic link to this path.
    Symlink(Box<[u8]>),
    /// Anything else.
    Other(Kind),
}

/// An entry of a directory.
pub struct Entry {
    /// Its name.
    pub name: Arc<[u8]>,
    /// The node's number.
    pub number: u64,
    /// What it is.
    pub kind: Kind,
}

/// A node of a file system.
pub trait Node: Any + Send + Sync {
    /// What `stat` shows.
    fn attributes(&self) -> Attributes;

    /// Changes attributes.
    ///
    /// # Errors
    /// [`Errno::EPERM`] where this is not possible.
    fn change(&self, _change: &Change) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Opens it. The caller has checked that this kind of node can be opened so, and truncates it later.
    ///
    /// # Errors
    /// Depends on the kind of node.
    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno>;

    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for other nodes.
    fn truncate(&self, _bytes: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes its contents to the disk, if it is on one, with all that leads to them.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// How a regular file is in use.
    fn claims(&self) -> Option<&Claims> {
        None
    }

    /// The node as a directory.
    ///
    /// # Errors
    /// [`Errno::ENOTDIR`].
    fn directory(&self) -> Result<&dyn Directory, Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for other nodes.
    fn target(&self) -> Result<Target, Errno> {
        Err(Errno::EINVAL)
    }

    /// What `readlink` shows; for links in `/proc` not where [`Self::target`] leads.
    ///
    /// # Errors
    /// As [`Self::target`].
    fn link_text(&self) -> Result<Vec<u8>, Errno> {
        match self.target()? {
            Target::Path(path) => Ok(path),
            Target::Place(place) => place.path(),
        }
    }

    /// What `statfs` shows of its file system.
    fn fs_info(&self) -> FsInfo;
}

impl dyn Node {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.attributes().kind
    }

    /// Takes set-user-ID and set-group-ID from a regular file whose contents the running process has changed, unless it
    /// has the right to keep them.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub fn drop_set_ids(&self) -> Result<(), Errno> {
        if credentials::check(Right::KeepSetId).is_ok() {
            return Ok(());
        }
        let file = self.attributes();
        if file.kind != Kind::Regular || file.mode & (abi::S_ISUID | abi::S_ISGID) == 0 {
            return Ok(());
        }
        self.change(&Change::dropping_set_ids(file.gid))
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.directory().is_ok()
    }
}

/// A directory. `here` is the place at which it was found.
pub trait Directory {
    /// The entry with this name.
    ///
    /// # Errors
    /// [`Errno::ENOENT`].
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno>;

    /// All entries but `.` and `..`.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    fn list(&self) -> Result<Vec<Entry>, Errno>;

    /// Makes a node with a name that does not exist.
    ///
    /// # Errors
    /// [`Errno::EEXIST`]; [`Errno::EPERM`] where this is not possible.
    fn create(&self, _here: &Arc<Dentry>, _name: &[u8], _new: New) -> Result<Arc<Dentry>, Errno> {
        Err(Errno::EPERM)
    }

    /// Makes a regular file without a name.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] where this is not possible.
    fn create_unnamed(&self, _new: New, _linkable: bool) -> Result<Arc<dyn Node>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Gives a node one more name.
    ///
    /// # Errors
    /// [`Errno::EEXIST`]; [`Errno::EXDEV`] for a node of another file system.
    fn link(&self, _here: &Arc<Dentry>, _name: &[u8], _node: &Arc<dyn Node>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Removes the name that leads to an entry; with `directory` that of an empty directory, otherwise that of anything
    /// else.
    ///
    /// # Errors
    /// [`Errno::ESTALE`] if the name no longer leads to this entry, so that the caller looks it up again;
    /// [`Errno::EISDIR`], [`Errno::ENOTDIR`], [`Errno::ENOTEMPTY`].
    fn remove(&self, _name: &[u8], _entry: &Arc<Dentry>, _directory: bool) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Gives the entry to which a name of this directory leads another name, here or in another directory.
    ///
    /// # Errors
    /// [`Errno::ESTALE`] as [`Self::remove`]; otherwise as `rename(2)`.
    fn rename(
        &self,
        _old: (&[u8], &Arc<Dentry>),
        _new: (&Arc<Dentry>, &[u8]),
        _how: Rename,
    ) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

/// What becomes of an entry that has the new name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// It makes the call fail.
    Keep,
    /// It gets the old name.
    Exchange,
}
