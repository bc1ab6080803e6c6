//! The file of a core dump: an ELF header, a program header for the notes and one for each mapping, the notes, and what
//! stands in the mappings.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, ELFOSABI_NONE, EM_X86_64, ET_CORE, EV_CURRENT, FileFlags, FileHeader64,
    Ident, PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE, ProgramFlags, ProgramHeader64, ProgramType, SymbolSection,
};
use object::{LittleEndian as LE, U16, U32, U64, pod};
use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::filemap::FileKind;
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;
use quire::vm::{UserfaultModes, VmaInfo};

use crate::errno::Errno;
use crate::files::io::KernelSource;
use crate::files::open::{Io, OpenFile};
use crate::memory::forced::ForcedMemory;
use crate::memory::list;
use crate::memory::manager::Space;
use crate::observe::mapped_path;
use crate::task::thread::Task;

type Header = FileHeader64<LE>;
type Segment = ProgramHeader64<LE>;

/// What `coredump_filter` asks for, by its bits.
const ANON_PRIVATE: u32 = 1;
const ANON_SHARED: u32 = 1 << 1;
const FILE_PRIVATE: u32 = 1 << 2;
const FILE_SHARED: u32 = 1 << 3;
const ELF_HEADERS: u32 = 1 << 4;
const HUGE_PRIVATE: u32 = 1 << 5;
const HUGE_SHARED: u32 = 1 << 6;

/// The most headers that the file's own header can count.
const MOST_HEADERS: usize = 0xfffe;
/// So many pages are looked at together.
const WINDOW: u64 = 256;
/// What `mapped_path` adds to the path of a file that was removed.
const DELETED: &[u8] = b" (deleted)";

/// A mapping, and how many bytes of it are in the file.
struct Part {
    vma: VmaInfo,
    bytes: u64,
}

/// Writes the file. Behind `limit` bytes it ends.
///
/// # Errors
/// [`Errno::ENOMEM`]; [`Errno::EINTR`] if the task must end; those of writing.
pub fn write(task: &Task, file: &OpenFile, notes: &[u8], limit: u64) -> Result<(), Errno> {
    let space = task.space();
    let parts = parts(space, task.process.account.dump_filter.load(Ordering::Relaxed))?;
    if parts.len() >= MOST_HEADERS {
        return Err(Errno::EOVERFLOW);
    }
    let notes_at = (size_of::<Header>() + (parts.len() + 1) * size_of::<Segment>()) as u64;
    let first = (notes_at + notes.len() as u64).next_multiple_of(FRAME_SIZE);
    let mut out = Output { file, task, limit };
    out.put(0, &headers(&parts, notes_at, notes.len() as u64, first)?)?;
    out.put(notes_at, notes)?;
    let mut at = first;
    for part in &parts {
        out.put_memory(at, space, part)?;
        at += part.bytes;
    }
    out.end_at(at)
}

fn headers(parts: &[Part], notes_at: u64, notes_bytes: u64, first: u64) -> Result<Vec<u8>, Errno> {
    let header = Header {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, ET_CORE),
        e_machine: U16::new(LE, EM_X86_64),
        e_version: U32::new(LE, EV_CURRENT.0.into()),
        e_entry: U64::new(LE, 0),
        e_phoff: U64::new(LE, size_of::<Header>() as u64),
        e_shoff: U64::new(LE, 0),
        e_flags: U32::new(LE, FileFlags(0)),
        e_ehsize: U16::new(LE, size_of::<Header>() as u16),
        e_phentsize: U16::new(LE, size_of::<Segment>() as u16),
        e_phnum: U16::new(LE, parts.len() as u16 + 1),
        e_shentsize: U16::new(LE, 0),
        e_shnum: U16::new(LE, 0),
        e_shstrndx: U16::new(LE, SymbolSection(0)),
    };
    let mut bytes = list::collect(pod::bytes_of(&header).iter().copied())?;
    let note = segment(PT_NOTE, ProgramFlags(0), notes_at, VirtRange::default(), (notes_bytes, 0));
    list::append(&mut bytes, pod::bytes_of(&note).iter().copied())?;
    let mut at = first;
    for Part { vma, bytes: in_file } in parts {
        let has = |right: Protection| vma.protection.contains(right);
        let flag = |right, flag: ProgramFlags| if has(right) { flag.0 } else { 0 };
        let flags =
            flag(Protection::READ, PF_R) | flag(Protection::WRITE, PF_W) | flag(Protection::EXEC, PF_X);
        let load = segment(PT_LOAD, ProgramFlags(flags), at, vma.range, (*in_file, FRAME_SIZE));
        list::append(&mut bytes, pod::bytes_of(&load).iter().copied())?;
        at += in_file;
    }
    Ok(bytes)
}

fn segment(
    kind: ProgramType,
    flags: ProgramFlags,
    at: u64,
    range: VirtRange,
    (in_file, alignment): (u64, u64),
) -> Segment {
    Segment {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, flags),
        p_offset: U64::new(LE, at),
        p_vaddr: U64::new(LE, range.start.0),
        p_paddr: U64::new(LE, 0),
        p_filesz: U64::new(LE, in_file),
        p_memsz: U64::new(LE, range.len()),
        p_align: U64::new(LE, alignment),
    }
}

