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
use crate::files::node::{Attributes, Directory, Entry, Kind};
use crate::files::table::FileTable;
use crate::memory::list;
use crate::task::process::Process;

/// The numbers of links begin here.
const FIRST: usize = 1 << 20;

pub(super) struct DescriptorFolder {
    fs: Generated,
    process: Arc<Process>,
}

impl DescriptorFolder {
    pub(super) fn new(fs: Generated, process: Arc<Process>) -> Self {
        Self { fs, process }
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
        attributes_of(&self.process, self.fs, number(&self.process, 4), Kind::Directory, 0o500)
    }
}

impl Directory for DescriptorFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let digits =
            str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()).ok_or(Errno::ENOENT)?;
        let file = self.table().get(digits.into()).map_err(|_| Errno::ENOENT)?;
        let mode = if file.can_read() { 0o500 } else { 0 } | if file.can_write() { 0o300 } else { 0 };
        let place = file.place().clone();
        let link = Link::to_place(self.fs, number(&self.process, FIRST + digits as usize), mode, place);
        Ok(Dentry::new(here, name.into(), Arc::new(link)))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entry = |descriptor: u64| Entry {
            name: format!("{descriptor}").as_bytes().into(),
            number: number(&self.process, FIRST + descriptor as usize),
            kind: Kind::Symlink,
        };
        list::collect(self.table().list()?.into_iter().map(entry))
    }
}
