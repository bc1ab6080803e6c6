//! The files that a process maps, as links with the addresses as names: `/proc/PID/map_files`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire::limits::FRAME_SHIFT;
use quire::vm::VmaInfo;

use super::folder::attributes_of;
use super::link::Link;
use super::process::{check_trace, number};
use super::{FolderNode, Generated};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, Target};
use crate::memory::list;
use crate::memory::manager::Space;
use crate::observe::mapped_path;
use crate::task::process::Process;

/// The numbers of links begin here: behind those of descriptors.
const FIRST: usize = 1 << 28;
/// So many of them differ.
const NUMBERS: u64 = 1 << 28;

pub(super) struct MappedFolder {
    fs: Generated,
    number: u64,
    process: Arc<Process>,
}

impl MappedFolder {
    pub(super) fn new(fs: Generated, number: u64, process: Arc<Process>) -> Self {
        Self { fs, number, process }
    }

    fn space(&self) -> Result<Arc<Space>, Errno> {
        check_trace(&self.process)?;
        self.process.space_handle().ok_or(Errno::ENOENT)
    }

    fn number_of(&self, vma: &VmaInfo) -> u64 {
        number(&self.process, None, FIRST + (vma.range.start.0 >> FRAME_SHIFT) as usize % NUMBERS as usize)
    }
}

/// The two numbers of a name, without any sign or needless zero.
fn addresses(name: &[u8]) -> Option<[u64; 2]> {
    let (start, end) = str::from_utf8(name).ok()?.split_once('-')?;
    let number = |digits: &str| {
        let is_exact = digits == "0" || !digits.starts_with(['0', '+']);
        u64::from_str_radix(digits, 16).ok().filter(|_| is_exact)
    };
    Some([number(start)?, number(end)?])
}

fn name_of(vma: &VmaInfo) -> String {
    format!("{:x}-{:x}", vma.range.start.0, vma.range.end.0)
}

impl FolderNode for MappedFolder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        attributes_of(&self.process, self.fs, self.number, Kind::Directory, 0o500)
    }
}

impl Directory for MappedFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let [start, end] = addresses(name).ok_or(Errno::ENOENT)?;
        let is_exact = |vma: &VmaInfo| (vma.range.start.0, vma.range.end.0) == (start, end);
        let vma = self.space()?.next_vma(VirtAddr(start)).filter(is_exact);
        let vma = vma.ok_or(Errno::ENOENT)?;
        let path = mapped_path(&vma)?.ok_or(Errno::ENOENT)?;
        let link = Link::of(self.process.clone(), self.fs, self.number_of(&vma), 0o600, Target::Path(path));
        Ok(Dentry::new(here, name.into(), Arc::new(link)))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let (space, mut entries, mut at) = (self.space()?, Vec::new(), VirtAddr(0));
        while let Some(vma) = space.next_vma(at) {
            at = vma.range.end;
            if mapped_path(&vma)?.is_some() {
                let name = name_of(&vma).as_bytes().into();
                list::append(
                    &mut entries,
                    [Entry { name, number: self.number_of(&vma), kind: Kind::Symlink }],
                )?;
            }
        }
        Ok(entries)
    }
}
