//! Where a process is in the tree of files: its root, its working directory, and its umask.

use alloc::sync::Arc;

use super::dentry::Dentry;
use crate::sync::Mutex;

/// What `CLONE_FS` shares.
pub struct FsContext {
    places: Mutex<Places>,
}

/// The places of a process.
#[derive(Clone)]
pub struct Places {
    /// Where its absolute paths start.
    pub root: Arc<Dentry>,
    /// Where its relative paths start.
    pub current: Arc<Dentry>,
    /// The permissions that new files do not get.
    pub umask: u32,
}

/// The umask of the first process, as in Linux.
const UMASK: u32 = 0o022;

impl FsContext {
    /// The context of the first process: it is in the root.
    pub fn first(root: Arc<Dentry>) -> Arc<Self> {
        Arc::new(Self { places: Mutex::new(Places { root: root.clone(), current: root, umask: UMASK }) })
    }

    /// A context of its own, with the same places.
    pub fn copy(&self) -> Arc<Self> {
        Arc::new(Self { places: Mutex::new(self.places()) })
    }

    /// The places now.
    pub fn places(&self) -> Places {
        self.places.lock().clone()
    }

    /// Changes the working directory.
    pub fn set_current(&self, place: Arc<Dentry>) {
        let old = core::mem::replace(&mut self.places.lock().current, place);
        drop(old);
    }

    /// Changes the root.
    pub fn set_root(&self, place: Arc<Dentry>) {
        let old = core::mem::replace(&mut self.places.lock().root, place);
        drop(old);
    }

    /// Changes the umask, and returns the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        core::mem::replace(&mut self.places.lock().umask, umask)
    }
}
