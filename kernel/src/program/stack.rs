//! A program's stack, and what it finds there: arguments, environment, auxiliary vector (System V ABI, "Process
//! Initialization").

use alloc::vec::Vec;
use core::arch::x86_64::__cpuid;

use linux_raw_sys::auxvec as aux;
use quire::addr::VirtAddr;
use quire::arch::{PagingMode, Protection};
use quire::limits::FRAME_SIZE;
use quire::vm::{Access, MapRequest, Placement};

use super::image::Loaded;
use super::script;
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;
use crate::observe::ProgramLayout;
use crate::observe::usage::note_arguments;
use crate::task::credentials::{Credentials, EFFECTIVE, REAL};
use crate::task::exec::Strings;
use crate::task::{rseq, sched};

/// What is mapped at first. Faults below let the mapping grow.
const INITIAL_BYTES: u64 = 128 << 10;
/// How far it may grow, as `RLIMIT_STACK` usually is.
pub const LIMIT_BYTES: u64 = 8 << 20;
/// The most that arguments and environment take: a quarter of the limit, as in Linux.
pub const STRINGS_BYTES: usize = (LIMIT_BYTES / 4) as usize;

/// The size of a program header (`Elf64_Phdr`).
const PROGRAM_HEADER_BYTES: u64 = 56;
/// The ticks of `times(2)` in a second.
pub const CLOCK_TICKS: u64 = 100;
/// What a signal's frame needs (`AT_MINSIGSTKSZ`).
const SIGNAL_STACK_BYTES: u64 = 2048;

/// Sixteen bytes from which libc makes the canary of its stacks. Fixed, so that runs repeat.
const RANDOM: [u8; 16] = *b"not random at al";

/// The end of the stack, with page tables of five levels too: programs keep marks in the upper bits of addresses.
const TOP: VirtAddr = PagingMode::FourLevel.user_range().end;

/// Maps the stack, fills it, and returns where everything is.
///
/// # Errors
/// [`Errno::ENOMEM`], and [`Errno::E2BIG`] if the strings do not fit.
pub fn build(
    space: &Space,
    loaded: &Loaded,
    strings: &Strings,
    path: &[u8],
    credentials: &Credentials,
) -> Result<ProgramLayout, Errno> {
    let bytes = script::size(&strings.arguments) + script::size(&strings.environment);
    if bytes > STRINGS_BYTES {
        return Err(Errno::E2BIG);
    }
    map(space, loaded.executable_stack)?;
    bring_in_strings(space, strings, path);
    let mut stack = Pusher { memory: UserMemory::of(space), at: TOP };
    let name = stack.push_string(path)?;
    let random = stack.push(&RANDOM)?;
    let platform = stack.push_string(b"x86_64")?;
    let strings_end = stack.at;
    let environment = stack.push_strings(&strings.environment)?;
    let arguments_end = stack.at;
    let arguments = stack.push_strings(&strings.arguments)?;
    let arguments_start = stack.at;
    let counted = [arguments.len() as u64].into_iter().chain(arguments);
    let mut words = list::collect(counted.chain([0]).chain(environment).chain([0]))?;
    let auxiliary = words.len() as u64 * 8;
    let entries = auxiliary_vector(loaded, credentials, [name, random, platform]);
    list::append(&mut words, entries.into_iter().flatten())?;
    let stack = stack.push_words(&words)?;
    Ok(ProgramLayout {
        code: loaded.program.code.clone(),
        data: loaded.program.data.clone(),
        stack,
        arguments: arguments_start..arguments_end,
        environment: arguments_end..strings_end,
        auxiliary: stack.add(auxiliary)..stack.add(words.len() as u64 * 8),
    })
}

fn map(space: &Space, executable: bool) -> Result<(), Errno> {
    space.set_stack_limit(LIMIT_BYTES);
    let rights = Protection::READ | Protection::WRITE;
    space.mmap(&MapRequest {
        addr: VirtAddr(TOP.0 - INITIAL_BYTES),
        len: INITIAL_BYTES,
        prot: if executable { rights | Protection::EXEC } else { rights },
        placement: Placement::FixedNoReplace,
        grows_down: true,
        ..MapRequest::default()
    })?;
    Ok(())
}

/// Brings in the pages of the strings, as far as there is memory. Linux does not count them as faults of the program
/// either.
fn bring_in_strings(space: &Space, strings: &Strings, path: &[u8]) {
    let all = strings.arguments.iter().chain(&strings.environment).map(Vec::len);
    let bytes = all.chain([path.len()]).map(|len| len as u64 + 1).sum::<u64>();
    let first = VirtAddr(TOP.0 - bytes).align_down(FRAME_SIZE);
    for page in (first.0..TOP.0).step_by(FRAME_SIZE as usize) {
        if space.fault(VirtAddr(page), Access::Write).is_ok() {
            note_arguments(sched::current_ref());
        }
    }
}

fn auxiliary_vector(
    loaded: &Loaded,
    credentials: &Credentials,
    [name, random, platform]: [VirtAddr; 3],
) -> [[u64; 2]; 21] {
    let program = &loaded.program;
    let (users, groups) = (credentials.users.map(u64::from), credentials.groups.map(u64::from));
    [
        (aux::AT_PHDR, program.headers.0),
        (aux::AT_PHENT, PROGRAM_HEADER_BYTES),
        (aux::AT_PHNUM, program.header_count),
        (aux::AT_PAGESZ, FRAME_SIZE),
        (aux::AT_BASE, loaded.interpreter_base),
        (aux::AT_FLAGS, 0),
        (aux::AT_ENTRY, program.entry.0),
        (aux::AT_UID, users[REAL]),
        (aux::AT_EUID, users[EFFECTIVE]),
        (aux::AT_GID, groups[REAL]),
        (aux::AT_EGID, groups[EFFECTIVE]),
        (aux::AT_SECURE, credentials.is_secure().into()),
        (aux::AT_PLATFORM, platform.0),
        (aux::AT_HWCAP, u64::from(__cpuid(1).edx)),
        (aux::AT_CLKTCK, CLOCK_TICKS),
        (aux::AT_MINSIGSTKSZ, SIGNAL_STACK_BYTES),
        (aux::AT_RSEQ_FEATURE_SIZE, rseq::MEANT_BYTES.into()),
        (aux::AT_RSEQ_ALIGN, rseq::ALIGNMENT.into()),
        (aux::AT_RANDOM, random.0),
        (aux::AT_EXECFN, name.0),
        (aux::AT_NULL, 0),
    ]
    .map(|(key, value)| [u64::from(key), value])
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

    fn push_string(&mut self, string: &[u8]) -> Result<VirtAddr, Errno> {
        self.push(b"\0")?;
        self.push(string)
    }

    /// The first string stands lowest, as in Linux: programs that change their title write over all of them.
    fn push_strings(&mut self, strings: &[Vec<u8>]) -> Result<Vec<u64>, Errno> {
        let mut places = Vec::new();
        list::reserve(&mut places, strings.len())?;
        for string in strings.iter().rev() {
            places.push(self.push_string(string)?.0);
        }
        places.reverse();
        Ok(places)
    }

    /// The first word ends up at a multiple of 16, where the stack pointer of a new program is.
    fn push_words(&mut self, words: &[u64]) -> Result<VirtAddr, Errno> {
        let start = VirtAddr(self.at.0 - words.len() as u64 * 8).align_down(16);
        let bytes = list::collect(words.iter().map(|word| word.to_le_bytes()))?;
        self.memory.write(start, bytes.as_flattened())?;
        Ok(start)
    }
}
