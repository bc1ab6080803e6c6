//! The notes of a core dump: what its threads were, and what the process was (`linux/elfcore.h`).

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use object::elf::{
    NT_AUXV, NT_FILE, NT_PRFPREG, NT_PRPSINFO, NT_PRSTATUS, NT_SIGINFO, NT_X86_XSTATE, NoteHeader64, NoteType,
};
use object::{LittleEndian as LE, U32, pod};
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use super::thread::{REGISTER_WORDS, Thread};
use crate::cpu::fpu::{self, LEGACY_BYTES};
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::user::UserMemory;
use crate::observe::mapped_path;
use crate::task::credentials::REAL;
use crate::task::process::Process;
use crate::task::signal::info::SigInfo;
use crate::task::thread::Task;
use crate::time::SECOND;

/// The owner of most notes, and that of processors' extensions.
const CORE: &[u8] = b"CORE\0";
const LINUX: &[u8] = b"LINUX\0";
/// Where the image of the vector registers names the parts that it has.
const PARTS: usize = 464;

/// The size of `struct elf_prstatus`, and where its fields are.
const STATUS_BYTES: usize = 336;
const STATUS_SIGNALS: usize = 16;
const STATUS_IDS: usize = 32;
const STATUS_TIME: usize = 48;
const STATUS_REGISTERS: usize = 112;
/// There is a note of the vector registers too.
const STATUS_HAS_VECTORS: usize = STATUS_REGISTERS + REGISTER_WORDS * 8;

/// The size of `struct elf_prpsinfo`, and where its fields are.
const PROCESS_BYTES: usize = 136;
const PROCESS_USER: usize = 16;
const PROCESS_IDS: usize = 24;
const PROCESS_NAME: usize = 40;
const PROCESS_ARGUMENTS: usize = 56;
const ARGUMENT_BYTES: usize = 80;

/// Makes the notes: those of the running task, which took the signal, first.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn make(task: &Task, info: &SigInfo, own: &Thread, others: &[Thread]) -> Result<Vec<u8>, Errno> {
    let process = &task.process;
    let memory = UserMemory::of(task.space());
    let mut notes = Notes(Vec::new());
    notes.add(CORE, NT_PRSTATUS, &status(process, own, Some(info)))?;
    notes.add(CORE, NT_PRPSINFO, &about_process(process, memory))?;
    notes.add(CORE, NT_SIGINFO, &info.bytes())?;
    let auxiliary = process.account.program.lock().auxiliary.clone();
    let mut vector = list::collect((auxiliary.start.0..auxiliary.end.0).map(|_| 0_u8))?;
    // A program may have unmapped it.
    if memory.read(auxiliary.start, &mut vector).is_ok() {
        notes.add(CORE, NT_AUXV, &vector)?;
    }
    if let Some(files) = files(task)? {
        notes.add(CORE, NT_FILE, &files)?;
    }
    notes.add_vectors(own)?;
    for thread in others {
        notes.add(CORE, NT_PRSTATUS, &status(process, thread, None))?;
        notes.add_vectors(thread)?;
    }
    Ok(notes.0)
}

struct Notes(Vec<u8>);

impl Notes {
    /// Adds a note. Its name and its contents end at multiples of 4.
    fn add(&mut self, owner: &[u8], kind: NoteType, contents: &[u8]) -> Result<(), Errno> {
        let header = NoteHeader64::<LE> {
            n_namesz: U32::new(LE, owner.len() as u32),
            n_descsz: U32::new(LE, contents.len() as u32),
            n_type: U32::new(LE, kind),
        };
        for part in [pod::bytes_of(&header), owner, contents] {
            let rest = part.len().next_multiple_of(4) - part.len();
            list::reserve(&mut self.0, part.len() + rest)?;
            self.0.extend_from_slice(part);
            self.0.resize(self.0.len() + rest, 0);
        }
        Ok(())
    }

