//! System calls, with the numbers, arguments and results of Linux on x86-64.

mod files;
mod memory;
mod process;
mod streams;

use quire::addr::VirtAddr;

use crate::cpu::registers::Registers;
use crate::device::exit::Outcome;
use crate::errno::Errno;
use crate::files::open::OpenFiles;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;

/// The result of a call, as the program gets it in RAX.
pub type Answer = Result<u64, Errno>;

/// A call that is being served.
struct Call<'s> {
    space: &'s Space,
    memory: UserMemory<'s>,
    files: &'s mut OpenFiles,
    arguments: [u64; 6],
}

/// Serves the call in the registers. Returns how the program ended, if it did.
pub fn serve(space: &Space, files: &mut OpenFiles, registers: &mut Registers) -> Option<Outcome> {
    let Registers { rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
    let mut call =
        Call { space, memory: UserMemory::of(space), files, arguments: [rdi, rsi, rdx, r10, r8, r9] };
    let number = registers.rax;
    if let EXIT | EXIT_GROUP = number {
        return Some(Outcome::Exited(rdi as u8));
    }
    registers.rax = match call.answer(number) {
        Ok(value) => value,
        Err(errno) => errno.as_result(),
    };
    None
}

const EXIT: u64 = 60;
const EXIT_GROUP: u64 = 231;

impl Call<'_> {
    /// Chooses the function by number. Unknown calls fail as in an older Linux, which libc expects.
    fn answer(&mut self, number: u64) -> Answer {
        match number {
            0 => self.read(),
            1 => self.write(),
            2 => self.open(),
            3 => self.close(),
            9 => self.mmap(),
            10 => self.mprotect(),
            11 => self.munmap(),
            12 => self.brk(),
            20 => self.writev(),
            25 => self.mremap(),
            28 => self.madvise(),
            39 | 186 => Ok(process::PID),
            63 => self.uname(),
            89 => self.readlink(),
            102 | 104 | 107 | 108 => Ok(process::ROOT_USER),
            157 => self.prctl(),
            158 => self.arch_prctl(),
            218 => Ok(process::PID),
            // `set_robust_list`: no thread can die and leave a lock behind.
            273 => Ok(0),
            257 => self.openat(),
            302 => self.prlimit(),
            318 => self.getrandom(),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn addr(&self, index: usize) -> VirtAddr {
        VirtAddr(self.arguments[index])
    }
}
