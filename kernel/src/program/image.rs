//! A program in memory: its file, and the interpreter that it asks for.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::elf::{Elf, Mapped, PROGRAM_BASE};
use crate::errno::Errno;
use crate::files::claim::Claim;
use crate::files::dentry::Dentry;
use crate::files::io::KernelSink;
use crate::files::mounts;
use crate::files::node::Kind;
use crate::files::open::{File, Io, Mapping, Opening};
use crate::files::walk::{Follow, Walk};
use crate::memory::list;
use crate::memory::manager::{KernelFile, Space};
use crate::observe::mapped_files::note_mapped;
use crate::task::credentials::{EXECUTE, check_file};
use crate::task::sched;

/// How much of a file is read for its headers.
const HEAD_BYTES: usize = 4096;

/// A file that is about to be executed.
pub struct ProgramFile {
    /// The path that the caller gave.
    pub path: Vec<u8>,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Where it is.
    pub place: Arc<Dentry>,
    open: Box<dyn File>,
    /// It is not written meanwhile.
    pub claim: Claim,
}

impl ProgramFile {
    /// Opens it.
    ///
    /// # Errors
    /// As `execve(2)`.
    pub fn open(path: &[u8]) -> Result<Self, Errno> {
        let places = sched::current_ref().process.fs.lock().as_ref().ok_or(Errno::ENOENT)?.places();
        let walk = Walk { root: places.root, base: places.current, follow: Follow::Always, resolve: 0 };
        Self::at(walk.find(path)?.existing()?, path)
    }

    /// Opens the one at a place that the path names.
    ///
    /// # Errors
    /// [`Errno::EACCES`] for a file that is no regular one, or that is not executable there, [`Errno::ETXTBSY`].
    pub fn at(place: Arc<Dentry>, path: &[u8]) -> Result<Self, Errno> {
        let attributes = place.node().attributes();
        if attributes.kind != Kind::Regular || mounts::has_flag(&place, abi::MS_NOEXEC) {
            return Err(Errno::EACCES);
        }
        check_file(EXECUTE, || attributes)?;
        let claim = Claim::to_run(place.node())?;
        let open = place.node().clone().open(&Opening { place: &place, flags: 0 })?;
        let mut head = vec![0; HEAD_BYTES.min(attributes.size as usize)];
        let count = open.read(&mut 0, &mut KernelSink::new(&mut head), Io::default())?;
        head.truncate(count);
        Ok(Self { path: path.to_vec(), head, place, open, claim })
    }

    /// These bytes of it.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] if it ends before them; [`Errno::ENOMEM`]; those of a read.
    pub fn read(&self, offset: u64, count: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        list::reserve(&mut bytes, count)?;
        bytes.resize(count, 0);
        let (mut at, mut done) = (offset, 0);
        while done < count {
            match self.open.read(&mut at, &mut KernelSink::new(&mut bytes[done..]), Io::default())? {
                0 => return Err(Errno::ENOEXEC),
                more => done += more,
            }
        }
        Ok(bytes)
    }

    /// The file, to be mapped.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] for a file that cannot be mapped.
    pub fn file(&self) -> Result<&KernelFile, Errno> {
        match self.open.mapping() {
            Ok(Mapping::File(file)) => {
                note_mapped(file.number(), &self.place)?;
                Ok(file)
            }
            _ => Err(Errno::ENOEXEC),
        }
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
    /// Instructions can run on its stack.
    pub executable_stack: bool,
}

/// Maps a program and its interpreter in an address space that is loaded and empty.
///
/// # Errors
/// [`Errno::ENOEXEC`] if it is no program for this machine, [`Errno::ENOENT`] without its interpreter.
pub fn load(space: &Space, file: &ProgramFile) -> Result<Loaded, Errno> {
    let elf = Elf::parse(file)?;
    let interpreter = elf.interpreter()?.map(|path| ProgramFile::open(&path)).transpose()?;
    let program = elf.map(space, Some(PROGRAM_BASE))?;
    let executable_stack = elf.wants_executable_stack();
    let Some(interpreter) = interpreter else {
        return Ok(Loaded { entry: program.entry, program, interpreter_base: 0, executable_stack });
    };
    let interpreter = Elf::parse(&interpreter)?.map(space, None)?;
    Ok(Loaded { program, interpreter_base: interpreter.bias, entry: interpreter.entry, executable_stack })
}
