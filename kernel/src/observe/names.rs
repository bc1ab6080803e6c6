//! The names of mapped files, for `maps` and its like.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use quire::addr::VirtAddr;
use quire::filemap::FileKind;
use quire::vm::VmaInfo;
use quire::vm::vma::VmaFlags;
use quire_interop::proc::{MappedFile, Names};

use super::ProgramLayout;
use super::mapped_files::{file_of, path_of};
use super::text::{Text, write_name};
use crate::errno::Errno;
use crate::ipc;

/// The device of shared memory that has no place in the tree of files.
const NO_PLACE: (u32, u32) = (0, 2);

/// The path of what a mapping maps; none for memory that is no file's.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn mapped_path(vma: &VmaInfo) -> Result<Option<Vec<u8>>, Errno> {
    if let Some(path) = path_of(vma.file_number)? {
        return Ok(Some(path));
    }
    let mut text = Text::new();
    no_place(vma, &mut text).map_err(|_| Errno::ENOMEM)?;
    Ok(Some(text.into_bytes()).filter(|path| !path.is_empty()))
}

/// Writes what Linux shows for what has no place in the tree of files.
fn no_place(vma: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
    if let Some(segment) = ipc::of_file(vma.file_number) {
        return write!(out, "/SYSV{:08x} (deleted)", segment.key());
    }
    match vma.file {
        Some((FileKind::Huge { .. }, _)) => out.write_str("/anon_hugepage (deleted)"),
        // Linux makes such memory by mapping this device.
        Some(_) => out.write_str("/dev/zero (deleted)"),
        None if vma.flags.contains(VmaFlags::APART) => out.write_str("/dev/zero"),
        None => Ok(()),
    }
}

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
        match path_of(vma.file_number).map_err(|_| fmt::Error)? {
            Some(path) => write_name(out, &path),
            None => no_place(vma, out),
        }
    }

    fn special(&self, vma: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
        no_place(vma, out)
    }

    fn stack(&self) -> VirtAddr {
        self.stack
    }
}
