//! Names: an entry of a directory, with the way up to the root.
//!
//! A dentry keeps its parent alive, so an open file knows its path, also after the file was removed. A directory of
//! the tmpfs keeps its entries; this circle is opened when an entry is removed, and when a file system is dismantled
//! at the end.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::node::Node;
use crate::errno::Errno;
use crate::memory::list;
use crate::sync::Mutex;

/// A name of a node.
pub struct Dentry {
    place: Mutex<Place>,
    node: Arc<dyn Node>,
    /// The root of the file system that is mounted here.
    mounted: Mutex<Option<Arc<Dentry>>>,
}

struct Place {
    parent: Option<Arc<Dentry>>,
    name: Arc<[u8]>,
    removed: bool,
}

impl Dentry {
    /// An entry of the directory `parent`.
    pub fn new(parent: &Arc<Dentry>, name: Arc<[u8]>, node: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self::at(Some(parent.clone()), name, false, node))
    }

    /// The root of everything.
    pub fn root(node: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self::at(None, Arc::from(*b"/"), false, node))
    }

    /// A node that has no place in the tree, with a name for `/proc/PID/fd`.
    pub fn unnamed(name: &[u8], node: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self::at(None, Arc::from(name), false, node))
    }

    fn at(parent: Option<Arc<Dentry>>, name: Arc<[u8]>, removed: bool, node: Arc<dyn Node>) -> Self {
        Self { place: Mutex::new(Place { parent, name, removed }), node, mounted: Mutex::new(None) }
    }

    /// The node.
    pub fn node(&self) -> &Arc<dyn Node> {
        &self.node
    }

    /// Its last name.
    pub fn name(&self) -> Arc<[u8]> {
        self.place.lock().name.clone()
    }

    /// The directory that it is or was in.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.place.lock().parent.clone()
    }

    /// Whether its name was removed.
    pub fn is_removed(&self) -> bool {
        self.place.lock().removed
    }

    /// Its name was removed.
    pub fn set_removed(&self) {
        self.place.lock().removed = true;
    }

    /// It has another name now.
    pub fn set_place(&self, parent: &Arc<Dentry>, name: Arc<[u8]>) {
        let mut place = self.place.lock();
        let old = (place.parent.replace(parent.clone()), core::mem::replace(&mut place.name, name));
        drop(place);
        drop(old);
    }

    /// Mounts a file system over this directory, where none is.
    pub fn mount(&self, root: Arc<dyn Node>) -> Arc<Dentry> {
        let (parent, name) = (self.parent(), self.name());
        let root = Arc::new(Self::at(parent, name, false, root));
        self.put_mounted(root.clone());
        root
    }

    /// Mounts a root again that was taken off this directory.
    pub fn put_mounted(&self, root: Arc<Dentry>) {
        *self.mounted.lock() = Some(root);
    }

    /// Takes off what is mounted here.
    pub fn take_mounted(&self) -> Option<Arc<Dentry>> {
        self.mounted.lock().take()
    }

    /// Whether a file system is mounted here.
    pub fn is_mount_point(&self) -> bool {
        self.mounted.lock().is_some()
    }

    /// The root of what is mounted here last, or this.
    pub fn covered(self: Arc<Self>) -> Arc<Dentry> {
        let mounted = self.mounted.lock().clone();
        match mounted {
            Some(root) => root.covered(),
            None => self,
        }
    }

    /// Whether this is `other`, or lies below it.
    pub fn is_below(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut at = Some(self.clone());
        while let Some(here) = at {
            if Arc::ptr_eq(&here, other) {
                return true;
            }
            at = here.parent();
        }
        false
    }

    /// The path from the root of everything, as `/proc` shows it.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]: a program may nest directories as deep as it likes.
    pub fn path(self: &Arc<Self>) -> Result<Vec<u8>, Errno> {
        let path = self.path_below(None)?;
        if self.is_removed() { list::concat([&path, b" (deleted)".as_slice()].into_iter()) } else { Ok(path) }
    }

    /// The path from `root`, or from the top where that is not above.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub fn path_below(self: &Arc<Self>, root: Option<&Arc<Dentry>>) -> Result<Vec<u8>, Errno> {
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut at = self.clone();
        while !root.is_some_and(|root| Arc::ptr_eq(root, &at)) {
            let Some(parent) = at.parent() else { break };
            list::append(&mut names, [at.name()])?;
            at = parent;
        }
        if names.is_empty() {
            // The root, or a node without a place.
            return Ok(if root.is_some() { b"/".to_vec() } else { at.name().to_vec() });
        }
        list::concat(names.iter().rev().flat_map(|name| [b"/".as_slice(), name]))
    }
}

impl Drop for Dentry {
    /// Takes the way up apart in a loop: a program may have nested directories deeper than the kernel's stack.
    fn drop(&mut self) {
        let mut parent = self.place.get_mut().parent.take();
        while let Some(mut above) = parent.and_then(Arc::into_inner) {
            parent = above.place.get_mut().parent.take();
        }
    }
}
