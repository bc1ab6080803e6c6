//! An open directory. It lists what was there when it was opened, or last rewound.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::dentry::Dentry;
use super::node::Entry;
use super::open::File;
use crate::errno::Errno;
use crate::sync::Mutex;

/// An open directory.
pub struct DirectoryFile {
    place: Arc<Dentry>,
    entries: Mutex<Option<Arc<Vec<Entry>>>>,
}

impl DirectoryFile {
    /// Opens the directory at a place.
    pub fn new(place: Arc<Dentry>) -> Self {
        Self { place, entries: Mutex::new(None) }
    }
}

impl File for DirectoryFile {
    fn entries(&self, rewind: bool) -> Result<Arc<Vec<Entry>>, Errno> {
        let known = self.entries.lock().clone();
        if let Some(entries) = known.filter(|_| !rewind) {
            return Ok(entries);
        }
        let entries = Arc::new(self.place.node().directory()?.list()?);
        let old = self.entries.lock().replace(entries.clone());
        drop(old);
        Ok(entries)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.place.node().sync()
    }
}
