//! The names of mapped files, for `maps` and its like.

use core::fmt::{self, Write};

use quire::addr::VirtAddr;
use quire::filemap::FileKind;
use quire::vm::VmaInfo;
use quire_interop::proc::{MappedFile, Names};

use super::text::write_name;
use crate::files::initramfs;
use crate::ipc;
use crate::task::process::Process;

/// The names in one process.
pub(super) struct ProcessNames {
    stack: VirtAddr,
}

impl ProcessNames {
    pub(super) fn of(process: &Process) -> Self {
        Self { stack: process.account.program.lock().stack }
    }
}

impl Names for ProcessNames {
    fn file(&self, vma: &VmaInfo) -> MappedFile {
        match vma.file {
            Some((FileKind::Paged(id), _)) => MappedFile { device: (0, 1), inode: id.0 },
            _ => MappedFile {
                device: (0, 1),
                inode: ipc::of_file(vma.file_number).map_or(0, |segment| segment.id.into()),
            },
        }
    }

    fn path(&self, vma: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
        match vma.file {
            Some((FileKind::Paged(id), _)) => {
                let Some(file) = initramfs::by_id(id) else { return Ok(()) };
                out.write_str("/")?;
                write_name(out, file.name)
            }
            Some(_) if let Some(segment) = ipc::of_file(vma.file_number) => {
                write!(out, "/SYSV{:08x} (deleted)", segment.key())
            }
            Some((FileKind::Huge { .. }, _)) => out.write_str("/anon_hugepage (deleted)"),
            Some((FileKind::Shmem { .. }, _)) => out.write_str("/dev/zero (deleted)"),
            None => Ok(()),
        }
    }

    fn stack(&self) -> VirtAddr {
        self.stack
    }
}
