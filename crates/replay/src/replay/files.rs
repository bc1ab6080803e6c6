//! The files that a trace maps: open for the whole replay, with the page cache of the recording.

use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::MmError;
use quire::manager::MemoryManager;
use quire::platform::FileId;
use quire::vm::{Advice, Backing, File, MapRequest, Placement, Sharing};

use super::survey::SurveyedFile;
use super::verb::PAGE;

/// The address at which pages are mapped briefly, to read them in.
const WINDOW: VirtAddr = VirtAddr(0x1000_0000);

/// Opens every file, by its number, and makes the memory that programs share, which is empty. Reads in pages
/// that were in the page cache when the recorded program first used them; the others are left to a major
/// fault.
///
/// # Errors
/// [`MmError::NoMemory`].
pub(super) fn open<'m>(
    machine: &Hosted,
    manager: &'m MemoryManager<'_, Hosted>,
    files: &[SurveyedFile],
) -> Result<Vec<File<'m, Hosted>>, MmError> {
    let mut open = Vec::with_capacity(files.len());
    let reader = manager.new_mm()?;
    for (number, file) in (0u64..).zip(files) {
        if file.shmem {
            open.push(manager.shmem(file.bytes)?);
            continue;
        }
        let id = FileId(number);
        machine.files().set_size(id, file.bytes);
        let handle = manager.open(id)?;
        for (first, count) in file.warm.runs() {
            let len = count * PAGE;
            reader.mmap(&MapRequest {
                addr: WINDOW,
                len,
                prot: Protection::READ,
                placement: Placement::Fixed,
                sharing: Sharing::Shared,
                backing: Backing::File { file: &handle, page_offset: first },
                ..MapRequest::default()
            })?;
            reader.madvise(WINDOW, len, Advice::WillNeed)?;
            reader.munmap(WINDOW, len)?;
        }
        open.push(handle);
    }
    Ok(open)
}