    fn add_vectors(&mut self, thread: &Thread) -> Result<(), Errno> {
        self.add(CORE, NT_PRFPREG, &thread.vectors[..LEGACY_BYTES])?;
        let mut image = list::collect(thread.vectors.iter().copied())?;
        image[PARTS..PARTS + 8].copy_from_slice(&fpu::parts_in_use().to_le_bytes());
        self.add(LINUX, NT_X86_XSTATE, &image)
    }
}

/// Its process, the process's parent, the process group and the session. A thread has its own number.
fn ids(process: &Process, id: u32) -> [u32; 4] {
    let parent = process.parent().map_or(0, |parent| parent.id);
    [id, parent, process.group.load(Ordering::Relaxed), process.session.load(Ordering::Relaxed)]
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

/// `struct elf_prstatus`
fn status(process: &Process, thread: &Thread, info: Option<&SigInfo>) -> [u8; STATUS_BYTES] {
    let mut bytes = [0; STATUS_BYTES];
    if let Some(info) = info {
        put(&mut bytes, 0, &info.signal.to_le_bytes());
        put(&mut bytes, 4, &info.code.to_le_bytes());
        // The signal of the dump, as a short number.
        put(&mut bytes, 12, &(info.signal as u16).to_le_bytes());
    }
    put(&mut bytes, STATUS_SIGNALS, thread.signals.map(u64::to_le_bytes).as_flattened());
    put(&mut bytes, STATUS_IDS, ids(process, thread.id).map(u32::to_le_bytes).as_flattened());
    let time = [thread.ran / SECOND, thread.ran % SECOND / 1000];
    put(&mut bytes, STATUS_TIME, time.map(u64::to_le_bytes).as_flattened());
    put(&mut bytes, STATUS_REGISTERS, thread.registers().map(u64::to_le_bytes).as_flattened());
    put(&mut bytes, STATUS_HAS_VECTORS, &1_u32.to_le_bytes());
    bytes
}

/// `struct elf_prpsinfo`
fn about_process(process: &Process, memory: UserMemory<'_>) -> [u8; PROCESS_BYTES] {
    let mut bytes = [0; PROCESS_BYTES];
    // It runs: the first of the states, by its letter.
    bytes[1] = b'R';
    let own = process.credentials();
    put(&mut bytes, PROCESS_USER, [own.users[REAL], own.groups[REAL]].map(u32::to_le_bytes).as_flattened());
    put(&mut bytes, PROCESS_IDS, ids(process, process.id).map(u32::to_le_bytes).as_flattened());
    put(&mut bytes, PROCESS_NAME, &process.identity.lock().name);
    let arguments = process.account.program.lock().arguments.clone();
    let len = ((arguments.end.0 - arguments.start.0) as usize).min(ARGUMENT_BYTES - 1);
    let text = &mut bytes[PROCESS_ARGUMENTS..PROCESS_ARGUMENTS + len];
    if memory.read(arguments.start, text).is_ok() {
        text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    }
    bytes
}

/// The mapped files: their number, the size of a page, start, end and first page of each mapping, and then the names. `None`
/// without any.
fn files(task: &Task) -> Result<Option<Vec<u8>>, Errno> {
    let (mut words, mut names) = (Vec::new(), Vec::new());
    let mut at = VirtAddr(0);
    while let Some(vma) = task.space().next_vma(at) {
        at = vma.range.end;
        let Some((_, page)) = vma.file else { continue };
        let Some(path) = mapped_path(&vma)? else { continue };
        list::append(&mut words, [vma.range.start.0, vma.range.end.0, page])?;
        list::append(&mut names, path.into_iter().chain([0]))?;
    }
    if words.is_empty() {
        return Ok(None);
    }
    let head = [words.len() as u64 / 3, FRAME_SIZE];
    let words = list::collect(head.into_iter().chain(words).map(u64::to_le_bytes))?;
    list::concat([words.as_flattened(), names.as_slice()].into_iter()).map(Some)
}
