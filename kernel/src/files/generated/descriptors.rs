//! The descriptors of a process, as links: `/proc/PID/fd`.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::folder::attributes_of;
use super::link::Link;
use super::process::number;
use super::{FolderNode, Generated};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, Target};
use crate::files::table::FileTable;
use crate::memory::list;
use crate::observe::Thread;
use crate::task::process::Process;

/// The numbers of links begin here.
const FIRST: usize = 1 << 20;

pub(super) struct DescriptorFolder {
    fs: Generated,
    number: u64,
    process: Arc<Process>,
    /// In the folder of a thread.
    thread: Thread,
}

impl DescriptorFolder {
    pub(super) fn new(fs: Generated, number: u64, process: Arc<Process>, thread: Thread) -> Self {
        Self { fs, number, process, thread }
    }

    fn table(&self) -> Arc<FileTable> {
        self.process.files.lock().clone()
    }
}

impl FolderNode for DescriptorFolder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, self.number, Kind::Directory, 0o500)
    }
}

impl Directory for DescriptorFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let number_of = |name: &[u8]| str::from_utf8(name).ok()?.parse::<u32>().ok();
        // Neither a sign nor zeroes stand before it.
        let is_exact = |digits: &u32| format!("{digits}").as_bytes() == name;
        let digits = number_of(name).filter(is_exact).ok_or(Errno::ENOENT)?;
        let file = self.table().get(digits.into()).map_err(|_| Errno::ENOENT)?;
        let mode = if file.can_read() { 0o500 } else { 0 } | if file.can_write() { 0o300 } else { 0 };
        let place = Target::Place(file.place().clone());
        let number = number(&self.process, self.thread, FIRST + digits as usize);
        let link = Link::of(self.process.clone(), self.fs, number, mode, place);
        Ok(Dentry::new(here, name.into(), Arc::new(link)))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entry = |descriptor: u64| Entry {
            name: format!("{descriptor}").as_bytes().into(),
            number: number(&self.process, self.thread, FIRST + descriptor as usize),
            kind: Kind::Symlink,
        };
        list::collect(self.table().list()?.into_iter().map(entry))
    }
}
