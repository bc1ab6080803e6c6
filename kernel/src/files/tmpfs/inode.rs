//! A node of the tmpfs.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;

use super::TmpFs;
use super::body::{Body, Contents};
use super::directory::Entries;
use super::regular::RegularFile;
use crate::errno::Errno;
use crate::files::claim::Claims;
use crate::files::dentry::Dentry;
use crate::files::directory_file::DirectoryFile;
use crate::files::node::{Attributes, Change, Directory, FsInfo, Kind, New, NewKind, Node, Target};
use crate::files::open::{File, Opening};
use crate::files::pipe::{self, Pipe};
use crate::files::{special, stored};
use crate::sync::Mutex;
use crate::task::credentials;
use crate::time;

/// A node.
pub struct Inode {
    pub(super) fs: Arc<TmpFs>,
    number: u64,
    pub(super) meta: Mutex<Meta>,
    content: Content,
    /// How it is in use.
    claims: Claims,
}

/// What changes of a node.
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    /// A file that was made without a name may get one.
    pub(super) linkable: bool,
    accessed: u64,
    modified: u64,
    changed: u64,
    created: u64,
}

/// What a node contains.
enum Content {
    Directory(Entries),
    Regular(Body),
    Symlink(Box<[u8]>),
    Fifo(Mutex<Weak<Pipe>>),
    Other(Kind),
}

impl Inode {
    /// A new directory, which is its own parent's second name until it has one.
    pub(super) fn directory(fs: &Arc<TmpFs>, mode: u32) -> Arc<Self> {
        Self::with(fs, Content::Directory(Entries::default()), mode, 2)
    }

    /// A regular file that has no name yet.
    pub fn regular(fs: &Arc<TmpFs>, contents: Contents, mode: u32) -> Arc<Self> {
        Self::with(fs, Content::Regular(Body::new(contents)), mode, 0)
    }

    /// The same, which may get a name.
    pub fn linkable(fs: &Arc<TmpFs>, contents: Contents, mode: u32) -> Arc<Self> {
        let node = Self::regular(fs, contents, mode);
        node.meta.lock().linkable = true;
        node
    }

    /// A node that has no name yet.
    pub(super) fn new(fs: &Arc<TmpFs>, new: New) -> Result<Arc<Self>, Errno> {
        let (content, links) = match new.kind {
            NewKind::Symlink(target) => (Content::Symlink(target), 0),
            NewKind::Other(Kind::Directory) => (Content::Directory(Entries::default()), 2),
            NewKind::Other(Kind::Regular) => (Content::Regular(fs.new_body()?), 0),
            NewKind::Other(Kind::Fifo) => (Content::Fifo(Mutex::default()), 0),
            NewKind::Other(kind) => (Content::Other(kind), 0),
        };
        let node = Self::with(fs, content, new.mode, links);
        node.restore_owner(new.owner.0, new.owner.1);
        Ok(node)
    }

    fn with(fs: &Arc<TmpFs>, content: Content, mode: u32, links: u32) -> Arc<Self> {
        let now = time::realtime_ns();
        let (uid, gid) = credentials::owner();
        let meta = Meta {
            mode,
            uid,
            gid,
            links,
            linkable: false,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        };
        Arc::new(Self {
            fs: fs.clone(),
            number: fs.take_number(),
            meta: Mutex::new(meta),
            content,
            claims: Claims::default(),
        })
    }

    /// The file system that it belongs to.
    pub fn fs(&self) -> &Arc<TmpFs> {
        &self.fs
    }

    /// A node as one of a tmpfs.
    pub fn of(node: &Arc<dyn Node>) -> Option<&Inode> {
        let any: &dyn Any = &**node;
        any.downcast_ref()
    }

    /// The same, as a reference of its own.
    pub fn shared(node: &Arc<dyn Node>) -> Option<Arc<Inode>> {
        let any: Arc<dyn Any + Send + Sync> = node.clone();
        any.downcast().ok()
    }

