//! Ranges come to a handler and leave it.

use linux_raw_sys::general as abi;
use quire::addr::VirtRange;
use quire::arch::Protection;
use quire::filemap::FileKind;
use quire::vm::UserfaultModes;

use super::handler::Handler;
use super::requests::{Structure, page_range};
use crate::errno::Errno;
use crate::memory::manager::Space;

const MISSING: u64 = abi::UFFDIO_REGISTER_MODE_MISSING as u64;
const WRITE_PROTECT: u64 = abi::UFFDIO_REGISTER_MODE_WP as u64;
const MINOR: u64 = abi::UFFDIO_REGISTER_MODE_MINOR as u64;
/// The number of `UFFDIO_POISON` in the set of requests.
const POISON: u32 = 8;

impl Handler {
    pub(super) fn register(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        let [start, len, modes] = structure.words()?;
        if modes == 0 || modes & !(MISSING | WRITE_PROTECT | MINOR) != 0 {
            return Err(Errno::EINVAL);
        }
        let range = page_range(start, len)?;
        let space =
            self.space().map_err(|errno| if errno == Errno::ESRCH { Errno::ENOMEM } else { errno })?;
        let has_huge = check_mappings(&space, range)?;
        let pairs = [
            (MISSING, UserfaultModes::MISSING),
            (WRITE_PROTECT, UserfaultModes::WRITE_PROTECT),
            (MINOR, UserfaultModes::MINOR),
        ];
        let asked = pairs.into_iter().filter(|(bit, _)| modes & bit != 0);
        let quire_modes = asked.fold(UserfaultModes::NONE, |all, (_, mode)| all.union(mode));
        space.userfault_register(&self.ready()?.quire, range.start, len, quire_modes)?;
        structure.set(3, requests(modes, has_huge))
    }

    pub(super) fn unregister(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        let [start, len] = structure.words()?;
        let range = page_range(start, len)?;
        let space =
            self.space().map_err(|errno| if errno == Errno::ESRCH { Errno::ENOMEM } else { errno })?;
        space.userfault_unregister(range.start, len)?;
        Ok(())
    }
}

/// Checks what Quire leaves to the kernel. Returns whether there are huge pages in the range.
fn check_mappings(space: &Space, range: VirtRange) -> Result<bool, Errno> {
    let (mut has_huge, mut answer) = (false, Ok(()));
    space.vmas_in(range, |vma| {
        let refused = match vma.file {
            // The pager supplies these pages.
            Some((FileKind::Paged(_), _)) => Some(Errno::EINVAL),
            Some(_) if !vma.may.contains(Protection::WRITE) => Some(Errno::EPERM),
            _ => None,
        };
        has_huge |= matches!(vma.file, Some((FileKind::Huge { .. }, _)));
        if let (Some(errno), Ok(())) = (refused, answer) {
            answer = Err(errno);
        }
    });
    answer.map(|()| has_huge)
}

/// The set of requests that a range takes.
fn requests(modes: u64, has_huge: bool) -> u64 {
    let always = 1 << abi::_UFFDIO_WAKE | 1 << abi::_UFFDIO_COPY | 1 << POISON;
    let zeroes = if has_huge { 0 } else { 1 << abi::_UFFDIO_ZEROPAGE };
    let protect = if modes & WRITE_PROTECT != 0 { 1 << abi::_UFFDIO_WRITEPROTECT } else { 0 };
    let resume = if modes & MINOR != 0 { 1 << abi::_UFFDIO_CONTINUE } else { 0 };
    always | zeroes | protect | resume
}
