//! What a task was, as a core dump shows it.

use alloc::vec::Vec;

use crate::cpu::registers::Registers;
use crate::errno::Errno;
use crate::memory::list;
use crate::observe::usage::task_time;
use crate::task::signal::SignalSet;
use crate::task::thread::Task;

/// The words of `struct user_regs_struct`.
pub const REGISTER_WORDS: usize = 27;
/// `orig_rax` of a task that no call was interrupted of.
const NO_CALL: u64 = u64::MAX;

/// See the module.
pub struct Thread {
    /// Its number.
    pub id: u32,
    /// What was sent to it alone, and what it blocks.
    pub signals: [SignalSet; 2],
    /// How long it has run, in nanoseconds.
    pub ran: u64,
    registers: Registers,
    /// The number of the call in which a signal interrupted it.
    call: u64,
    fs_base: u64,
    /// The image of its vector registers.
    pub vectors: Vec<u8>,
}

impl Thread {
    /// The running task.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn of(task: &Task) -> Result<Self, Errno> {
        let signals = {
            let own = task.signals.0.lock();
            [own.pending.set(), own.mask]
        };
        // SAFETY: X3: the task is the running one, and its program does not run.
        let user = unsafe { task.user() };
        user.fpu.save();
        Ok(Self {
            id: task.id(),
            signals,
            ran: task_time(task),
            registers: user.registers.clone(),
            call: task.take_interrupted_call().unwrap_or(NO_CALL),
            fs_base: user.fs_base.0,
            vectors: list::collect(user.fpu.0.iter().copied())?,
        })
    }

    /// Its general registers, in the order of `struct user_regs_struct`.
    pub fn registers(&self) -> [u64; REGISTER_WORDS] {
        let from = &self.registers;
        [
            from.r15,
            from.r14,
            from.r13,
            from.r12,
            from.rbp,
            from.rbx,
            from.r11,
            from.r10,
            from.r9,
            from.r8,
            from.rax,
            from.rcx,
            from.rdx,
            from.rsi,
            from.rdi,
            self.call,
            from.rip,
            from.cs,
            from.rflags,
            from.rsp,
            from.ss,
            self.fs_base,
            // GS and the other segments mean nothing to programs.
            0,
            0,
            0,
            0,
            0,
        ]
    }
}
