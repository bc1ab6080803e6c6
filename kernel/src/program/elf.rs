//! Maps one ELF file: a program or its interpreter (System V ABI, "Program Loading").

use alloc::vec::Vec;
use core::ops::Range;

use object::LittleEndian as LE;
use object::elf::{
    EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD,
    ProgramFlags, ProgramHeader64,
};
use object::pod;
use object::read::elf::{FileHeader, ProgramHeader};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::{Backing, MapRequest, Placement};

use super::image::ProgramFile;
use crate::errno::Errno;
use crate::files::walk::PATH_BYTES;
use crate::memory::list;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;

type Header = FileHeader64<LE>;
type Segment = ProgramHeader64<LE>;

/// The most bytes of program headers, as in Linux.
const MOST_HEADERS: usize = 64 << 10;

/// Where a program that can stand anywhere is put, as Linux does without randomisation.
pub const PROGRAM_BASE: u64 = 0x5555_5555_4000;

/// Where the parts of a mapped file are.
#[derive(Clone)]
pub struct Mapped {
    /// How much higher it stands than it is linked.
    pub bias: u64,
    /// Its first instruction.
    pub entry: VirtAddr,
    /// Its program headers, in memory; 0 if they are in no segment.
    pub headers: VirtAddr,
    /// How many they are.
    pub header_count: u64,
    /// The first address after its segments, where a heap can start.
    pub end: VirtAddr,
    /// From its first code to its last.
    pub code: Range<VirtAddr>,
    /// From its first data to its last, as far as they stand in the file.
    pub data: Range<VirtAddr>,
}

/// A parsed file.
pub struct Elf<'f> {
    file: &'f ProgramFile,
    header: &'f Header,
    segments: Vec<Segment>,
}

impl<'f> Elf<'f> {
    /// Parses the headers, wherever in the file they are.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] if it is no program for this machine; [`Errno::ENOMEM`].
    pub fn parse(file: &'f ProgramFile) -> Result<Self, Errno> {
        let header = Header::parse(&*file.head).map_err(|_| Errno::ENOEXEC)?;
        let kind = header.e_type(LE);
        if !matches!(kind, ET_EXEC | ET_DYN) || header.e_machine(LE) != EM_X86_64 {
            return Err(Errno::ENOEXEC);
        }
        let bytes = usize::from(header.e_phnum(LE)) * size_of::<Segment>();
        let has_known_size = usize::from(header.e_phentsize(LE)) == size_of::<Segment>();
        if !has_known_size || !(1..=MOST_HEADERS).contains(&bytes) {
            return Err(Errno::ENOEXEC);
        }
        let bytes = file.read(header.e_phoff(LE), bytes)?;
        let segments = pod::slice_from_all_bytes::<Segment>(&bytes).map_err(|()| Errno::ENOEXEC)?;
        Ok(Self { file, header, segments: list::collect(segments.iter().copied())? })
    }

    /// The path of the interpreter that it asks for.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] if it has no end, or is longer than any path; [`Errno::ENOMEM`].
    pub fn interpreter(&self) -> Result<Option<Vec<u8>>, Errno> {
        let Some(segment) = self.segments.iter().find(|segment| segment.p_type(LE) == PT_INTERP) else {
            return Ok(None);
        };
        let bytes = segment.p_filesz(LE);
        if bytes > PATH_BYTES as u64 {
            return Err(Errno::ENOEXEC);
        }
        let mut path = self.file.read(segment.p_offset(LE), bytes as usize)?;
        path.pop_if(|last| *last == 0).ok_or(Errno::ENOEXEC)?;
        Ok(Some(path))
    }

    /// Whether the program needs a stack from which instructions can run: where it calls a nested function of C by its
    /// address, it puts instructions there.
    pub fn wants_executable_stack(&self) -> bool {
        let last = self.segments.iter().rfind(|segment| segment.p_type(LE) == PT_GNU_STACK);
        last.is_some_and(|segment| segment.p_flags(LE).0 & PF_X.0 != 0)
    }

    /// Maps the segments. A file that can stand anywhere stands at `base`, or as far below it as its alignment asks
    /// for. Without a base it stands where there is room.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] for headers that contradict themselves, [`Errno::ENOMEM`].
    pub fn map(&self, space: &Space, base: Option<u64>) -> Result<Mapped, Errno> {
        let bias = self.place(space, base)?;
        let loads = self.loads();
        let mut end = VirtAddr(0);
        for segment in loads.clone() {
            end = end.max(map_segment(space, self.file, segment, bias)?);
        }
        let entry = VirtAddr(self.header.e_entry(LE).wrapping_add(bias));
        // The processor would raise the trap for such an address in the kernel.
        if !space.layout().user.contains(entry) {
            return Err(Errno::ENOEXEC);
        }
        let headers = loads.clone().find_map(|segment| headers_in(segment, self.header.e_phoff(LE)));
        Ok(Mapped {
            bias,
            entry,
            headers: headers.map_or(VirtAddr(0), |at| VirtAddr(at.0.wrapping_add(bias))),
            header_count: self.segments.len() as u64,
            end,
            code: self.span(bias, PF_X),
            data: self.span(bias, PF_W),
        })
    }

