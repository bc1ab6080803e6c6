//! The names of mapped files, for `maps` and its like.

use core::fmt::{self, Write};

use quire::addr::VirtAddr;
use quire::filemap::FileKind;
use quire::vm::VmaInfo;
use quire_interop::proc::{MappedFile, Names};

use super::ProgramLayout;
use super::mapped_files::{file_of, path_of};
use super::text::write_name;
use crate::ipc;

/// The device of shared memory that has no place in the tree of files.
const NO_PLACE: (u32, u32) = (0, 2);

/// The names in one process.
pub(super) struct ProcessNames {
    stack: VirtAddr,
}

impl ProcessNames {
    pub(super) fn of(program: &ProgramLayout) -> Self {
        Self { stack: program.stack }
    }
}

impl Names for ProcessNames {
    fn file(&self, vma: &VmaInfo) -> MappedFile {
        let segment = || ipc::of_file(vma.file_number).map_or(0, |segment| segment.id.into());
        file_of(vma.file_number).unwrap_or_else(|| MappedFile { device: NO_PLACE, inode: segment() })
    }

    fn path(&self, vma: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
        if let Some(path) = path_of(vma.file_number).map_err(|_| fmt::Error)? {
            return write_name(out, &path);
        }
        if let Some(segment) = ipc::of_file(vma.file_number) {
            return write!(out, "/SYSV{:08x} (deleted)", segment.key());
        }
        match vma.file {
            Some((FileKind::Huge { .. }, _)) => out.write_str("/anon_hugepage (deleted)"),
            // Linux makes such memory by mapping this device.
            Some(_) => out.write_str("/dev/zero (deleted)"),
            None => Ok(()),
        }
    }

    fn stack(&self) -> VirtAddr {
        self.stack
    }
}
