//! Folders with a fixed list of entries, and the root of `/proc`, which has the processes too.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::{RwLock, RwLockReadGuard};

use super::link::Link;
use super::process::{self, ProcessFolder};
use super::{FolderNode, Generated, Tree};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, Node};
use crate::memory::list;
use crate::observe::ProcessFile;
use crate::task::process::Process;
use crate::task::table;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number for a node that always exists.
pub(super) fn take_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What `stat` shows of a node of a process, which belongs to the process's user.
pub(super) fn attributes_of(
    process: &Process,
    fs: Generated,
    number: u64,
    kind: Kind,
    mode: u32,
) -> Attributes {
    let owner = process.credentials();
    Attributes { uid: owner.user(), gid: owner.group(), ..Attributes::of_kernel(fs.fs, number, kind, mode) }
}

/// What stands in a folder, by name.
type Entries = BTreeMap<Arc<[u8]>, Arc<dyn Node>>;
/// A link and what makes its target.
type NamedLink = (&'static str, fn() -> Vec<u8>);

/// A folder.
pub struct Folder {
    fs: Generated,
    number: u64,
    entries: RwLock<Entries>,
    /// In the root of `/proc`: the files of each process's folder.
    processes: Option<&'static [ProcessFile]>,
    /// In a root: what is below it.
    tree: Option<Tree>,
}

impl Folder {
    fn with(fs: Generated, tree: Option<Tree>, processes: Option<&'static [ProcessFile]>) -> Arc<Self> {
        Arc::new(Self { fs, number: take_number(), entries: RwLock::default(), processes, tree })
    }

    /// The root of a tree without processes.
    pub(super) fn root(fs: Generated, tree: Tree) -> Arc<Self> {
        Self::with(fs, Some(tree), None)
    }

    /// The root of `/proc`.
    pub(super) fn of_processes(fs: Generated, tree: Tree, files: &'static [ProcessFile]) -> Arc<Self> {
        let folder = Self::with(fs, Some(tree), Some(files));
        let links: [NamedLink; 2] =
            [("self", process::self_path), ("thread-self", process::thread_self_path)];
        for (name, target) in links {
            folder.entries.write().insert(name.as_bytes().into(), Arc::new(Link::to_path(fs, target)));
        }
        folder
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Errno::EEXIST`].
    pub fn put(&self, name: &str, node: Arc<dyn Node>) -> Result<(), Errno> {
        let old = self.entries.write().insert(name.as_bytes().into(), node);
        if old.is_some() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// The folder at a path below, whose folders are made if they are missing; `None` for the empty path.
    pub(super) fn create_folders(&self, path: &str) -> Result<Option<Arc<Folder>>, Errno> {
        let mut at: Option<Arc<Folder>> = None;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let above = at.as_deref().unwrap_or(self);
            let found = above.entries.read().get(name.as_bytes()).cloned();
            at = Some(match found {
                Some(node) => {
                    let any: Arc<dyn core::any::Any + Send + Sync> = node;
                    any.downcast().map_err(|_| Errno::ENOTDIR)?
                }
                None => {
                    let new = Self::with(self.fs, None, None);
                    above.put(name, new.clone())?;
                    new
                }
            });
        }
        Ok(at)
    }

    /// What stands in the folder. In a root it is made by the first caller.
    fn entries(&self) -> Result<RwLockReadGuard<'_, Entries>, Errno> {
        self.tree.as_ref().map_or(Ok(()), |tree| tree.make(self))?;
        Ok(self.entries.read())
    }

    fn process(&self, name: &[u8]) -> Option<Arc<dyn Node>> {
        let files = self.processes?;
        let digits = str::from_utf8(name).ok().filter(|digits| !digits.starts_with(['+', '0']))?;
        let process = table::process(digits.parse().ok()?)?;
        Some(Arc::new(ProcessFolder::new(self.fs, process, files)))
    }
}

impl FolderNode for Folder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        Attributes::of_kernel(self.fs.fs, self.number, Kind::Directory, 0o555)
    }
}

impl Directory for Folder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let fixed = self.entries()?.get(name).cloned();
        let node = fixed.or_else(|| self.process(name)).ok_or(Errno::ENOENT)?;
        Ok(Dentry::new(here, name.into(), node))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entry = |name: &Arc<[u8]>, node: &Arc<dyn Node>| {
            let attributes = node.attributes();
            Entry { name: name.clone(), number: attributes.number, kind: attributes.kind }
        };
        let mut all = list::collect(self.entries()?.iter().map(|(name, node)| entry(name, node)))?;
        if self.processes.is_some() {
            list::append(&mut all, table::processes().map(|process| process::entry(&process)))?;
        }
        Ok(all)
    }
}