fn parts(space: &Space, filter: u32) -> Result<Vec<Part>, Errno> {
    let (mut parts, mut at) = (Vec::new(), VirtAddr(0));
    while let Some(vma) = space.next_vma(at) {
        at = vma.range.end;
        let bytes = bytes_of(space, &vma, filter)?;
        list::append(&mut parts, [Part { vma, bytes }])?;
    }
    Ok(parts)
}

/// How many bytes of a mapping are in the file.
fn bytes_of(space: &Space, vma: &VmaInfo, filter: u32) -> Result<u64, Errno> {
    let (wants, whole) = (|bit: u32| filter & bit != 0, vma.range.len());
    let when = |wanted: bool| Ok(if wanted { whole } else { 0 });
    let is_shared = vma.flags.contains(VmaFlags::SHARED);
    if vma.flags.contains(VmaFlags::NOT_DUMPED) {
        return Ok(0);
    }
    if let Some((FileKind::Huge { .. }, _)) = vma.file {
        return when(wants(if is_shared { HUGE_SHARED } else { HUGE_PRIVATE }));
    }
    if is_shared {
        let is_named = mapped_path(vma)?.is_some_and(|path| !path.ends_with(DELETED));
        return when(wants(if is_named { FILE_SHARED } else { ANON_SHARED }));
    }
    let has_own_pages = || space.usage(vma.range).anonymous > 0;
    if wants(ANON_PRIVATE) && has_own_pages() {
        return Ok(whole);
    }
    match vma.file {
        None => Ok(0),
        Some(_) if wants(FILE_PRIVATE) => Ok(whole),
        Some((_, 0)) if wants(ELF_HEADERS) && !may_wait(vma) && begins_as_elf(space, vma.range.start) => {
            Ok(FRAME_SIZE)
        }
        Some(_) => Ok(0),
    }
}

fn begins_as_elf(space: &Space, at: VirtAddr) -> bool {
    let mut magic = [0; ELFMAG.len()];
    ForcedMemory::of(space).read(at, &mut magic).is_ok() && magic == ELFMAG
}

/// Whether a handler is told of faults on pages that are in memory. It may be one of the tasks that wait for the dump.
fn may_wait(vma: &VmaInfo) -> bool {
    let is_split = vma.flags.contains(VmaFlags::SPLIT);
    vma.handler.contains(UserfaultModes::MINOR) || is_split && vma.handler.contains(UserfaultModes::MISSING)
}

/// Which of the pages are mapped: no handler is told of an access to these.
fn mapped(space: &Space, start: VirtAddr, pages: u64) -> [bool; WINDOW as usize] {
    let mut mapped = [false; WINDOW as usize];
    let range = VirtRange { start, end: start.add(pages * FRAME_SIZE) };
    space.pagemap(range, |page, _| {
        let index = page.0.wrapping_sub(start.0) / FRAME_SIZE;
        if let Some(mapped) = mapped.get_mut(index as usize) {
            *mapped = true;
        }
    });
    mapped
}

struct Output<'o> {
    file: &'o OpenFile,
    task: &'o Task,
    limit: u64,
}

impl Output<'_> {
    /// Writes at an offset, as far as the limit allows.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let most = self.limit.saturating_sub(at).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < most {
            if self.task.is_dying() {
                return Err(Errno::EINTR);
            }
            let mut source = KernelSource(&bytes[done..most]);
            match self.file.write_at(at + done as u64, &mut source, Io::default())? {
                0 => return Err(Errno::ENOSPC),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Writes what of a mapping is in memory, and what of its file: the rest is zeroes, and stays a hole.
    fn put_memory(&mut self, at: u64, space: &Space, part: &Part) -> Result<(), Errno> {
        let memory = ForcedMemory::of(space);
        let mut page = list::collect((0..FRAME_SIZE).map(|_| 0_u8))?;
        let is_paged = matches!(part.vma.file, Some((FileKind::Paged(_), _)));
        let mut done = 0;
        while done < part.bytes && at + done < self.limit {
            let pages = ((part.bytes - done) / FRAME_SIZE).min(WINDOW);
            let mut resident = [true; WINDOW as usize];
            let start = part.vma.range.start.add(done);
            if may_wait(&part.vma) {
                resident = mapped(space, start, pages);
            } else if !is_paged {
                space.mincore(start, &mut resident[..pages as usize])?;
            }
            for index in (0..pages).filter(|index| resident[*index as usize]) {
                let offset = done + index * FRAME_SIZE;
                // Behind the end of a file nothing can be read.
                let is_read = memory.read(part.vma.range.start.add(offset), &mut page).is_ok();
                if is_read && page.iter().any(|&byte| byte != 0) {
                    self.put(at + offset, &page)?;
                }
            }
            done += pages * FRAME_SIZE;
        }
        Ok(())
    }

    /// The file is as long as its headers say, or as its limit.
    fn end_at(&mut self, end: u64) -> Result<(), Errno> {
        let end = end.min(self.limit);
        if self.file.attributes().size < end { self.file.place().node().truncate(end) } else { Ok(()) }
    }
}