    /// From the first byte of the segments with this right to the last one that stands in the file.
    fn span(&self, bias: u64, right: ProgramFlags) -> Range<VirtAddr> {
        let segments = || self.loads().filter(|segment| segment.p_flags(LE).0 & right.0 != 0);
        let at = |addr: Option<u64>| VirtAddr(addr.unwrap_or(0).wrapping_add(bias));
        let start = at(segments().map(|segment| segment.p_vaddr(LE)).min());
        let ends = segments().map(|segment| segment.p_vaddr(LE).saturating_add(segment.p_filesz(LE)));
        start..at(ends.max()).max(start)
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> + Clone {
        self.segments.iter().filter(|segment| segment.p_type(LE) == PT_LOAD)
    }

    /// The largest alignment that a segment asks for: a page at least.
    fn alignment(&self) -> u64 {
        let asked = self.loads().map(|segment| segment.p_align(LE)).filter(|align| align.is_power_of_two());
        asked.max().unwrap_or(0).max(FRAME_SIZE)
    }

    /// Decides how much higher than linked the file stands. Its addresses are free then.
    fn place(&self, space: &Space, base: Option<u64>) -> Result<u64, Errno> {
        if self.header.e_type(LE) == ET_EXEC {
            return Ok(0);
        }
        let first = self.loads().map(|segment| segment.p_vaddr(LE)).min().ok_or(Errno::ENOEXEC)?;
        let ends = self.loads().map(|segment| segment.p_vaddr(LE).checked_add(segment.p_memsz(LE)));
        let end = ends.max().flatten().ok_or(Errno::ENOEXEC)?;
        let first = first & !(FRAME_SIZE - 1);
        let len = (end - first).checked_next_multiple_of(FRAME_SIZE).ok_or(Errno::ENOEXEC)?;
        if let Some(base) = base {
            return match base & !(self.alignment() - 1) {
                0 => Err(Errno::ENOEXEC),
                aligned => Ok(aligned.wrapping_sub(first)),
            };
        }
        // A mapping finds the room, and makes it again.
        let found = space.mmap(&MapRequest { len, prot: Protection::NONE, ..MapRequest::default() })?;
        space.munmap(found, len)?;
        Ok(found.0.wrapping_sub(first))
    }
}

/// Where the program headers are as linked, if this segment contains them.
fn headers_in(segment: &Segment, offset: u64) -> Option<VirtAddr> {
    let inside = offset.checked_sub(segment.p_offset(LE)).filter(|&inside| inside < segment.p_filesz(LE))?;
    Some(VirtAddr(segment.p_vaddr(LE).wrapping_add(inside)))
}

/// Maps a segment and returns the end of its last page.
fn map_segment(space: &Space, file: &ProgramFile, segment: &Segment, bias: u64) -> Result<VirtAddr, Errno> {
    let checked = |start: u64, bytes: u64| start.checked_add(bytes).map(VirtAddr).ok_or(Errno::ENOEXEC);
    let start = VirtAddr(segment.p_vaddr(LE).wrapping_add(bias));
    let first_page = start.align_down(FRAME_SIZE);
    let file_end = checked(start.0, segment.p_filesz(LE))?;
    let end = checked(start.0, segment.p_memsz(LE))?;
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
            backing: Backing::File { file: file.file()?, page_offset },
            ..request
        })?;
    }
    let anon_start = if in_file { file_pages_end } else { first_page };
    if anon_start < last_page_end {
        space.mmap(&MapRequest { addr: anon_start, len: last_page_end.0 - anon_start.0, ..request })?;
    }
    if in_file && end > file_end && prot.contains(Protection::WRITE) {
        // The file's last page has bytes of what follows in the file. The program expects zeroes, and the dynamic
        // linker uses them up to the end of the page.
        zero(space, file_end, file_pages_end)?;
    }
    Ok(last_page_end)
}

fn zero(space: &Space, from: VirtAddr, to: VirtAddr) -> Result<(), Errno> {
    let zeroes = [0; FRAME_SIZE as usize];
    let bytes = (to.0 - from.0) as usize;
    UserMemory::of(space).write(from, &zeroes[..bytes])
}

fn protection(flags: ProgramFlags) -> Protection {
    let rights = [(PF_R, Protection::READ), (PF_W, Protection::WRITE), (PF_X, Protection::EXEC)];
    let granted = rights.into_iter().filter(|&(flag, _)| flags.0 & flag.0 != 0);
    granted.fold(Protection::NONE, |all, (_, right)| all | right)
}
