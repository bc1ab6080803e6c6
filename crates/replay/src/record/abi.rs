//! The numbers and arguments of memory calls in each ABI of an x86-64 kernel: 64-bit, i386, x32, and `int
//! 0x80` from 64-bit code, which is an i386 call as well.
//!
//! Numbers are those of Linux's `syscall_64.tbl` and `syscall_32.tbl`.

use crate::trace::Call;

/// The bit of a 64-bit number that says x32.
pub(super) const X32: u64 = 0x4000_0000;

/// i386 numbers and their calls; `mmap`, `mmap2` and `ipc` pass their arguments otherwise.
const I386: [(u64, Call); 36] = [
    (2, Call::Fork),
    (11, Call::Execve),
    (45, Call::Brk),
    (OLD_MMAP, Call::Mmap),
    (91, Call::Munmap),
    (IPC, Call::Shmat),
    (93, Call::Ftruncate),
    (120, Call::Clone),
    (125, Call::Mprotect),
    (144, Call::Msync),
    (150, Call::Mlock),
    (151, Call::Munlock),
    (152, Call::Mlockall),
    (153, Call::Munlockall),
    (163, Call::Mremap),
    (190, Call::Vfork),
    (MMAP2, Call::Mmap),
    (FTRUNCATE64, Call::Ftruncate),
    (218, Call::Mincore),
    (219, Call::Madvise),
    (257, Call::RemapFilePages),
    (274, Call::Mbind),
    (276, Call::SetMempolicy),
    (294, Call::MigratePages),
    (317, Call::MovePages),
    (FALLOCATE, Call::Fallocate),
    (358, Call::Execveat),
    (374, Call::Userfaultfd),
    (376, Call::Mlock2),
    (380, Call::PkeyMprotect),
    (397, Call::Shmat),
    (398, Call::Shmdt),
    (435, Call::Clone3),
    (440, Call::ProcessMadvise),
    (448, Call::ProcessMrelease),
    (462, Call::Mseal),
];

/// `mmap` of i386 before Linux 2.4: its one argument is the address of six words.
pub(super) const OLD_MMAP: u64 = 90;

/// `mmap` with its offset in pages of 4 KiB.
const MMAP2: u64 = 192;

/// `ftruncate` and `fallocate` with 64-bit numbers in two arguments each, the lower half first.
const FTRUNCATE64: u64 = 194;
const FALLOCATE: u64 = 324;

/// All calls of System V IPC.
const IPC: u64 = 117;
const IPC_SHMAT: u64 = 21;
const IPC_SHMDT: u64 = 22;

/// The ABI of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// `syscall` from 64-bit code, x32 included.
    Native,
    /// i386: any instruction of 32-bit code, or `int 0x80` of 64-bit code.
    I386,
}

/// Every number that may be a memory call of 64-bit programs.
pub(super) fn native_numbers() -> impl Iterator<Item = u64> {
    Call::ALL.iter().map(|call| call.x86_64())
}

/// Every number that may be a memory call of i386 programs.
pub(super) fn i386_numbers() -> impl Iterator<Item = u64> {
    I386.iter().map(|(number, _)| *number)
}

/// These numbers with their calls; what `ipc` does depends on its arguments.
pub(super) fn i386_calls() -> impl Iterator<Item = (u64, Call)> {
    I386.into_iter()
}

/// The same bits in every number of x32, where most calls have their 64-bit number beside this bit.
pub(super) const fn without_x32(number: u64) -> u64 {
    number & !X32
}

/// Numbers that only x32 has, without the bit.
pub(super) const X32_OWN: [(u64, Call); 3] =
    [(520, Call::Execve), (533, Call::MovePages), (545, Call::Execveat)];

impl Abi {
    /// The memory call for a number and raw arguments, with the arguments as 64-bit programs pass them;
    /// `None` for another call. `block` reads six 32-bit words at an address of the program.
    pub(super) fn decode(
        self,
        number: u64,
        args: [u64; 6],
        block: impl FnOnce(u64) -> Option<[u32; 6]>,
    ) -> Option<(Call, [u64; 6])> {
        match self {
            Abi::Native => Some((native(number)?, args)),
            Abi::I386 => i386(number, args.map(|argument| argument & 0xffff_ffff), block),
        }
    }
}

fn native(number: u64) -> Option<Call> {
    let own = X32_OWN.iter().find(|(own, _)| number == X32 | own);
    own.map(|(_, call)| *call).or_else(|| Call::from_x86_64(without_x32(number)))
}

fn i386(
    number: u64,
    args: [u64; 6],
    block: impl FnOnce(u64) -> Option<[u32; 6]>,
) -> Option<(Call, [u64; 6])> {
    let [first, second, third, fourth, fifth, sixth] = args;
    match number {
        OLD_MMAP => Some((Call::Mmap, block(first)?.map(u64::from))),
        MMAP2 => Some((Call::Mmap, [first, second, third, fourth, fifth, sixth << 12])),
        FTRUNCATE64 => Some((Call::Ftruncate, [first, second | third << 32, 0, 0, 0, 0])),
        FALLOCATE => {
            Some((Call::Fallocate, [first, second, third | fourth << 32, fifth | sixth << 32, 0, 0]))
        }
        // The upper half is a version of the interface.
        IPC => match first & 0xffff {
            // (call, id, flags, where the address goes, address)
            IPC_SHMAT => Some((Call::Shmat, [second, fifth, third, 0, 0, 0])),
            IPC_SHMDT => Some((Call::Shmdt, [fifth, 0, 0, 0, 0, 0])),
            _ => None,
        },
        _ => {
            let (_, call) = I386.iter().find(|(known, _)| *known == number)?;
            match call {
                // The last two arguments are in the other order.
                Call::Clone => Some((Call::Clone, [first, second, third, fifth, fourth, 0])),
                _ => Some((*call, args)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
