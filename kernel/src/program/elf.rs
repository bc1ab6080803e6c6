//! Maps a static program from its ELF file (System V ABI, "Program Header").
//!
//! The file's part of a segment is a private mapping of the file: Quire reads a page when the program touches it,
//! and copies it when the program stores to it. The rest is anonymous memory.

use object::LittleEndian as LE;
use object::elf::{ET_EXEC, FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::{Backing, File, MapRequest, Placement};

use crate::errno::Errno;
use crate::files::initramfs;
use crate::memory::manager::{Space, manager};
use crate::memory::platform::Machine;
use crate::memory::user::UserMemory;

type Header = FileHeader64<LE>;
type Segment = ProgramHeader64<LE>;
type OpenFile = File<'static, Machine>;

/// Where things stand in a loaded program.
#[derive(Clone, Copy)]
pub struct Loaded {
    /// Its first instruction.
    pub entry: VirtAddr,
    /// Its program headers, in its memory.
    pub headers: VirtAddr,
    /// How many they are.
    pub header_count: u64,
    /// The first address after its segments, where its heap starts.
    pub end: VirtAddr,
}

/// Maps the program's segments in an address space that is switched in and empty.
///
/// # Errors
/// [`Errno::ENOEXEC`] if it is no static program for this machine.
pub fn load(space: &Space, file: initramfs::File) -> Result<Loaded, Errno> {
    let header = Header::parse(file.bytes).map_err(|_| Errno::ENOEXEC)?;
    if header.e_type(LE) != ET_EXEC {
        return Err(Errno::ENOEXEC);
    }
    let segments = header.program_headers(LE, file.bytes).map_err(|_| Errno::ENOEXEC)?;
    let open = manager().open(file.id)?;
    let mut end = VirtAddr(0);
    let loads = segments.iter().filter(|segment| segment.p_type(LE) == PT_LOAD);
    for segment in loads.clone() {
        end = end.max(map(space, &open, segment)?);
    }
    let entry = VirtAddr(header.e_entry(LE));
    // The processor would raise the trap for such an address in the kernel.
    if !space.layout().user.contains(entry) {
        return Err(Errno::ENOEXEC);
    }
    Ok(Loaded {
        entry,
        headers: loads
            .clone()
            .find_map(|segment| headers_in(segment, header.e_phoff(LE)))
            .ok_or(Errno::ENOEXEC)?,
        header_count: segments.len() as u64,
        end,
    })
}

/// Where the program headers are in memory, if this segment contains them.
fn headers_in(segment: &Segment, offset: u64) -> Option<VirtAddr> {
    let inside = offset.checked_sub(segment.p_offset(LE)).filter(|&inside| inside < segment.p_filesz(LE))?;
    Some(VirtAddr(segment.p_vaddr(LE) + inside))
}

/// Maps a segment and returns the end of its last page.
fn map(space: &Space, file: &OpenFile, segment: &Segment) -> Result<VirtAddr, Errno> {
    let (start, bytes) = (VirtAddr(segment.p_vaddr(LE)), segment.p_memsz(LE));
    let first_page = start.align_down(FRAME_SIZE);
    let file_end = start.0.checked_add(segment.p_filesz(LE)).map(VirtAddr).ok_or(Errno::ENOEXEC)?;
    let end = start.0.checked_add(bytes).map(VirtAddr).ok_or(Errno::ENOEXEC)?;
    let file_pages_end = file_end.align_up(FRAME_SIZE).ok_or(Errno::ENOEXEC)?;
    let last_page_end = end.align_up(FRAME_SIZE).ok_or(Errno::ENOEXEC)?;
    let prot = protection(segment.p_flags(LE));
    let request = MapRequest { prot, placement: Placement::FixedNoReplace, ..MapRequest::default() };

    let in_file = segment.p_filesz(LE) > 0;
    if in_file && !(start.0.wrapping_sub(segment.p_offset(LE))).is_multiple_of(FRAME_SIZE) {
        return Err(Errno::ENOEXEC);
    }
    if in_file {
        let page_offset = segment.p_offset(LE) / FRAME_SIZE;
        space.mmap(&MapRequest {
            addr: first_page,
            len: file_pages_end.0 - first_page.0,
            backing: Backing::File { file, page_offset },
            ..request
        })?;
    }
    let anon_start = if in_file { file_pages_end } else { first_page };
    if anon_start < last_page_end {
        space.mmap(&MapRequest { addr: anon_start, len: last_page_end.0 - anon_start.0, ..request })?;
    }
    if in_file && bytes > segment.p_filesz(LE) {
        // The file's last page has bytes of what follows in the file; the program expects zeroes.
        zero(space, file_end, end.min(file_pages_end))?;
    }
    Ok(last_page_end)
}

fn zero(space: &Space, from: VirtAddr, to: VirtAddr) -> Result<(), Errno> {
    let zeroes = [0; FRAME_SIZE as usize];
    let bytes = (to.0 - from.0) as usize;
    UserMemory::of(space).write(from, &zeroes[..bytes])
}

fn protection(flags: u32) -> Protection {
    let rights = [(PF_R, Protection::READ), (PF_W, Protection::WRITE), (PF_X, Protection::EXEC)];
    let granted = rights.into_iter().filter(|&(flag, _)| flags & flag != 0);
    granted.fold(Protection::NONE, |all, (_, right)| all | right)
}
