//! The folder of a process, `/proc/PID`, and those of its threads.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::descriptors::DescriptorFolder;
use super::file::ProcessNode;
use super::folder::attributes_of;
use super::link::Link;
use super::mapped::MappedFolder;
use super::{FolderNode, Generated};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, Node, Target};
use crate::memory::list;
use crate::observe::{ProcessFile, Thread};
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
    Entry { name: name.as_bytes().into(), number: number(process, None, 0), kind: Kind::Directory }
}

/// The number of a node of a process, or of a thread of it: those of other nodes are smaller.
pub(super) fn number(process: &Process, thread: Thread, index: usize) -> u64 {
    let folder = match thread {
        Some(id) => u64::from(id) << 32 | 1 << 30,
        None => u64::from(process.id) << 32,
    };
    folder | 1 << 31 | index as u64
}

/// Fails unless the running process is this one, or may look at its memory and change it.
///
/// # Errors
/// [`Errno::EACCES`].
pub(super) fn check_trace(process: &Process) -> Result<(), Errno> {
    sched::current_ref().process.may_trace(process).then_some(()).ok_or(Errno::EACCES)
}

/// What a folder has besides the listed files. The first one has number 1.
const FIXED: [(&str, Kind); 6] = [
    ("fd", Kind::Directory),
    ("task", Kind::Directory),
    ("map_files", Kind::Directory),
    ("cwd", Kind::Symlink),
    ("exe", Kind::Symlink),
    ("root", Kind::Symlink),
];

/// The folder of a process, or of one of its threads, which looks alike but has no threads of its own.
pub(super) struct ProcessFolder {
    fs: Generated,
    process: Arc<Process>,
    files: &'static [ProcessFile],
    /// The thread, unless it is the process's.
    thread: Thread,
}

impl ProcessFolder {
    pub(super) fn new(fs: Generated, process: Arc<Process>, files: &'static [ProcessFile]) -> Self {
        Self { fs, process, files, thread: None }
    }

    /// What it contains, with the place of each, from 1 on, that makes its number.
    fn contents(&self) -> impl Iterator<Item = (usize, (&'static str, Kind))> {
        let files = self.files.iter().map(|file| (file.name, Kind::Regular));
        let all = FIXED.into_iter().chain(files).zip(1..).map(|(content, at)| (at, content));
        all.filter(|(_, (name, _))| self.thread.is_none() || !["task", "map_files"].contains(name))
    }

    fn node(&self, name: &str) -> Result<Arc<dyn Node>, Errno> {
        let (at, _) = self.contents().find(|(_, content)| content.0 == name).ok_or(Errno::ENOENT)?;
        let (number, process) = (number(&self.process, self.thread, at), self.process.clone());
        let places = || self.process.fs.lock().as_ref().map(|fs| fs.places()).ok_or(Errno::ENOENT);
        let target = match name {
            "fd" => return Ok(Arc::new(DescriptorFolder::new(self.fs, number, process, self.thread))),
            "task" => {
                return Ok(Arc::new(Threads { fs: self.fs, number, process, files: self.files }));
            }
            "map_files" => return Ok(Arc::new(MappedFolder::new(self.fs, number, process))),
            "cwd" => Target::Place(places()?.current),
            "root" => Target::Place(places()?.root),
            "exe" => Target::Path(process.identity.lock().executable.clone()),
            _ => {
                let file = &self.files[at - 1 - FIXED.len()];
                return Ok(Arc::new(ProcessNode::new(self.fs, number, (process, self.thread), file)));
            }
        };
        Ok(Arc::new(Link::of(process, self.fs, number, 0o777, target)))
    }
}

impl FolderNode for ProcessFolder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, number(&self.process, self.thread, 0), Kind::Directory, 0o555)
    }
}

impl Directory for ProcessFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let node = self.node(str::from_utf8(name).map_err(|_| Errno::ENOENT)?)?;
        Ok(Dentry::new(here, name.into(), node))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entry = |(at, (name, kind)): (usize, (&str, Kind))| Entry {
            name: name.as_bytes().into(),
            number: number(&self.process, self.thread, at),
            kind,
        };
        list::collect(self.contents().map(entry))
    }
}

/// The threads of a process.
struct Threads {
    fs: Generated,
    number: u64,
    process: Arc<Process>,
    files: &'static [ProcessFile],
}

impl FolderNode for Threads {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, self.number, Kind::Directory, 0o555)
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
            number: number(&self.process, Some(id), 0),
            kind: Kind::Directory,
        };
        list::collect(threads.iter().map(|thread| entry(thread.id())))
    }
}
