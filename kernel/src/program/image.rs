//! A program in memory: its file, and the interpreter that it asks for.

use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire::vm::File;

use super::elf::{Elf, Mapped, PROGRAM_BASE};
use crate::errno::Errno;
use crate::files::initramfs;
use crate::memory::manager::{Space, manager};
use crate::memory::platform::Machine;

/// How much of a file is read for its headers.
const HEAD_BYTES: usize = 4096;

/// A file that is about to be executed.
pub struct ProgramFile {
    /// Its path.
    pub path: Vec<u8>,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// The file, to be mapped.
    pub file: File<'static, Machine>,
}

impl ProgramFile {
    /// Opens it.
    ///
    /// # Errors
    /// [`Errno::ENOENT`].
    pub fn open(path: &[u8]) -> Result<Self, Errno> {
        let found = str::from_utf8(path).ok().and_then(initramfs::find).ok_or(Errno::ENOENT)?;
        let head = found.bytes[..found.bytes.len().min(HEAD_BYTES)].to_vec();
        Ok(Self { path: path.to_vec(), head, file: manager().open(found.id)? })
    }
}

/// A loaded program.
pub struct Loaded {
    /// The program's own file.
    pub program: Mapped,
    /// The address at which the interpreter stands, or 0.
    pub interpreter_base: u64,
    /// The first instruction: the interpreter's, if there is one.
    pub entry: VirtAddr,
}

/// Maps a program and its interpreter in an address space that is loaded and empty.
///
/// # Errors
/// [`Errno::ENOEXEC`] if it is no program for this machine, [`Errno::ENOENT`] without its interpreter.
pub fn load(space: &Space, file: &ProgramFile) -> Result<Loaded, Errno> {
    let elf = Elf::parse(file)?;
    let interpreter = elf.interpreter()?.map(ProgramFile::open).transpose()?;
    let program = elf.map(space, Some(PROGRAM_BASE))?;
    let Some(interpreter) = interpreter else {
        return Ok(Loaded { program, interpreter_base: 0, entry: program.entry });
    };
    let interpreter = Elf::parse(&interpreter)?.map(space, None)?;
    Ok(Loaded { program, interpreter_base: interpreter.bias, entry: interpreter.entry })
}