    /// The contents of a regular file.
    pub fn body(&self) -> Option<&Body> {
        match &self.content {
            Content::Regular(body) => Some(body),
            _ => None,
        }
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// [`Errno::ENOTDIR`].
    pub(super) fn entries(&self) -> Result<&Entries, Errno> {
        match &self.content {
            Content::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Takes an entry out of a directory that is about to go, if there is one.
    pub(super) fn take_entry(&self) -> Option<Arc<Dentry>> {
        self.entries().ok().and_then(Entries::take_first)
    }

    /// Its contents were read.
    pub fn note_read(&self) {
        self.meta.lock().accessed = time::realtime_ns();
    }

    /// Its contents were changed.
    pub fn note_write(&self) {
        let now = time::realtime_ns();
        let mut meta = self.meta.lock();
        (meta.modified, meta.changed) = (now, now);
    }

    /// Its attributes or names were changed.
    pub(super) fn note_change(&self) {
        self.meta.lock().changed = time::realtime_ns();
    }

    /// Sets owner, time and so on as an archive has them.
    pub fn restore(&self, uid: u32, gid: u32, modified: u64) {
        let mut meta = self.meta.lock();
        (meta.uid, meta.gid) = (uid, gid);
        (meta.accessed, meta.modified, meta.changed, meta.created) = (modified, modified, modified, modified);
    }

    /// Sets the owner of a new node.
    pub fn restore_owner(&self, uid: u32, gid: u32) {
        let mut meta = self.meta.lock();
        (meta.uid, meta.gid) = (uid, gid);
    }

    fn kind(&self) -> Kind {
        match &self.content {
            Content::Directory(_) => Kind::Directory,
            Content::Regular(_) => Kind::Regular,
            Content::Symlink(_) => Kind::Symlink,
            Content::Fifo(_) => Kind::Fifo,
            Content::Other(kind) => *kind,
        }
    }

    /// The pipe behind a named pipe, which lives as long as it is open anywhere.
    fn pipe(slot: &Mutex<Weak<Pipe>>) -> Result<Arc<Pipe>, Errno> {
        if let Some(pipe) = slot.lock().upgrade() {
            return Ok(pipe);
        }
        let new = Pipe::new();
        let mut slot = slot.lock();
        if let Some(pipe) = slot.upgrade() {
            return Ok(pipe);
        }
        *slot = Arc::downgrade(&new);
        Ok(new)
    }
}

impl Node for Inode {
    fn attributes(&self) -> Attributes {
        let (size, blocks) = match &self.content {
            Content::Regular(body) => (body.size(), body.blocks()),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Directory(entries) => (entries.len() as u64 * 20, 0),
            Content::Fifo(_) | Content::Other(_) => (0, 0),
        };
        let meta = self.meta.lock();
        Attributes {
            fs: self.fs.number,
            number: self.number,
            kind: self.kind(),
            mode: meta.mode,
            links: meta.links,
            uid: meta.uid,
            gid: meta.gid,
            size,
            unit: self.fs.unit(),
            blocks,
            accessed: meta.accessed,
            modified: meta.modified,
            changed: meta.changed,
            created: meta.created,
        }
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        let mut meta = self.meta.lock();
        meta.mode = change.mode_of(meta.mode);
        meta.uid = change.uid.unwrap_or(meta.uid);
        meta.gid = change.gid.unwrap_or(meta.gid);
        meta.accessed = change.accessed.unwrap_or(meta.accessed);
        meta.modified = change.modified.unwrap_or(meta.modified);
        meta.changed = time::realtime_ns();
        Ok(())
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        match &self.content {
            Content::Directory(_) => Ok(Box::new(DirectoryFile::new(opening.place.clone()))),
            Content::Regular(_) => Ok(Box::new(RegularFile::new(self))),
            Content::Symlink(_) => Err(Errno::ELOOP),
            Content::Fifo(slot) => pipe::open_fifo(&Self::pipe(slot)?, opening),
            Content::Other(Kind::CharDevice(number)) => special::open(*number, opening),
            Content::Other(Kind::BlockDevice(number)) => stored::open_disk(*number, opening),
            Content::Other(_) => Err(Errno::ENXIO),
        }
    }

    fn truncate(&self, bytes: u64) -> Result<(), Errno> {
        match &self.content {
            Content::Regular(body) => {
                body.truncate(bytes)?;
                self.note_write();
                Ok(())
            }
            Content::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn claims(&self) -> Option<&Claims> {
        self.body().map(|_| &self.claims)
    }

    fn directory(&self) -> Result<&dyn Directory, Errno> {
        match &self.content {
            Content::Directory(_) => Ok(self),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn target(&self) -> Result<Target, Errno> {
        match &self.content {
            Content::Symlink(target) => Ok(Target::Path(target.to_vec())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}
