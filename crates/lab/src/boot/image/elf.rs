//! What the headers of an ELF file say about the files that it needs.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use object::elf::{self, DynamicTag, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian, ReadRef};

type Header = FileHeader64<LittleEndian>;
type Segments<'a> = &'a [elf::ProgramHeader64<LittleEndian>];

/// The dynamic section and the interpreter of a program or library for x86-64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `PT_INTERP`: the loader that starts the program.
    pub(crate) interpreter: Option<PathBuf>,
    /// `DT_SONAME`: the name that others need it by.
    pub(crate) soname: Option<OsString>,
    /// `DT_NEEDED`, in order.
    pub(crate) needed: Vec<OsString>,
    /// `DT_RPATH` and `DT_RUNPATH`: directories with colons between them.
    pub(crate) rpath: Option<OsString>,
    pub(crate) runpath: Option<OsString>,
}

/// Reads the headers of a file; `None` if it is no readable ELF file for x86-64.
pub(crate) fn read(path: &Path) -> Option<Elf> {
    // A FIFO would wait for its writer.
    path.metadata().ok()?.is_file().then_some(())?;
    let cache = ReadCache::new(File::open(path).ok()?);
    parse(&cache)
}

fn parse<'a, R: ReadRef<'a>>(data: R) -> Option<Elf> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return None;
    }
    let segments = header.program_headers(endian, data).ok()?;
    let mut elf = Elf::default();
    for segment in segments {
        if let Ok(Some(path)) = segment.interpreter(endian, data) {
            elf.interpreter = Some(OsString::from_vec(path.to_vec()).into());
        }
        if let Ok(Some(entries)) = segment.dynamic(endian, data) {
            add_dynamic(&mut elf, entries, |address| offset_of(segments, endian, address), data);
        }
    }
    Some(elf)
}

/// Where in the file the byte at an address stands.
fn offset_of(segments: Segments<'_>, endian: LittleEndian, address: u64) -> Option<u64> {
    let within = |segment: &&elf::ProgramHeader64<LittleEndian>| {
        let from_start = address.checked_sub(segment.p_vaddr(endian));
        segment.p_type(endian) == elf::PT_LOAD && from_start.is_some_and(|by| by < segment.p_filesz(endian))
    };
    let segment = segments.iter().find(within)?;
    segment.p_offset(endian).checked_add(address - segment.p_vaddr(endian))
}

fn add_dynamic<'a, R: ReadRef<'a>>(
    elf: &mut Elf,
    entries: &[elf::Dyn64<LittleEndian>],
    offset_of: impl Fn(u64) -> Option<u64>,
    data: R,
) {
    let endian = LittleEndian;
    let end = entries.iter().position(|entry| entry.d_tag(endian) == elf::DT_NULL).unwrap_or(entries.len());
    let entries = &entries[..end];
    let first = |tag: DynamicTag| {
        entries.iter().find(|entry| entry.d_tag(endian) == tag).map(|entry| entry.d_val(endian))
    };
    let strings = first(elf::DT_STRTAB).and_then(&offset_of).zip(first(elf::DT_STRSZ));
    let Some(strings) = strings.and_then(|(start, size)| data.read_bytes_at(start, size).ok()) else {
        return;
    };
    let text = |at: u64| {
        let rest = strings.get(usize::try_from(at).ok()?..)?;
        let length = rest.iter().position(|&byte| byte == 0)?;
        Some(OsString::from_vec(rest[..length].to_vec()))
    };
    let needed = entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED);
    elf.needed = needed.filter_map(|entry| text(entry.d_val(endian))).collect();
    elf.soname = first(elf::DT_SONAME).and_then(text);
    elf.rpath = first(elf::DT_RPATH).and_then(text);
    elf.runpath = first(elf::DT_RUNPATH).and_then(text);
}
