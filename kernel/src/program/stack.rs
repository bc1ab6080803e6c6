//! A program's stack, and what it finds there: arguments, environment, auxiliary vector (System V ABI, "Process
//! Initialization").

use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::{MapRequest, Placement};

use super::elf::Loaded;
use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;

/// What is mapped at first. Faults below let the mapping grow.
const INITIAL_BYTES: u64 = 64 << 10;
/// How far it may grow, as `RLIMIT_STACK` usually is.
pub const LIMIT_BYTES: u64 = 8 << 20;

/// Keys of the auxiliary vector (`getauxval(3)`).
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_ENTRY: u64 = 9;
const AT_SECURE: u64 = 23;
const AT_RANDOM: u64 = 25;

/// The size of a program header (`Elf64_Phdr`).
const PROGRAM_HEADER_BYTES: u64 = 56;

/// Sixteen bytes from which libc makes the canary of its stacks. Fixed, so that runs repeat.
const RANDOM: [u8; 16] = *b"not random at al";

/// Maps the stack, fills it, and returns the stack pointer.
///
/// # Errors
/// [`Errno::ENOMEM`], and [`Errno::EFAULT`] if the arguments do not fit.
pub fn build(space: &Space, loaded: &Loaded, arguments: &[&str]) -> Result<VirtAddr, Errno> {
    let top = space.layout().user.end;
    space.set_stack_limit(LIMIT_BYTES);
    space.mmap(&MapRequest {
        addr: VirtAddr(top.0 - INITIAL_BYTES),
        len: INITIAL_BYTES,
        prot: Protection::READ | Protection::WRITE,
        placement: Placement::FixedNoReplace,
        grows_down: true,
        ..MapRequest::default()
    })?;
    let mut stack = Pusher { memory: UserMemory::of(space), at: top };
    let random = stack.push(&RANDOM)?;
    let mut words = Vec::with_capacity(arguments.len() + 24);
    words.push(arguments.len() as u64);
    for argument in arguments {
        stack.push(b"\0")?;
        words.push(stack.push(argument.as_bytes())?.0);
    }
    // The ends of the arguments and of the empty environment.
    words.extend([0, 0]);
    words.extend(auxiliary_vector(loaded, random).into_iter().flatten());
    stack.push_words(&words)
}

fn auxiliary_vector(loaded: &Loaded, random: VirtAddr) -> [[u64; 2]; 8] {
    [
        [AT_PHDR, loaded.headers.0],
        [AT_PHENT, PROGRAM_HEADER_BYTES],
        [AT_PHNUM, loaded.header_count],
        [AT_PAGESZ, FRAME_SIZE],
        [AT_ENTRY, loaded.entry.0],
        [AT_SECURE, 0],
        [AT_RANDOM, random.0],
        [AT_NULL, 0],
    ]
}

/// Stores downwards from the top of a stack.
struct Pusher<'s> {
    memory: UserMemory<'s>,
    at: VirtAddr,
}

impl Pusher<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<VirtAddr, Errno> {
        self.at = VirtAddr(self.at.0 - bytes.len() as u64);
        self.memory.write(self.at, bytes)?;
        Ok(self.at)
    }

    /// The first word ends up at a multiple of 16, where the stack pointer of a new program is.
    fn push_words(&mut self, words: &[u64]) -> Result<VirtAddr, Errno> {
        let start = VirtAddr(self.at.0 - words.len() as u64 * 8).align_down(16);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(start, &bytes)?;
        Ok(start)
    }
}
