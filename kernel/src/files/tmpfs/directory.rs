//! Directories of the tmpfs: entries are found, made, linked and removed.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use spin::RwLock;

use super::inode::Inode;
use super::rename;
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Directory, Entry, Kind, New, Node, Rename};
use crate::memory::list;

/// The most names of one node.
const MOST_LINKS: u32 = 32000;

/// The entries of a directory, by name.
#[derive(Default)]
pub(super) struct Entries(RwLock<BTreeMap<Arc<[u8]>, Arc<Dentry>>>);

impl Entries {
    pub(super) fn find(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        self.0.read().get(name).cloned()
    }

    /// Adds an entry; one with the same name goes back to the caller.
    pub(super) fn put(&self, name: Arc<[u8]>, entry: Arc<Dentry>) -> Option<Arc<Dentry>> {
        self.0.write().insert(name, entry)
    }

    pub(super) fn take(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        self.0.write().remove(name)
    }

    pub(super) fn take_first(&self) -> Option<Arc<Dentry>> {
        self.0.write().pop_first().map(|(_, entry)| entry)
    }

    pub(super) fn all(&self) -> Result<Vec<Arc<Dentry>>, Errno> {
        list::collect(self.0.read().values().cloned())
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().len()
    }

    /// Fails unless a name leads to this very entry. Under the lock of the tree.
    pub(super) fn check(&self, name: &[u8], entry: &Arc<Dentry>) -> Result<(), Errno> {
        let leads_there = self.find(name).is_some_and(|found| Arc::ptr_eq(&found, entry));
        if leads_there { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

impl Inode {
    /// Fails for a directory that was removed: nothing can be made there. Under the lock of the tree.
    pub(super) fn check_alive(&self) -> Result<(), Errno> {
        if self.meta.lock().links == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// A node has one name more or less, in a directory.
    pub(super) fn count_name(&self, directory: &Inode, more: bool) {
        let mut meta = self.meta.lock();
        meta.links = match (self.entries().is_ok(), more) {
            // Its links are 2 while it has its one name and no directory in it, and 0 later.
            (true, true) => 2,
            (true, false) => 0,
            (false, _) => changed(meta.links, more),
        };
        drop(meta);
        self.note_change();
        directory.count_entry(self, more);
    }

    /// A directory has this entry more or less. If the entry is a directory, its `..` is a link to this one.
    pub(super) fn count_entry(&self, entry: &Inode, more: bool) {
        if entry.entries().is_ok() {
            let mut meta = self.meta.lock();
            meta.links = changed(meta.links, more);
        }
        self.note_write();
    }

    /// Uses up the one name that a file without names may get. Under the lock of the tree, before it gets a name.
    fn take_link(&self) -> Result<(), Errno> {
        let mut meta = self.meta.lock();
        if meta.links == 0 && !meta.linkable {
            return Err(Errno::ENOENT);
        }
        if meta.links >= MOST_LINKS {
            return Err(Errno::EMLINK);
        }
        meta.linkable = false;
        Ok(())
    }

    /// Adds a node that has no name yet, or with `links` one more.
    fn add(
        &self,
        here: &Arc<Dentry>,
        name: &[u8],
        node: Arc<Inode>,
        links: bool,
    ) -> Result<Arc<Dentry>, Errno> {
        let _tree = self.fs.tree.lock();
        self.check_alive()?;
        let entries = self.entries()?;
        if entries.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        if links {
            node.take_link()?;
        }
        let name: Arc<[u8]> = Arc::from(name);
        let entry = Dentry::new(here, name.clone(), node.clone());
        entries.put(name, entry.clone());
        node.count_name(self, true);
        Ok(entry)
    }
}

impl Directory for Inode {
    fn find(&self, _here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.entries()?.find(name).ok_or(Errno::ENOENT)
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entries = self.entries()?.0.read();
        list::collect(entries.iter().map(|(name, entry)| {
            let attributes = entry.node().attributes();
            Entry { name: name.clone(), number: attributes.number, kind: attributes.kind }
        }))
    }

    fn create(&self, here: &Arc<Dentry>, name: &[u8], new: New) -> Result<Arc<Dentry>, Errno> {
        self.add(here, name, Inode::new(&self.fs, new)?, false)
    }

    fn create_unnamed(&self, new: New, linkable: bool) -> Result<Arc<dyn Node>, Errno> {
        self.check_alive()?;
        let node = Inode::new(&self.fs, new)?;
        node.meta.lock().linkable = linkable;
        Ok(node)
    }

    fn link(&self, here: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Node>) -> Result<(), Errno> {
        let inode =
            Inode::shared(node).filter(|inode| Arc::ptr_eq(&inode.fs, &self.fs)).ok_or(Errno::EXDEV)?;
        if inode.entries().is_ok() {
            return Err(Errno::EPERM);
        }
        self.add(here, name, inode, true).map(drop)
    }

    fn remove(&self, name: &[u8], entry: &Arc<Dentry>, directory: bool) -> Result<(), Errno> {
        let tree = self.fs.tree.lock();
        let entries = self.entries()?;
        entries.check(name, entry)?;
        let inode = Inode::of(entry.node()).ok_or(Errno::EBUSY)?;
        check_removable(entry, inode, directory)?;
        let removed = entries.take(name);
        entry.set_removed();
        inode.count_name(self, false);
        drop(tree);
        // The node may go with its name, and with it the pages of a file.
        drop(removed);
        Ok(())
    }

    fn rename(
        &self,
        old: (&[u8], &Arc<Dentry>),
        new: (&Arc<Dentry>, &[u8]),
        how: Rename,
    ) -> Result<(), Errno> {
        rename::rename(self, old, new, how)
    }
}

/// A count of links with one more or less.
fn changed(links: u32, more: bool) -> u32 {
    if more { links + 1 } else { links.saturating_sub(1) }
}

/// Fails for an entry that must not go. Under the lock of the tree.
pub(super) fn check_removable(entry: &Dentry, inode: &Inode, directory: bool) -> Result<(), Errno> {
    if entry.is_mount_point() {
        return Err(Errno::EBUSY);
    }
    match (inode.entries(), directory) {
        (Ok(_), false) => Err(Errno::EISDIR),
        (Err(_), true) => Err(Errno::ENOTDIR),
        (Ok(entries), true) if entries.len() > 0 => Err(Errno::ENOTEMPTY),
        _ => Ok(()),
    }
}

/// Whether the node at an entry is a directory.
pub(super) fn is_directory(entry: &Dentry) -> bool {
    entry.node().kind() == Kind::Directory
}
