//! The folder of a process, `/proc/PID`, and those of its threads.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::descriptors::DescriptorFolder;
use super::file::ProcessNode;
use super::folder::attributes_of;
use super::link::Link;
use super::{FolderNode, Generated};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, Node};
use crate::memory::list;
use crate::observe::ProcessFile;
use crate::task::process::Process;
use crate::task::sched;

/// Where `/proc/self` leads.
pub(super) fn self_path() -> Vec<u8> {
    format!("{}", sched::current().process.id).into_bytes()
}

/// Where `/proc/thread-self` leads.
pub(super) fn thread_self_path() -> Vec<u8> {
    let task = sched::current();
    format!("{}/task/{}", task.process.id, task.id()).into_bytes()
}

/// The entry of a process in `/proc`.
pub(super) fn entry(process: &Process) -> Entry {
    let name = format!("{}", process.id);
    Entry { name: name.as_bytes().into(), number: number(process, 0), kind: Kind::Directory }
}

/// The number of a node of a process: those of other nodes are smaller.
pub(super) fn number(process: &Process, index: usize) -> u64 {
    u64::from(process.id) << 32 | 1 << 31 | index as u64
}

/// What a folder has besides the listed files.
const FOLDERS: [&str; 2] = ["fd", "task"];
const LINKS: [&str; 3] = ["cwd", "exe", "root"];
/// The numbers of listed files begin here.
const FIRST_FILE: usize = 16;

/// The folder of a process, or of one of its threads, which looks alike but has no threads of its own.
pub(super) struct ProcessFolder {
    fs: Generated,
    process: Arc<Process>,
    files: &'static [ProcessFile],
    /// The thread, unless it is the process's.
    thread: Option<u32>,
}

impl ProcessFolder {
    pub(super) fn new(fs: Generated, process: Arc<Process>, files: &'static [ProcessFile]) -> Self {
        Self { fs, process, files, thread: None }
    }

    fn node(&self, name: &str) -> Result<Arc<dyn Node>, Errno> {
        let process = || self.process.clone();
        let place = |place: Option<Arc<Dentry>>| -> Result<Arc<dyn Node>, Errno> {
            Ok(Arc::new(Link::to_place(
                self.fs,
                number(&self.process, 1),
                0o777,
                place.ok_or(Errno::ENOENT)?,
            )))
        };
        let places = || self.process.fs.lock().as_ref().map(|fs| fs.places());
        Ok(match name {
            "fd" => Arc::new(DescriptorFolder::new(self.fs, process())),
            "task" if self.thread.is_none() => {
                Arc::new(Threads { fs: self.fs, process: process(), files: self.files })
            }
            "cwd" => return place(places().map(|places| places.current)),
            "root" => return place(places().map(|places| places.root)),
            "exe" => {
                let path = self.process.identity.lock().executable.clone();
                Arc::new(Link::fixed(self.fs, number(&self.process, 2), path))
            }
            name => {
                let at = self.files.iter().position(|file| file.name == name).ok_or(Errno::ENOENT)?;
                let number = number(&self.process, FIRST_FILE + at);
                Arc::new(ProcessNode::new(self.fs, number, (process(), self.thread), &self.files[at]))
            }
        })
    }
}

impl FolderNode for ProcessFolder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, number(&self.process, 0), Kind::Directory, 0o555)
    }
}

impl Directory for ProcessFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let node = self.node(str::from_utf8(name).map_err(|_| Errno::ENOENT)?)?;
        Ok(Dentry::new(here, name.into(), node))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let folders = FOLDERS.iter().filter(|name| self.thread.is_none() || **name != "task");
        let folders = folders.map(|name| (*name, Kind::Directory));
        let links = LINKS.iter().map(|name| (*name, Kind::Symlink));
        let files = self.files.iter().map(|file| (file.name, Kind::Regular));
        let entry = |(at, (name, kind)): (usize, (&str, Kind))| Entry {
            name: name.as_bytes().into(),
            number: number(&self.process, 1 + at),
            kind,
        };
        Ok(folders.chain(links).chain(files).enumerate().map(entry).collect())
    }
}

/// The threads of a process.
struct Threads {
    fs: Generated,
    process: Arc<Process>,
    files: &'static [ProcessFile],
}

impl FolderNode for Threads {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, number(&self.process, 3), Kind::Directory, 0o555)
    }
}

impl Directory for Threads {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let id: u32 = str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(Errno::ENOENT)?;
        self.process.threads.lock().iter().find(|thread| thread.id() == id).ok_or(Errno::ENOENT)?;
        let folder =
            ProcessFolder { fs: self.fs, process: self.process.clone(), files: self.files, thread: Some(id) };
        Ok(Dentry::new(here, name.into(), Arc::new(folder)))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let threads = self.process.threads.lock();
        let entry = |id: u32| Entry {
            name: format!("{id}").as_bytes().into(),
            number: u64::from(id) << 32 | 1 << 31,
            kind: Kind::Directory,
        };
        list::collect(threads.iter().map(|thread| entry(thread.id())))
    }
}
