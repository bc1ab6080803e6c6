//! System calls, with the numbers, arguments and results of Linux on x86-64.

mod clone;
mod exec;
mod files;
mod futex;
mod ids;
mod limits;
mod memory;
mod process;
mod signals;
mod streams;
mod time;
mod timers;
mod wait;

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use crate::cpu::registers::Registers;
use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;
use crate::task::Task;
use crate::task::process::Process;

/// The result of a call, as the program gets it in RAX.
pub type Answer = Result<u64, Errno>;

/// A call that is being served.
struct Call<'s> {
    task: &'s Task,
    space: &'s Space,
    memory: UserMemory<'s>,
    arguments: [u64; 6],
}

/// Serves the call in the running task's registers.
pub fn serve(task: &Task) {
    let registers = task.registers();
    // SAFETY: the program does not run, so the running task alone uses its registers.
    let Registers { rax: number, rdi, rsi, rdx, r10, r8, r9, .. } = unsafe { (*registers).clone() };
    let arguments = [rdi, rsi, rdx, r10, r8, r9];
    let answer = match number as u32 {
        // These two change all registers, and the address space that other calls refer to.
        abi::__NR_rt_sigreturn => return signals::sigreturn(task),
        abi::__NR_execve => exec::execve(task, arguments),
        abi::__NR_execveat => exec::execveat(task, arguments),
        _ => {
            let space = task.space();
            Call { task, space, memory: UserMemory::of(space), arguments }.answer(number)
        }
    };
    let result = match answer {
        Ok(_) if number as u32 == abi::__NR_execve || number as u32 == abi::__NR_execveat => return,
        Ok(value) => value,
        Err(errno) => {
            if errno == Errno::EINTR {
                task.set_interrupted_call(number);
            }
            errno.as_result()
        }
    };
    // SAFETY: as above.
    unsafe { (*registers).rax = result };
}

impl Call<'_> {
    /// Chooses the function by number. Unknown calls fail as in an older Linux, which libc expects.
    fn answer(&mut self, number: u64) -> Answer {
        match u32::try_from(number).map_err(|_| Errno::ENOSYS)? {
            // Files.
            abi::__NR_read => self.read(),
            abi::__NR_write => self.write(),
            abi::__NR_open => self.open(),
            abi::__NR_openat => self.openat(),
            abi::__NR_close => self.close(),
            abi::__NR_writev => self.writev(),
            abi::__NR_readlink => self.readlink(),

            // Memory.
            abi::__NR_mmap => self.mmap(),
            abi::__NR_mprotect => self.mprotect(),
            abi::__NR_munmap => self.munmap(),
            abi::__NR_brk => self.brk(),
            abi::__NR_mremap => self.mremap(),
            abi::__NR_madvise => self.madvise(),

            // Processes and threads.
            abi::__NR_clone => self.clone(),
            abi::__NR_clone3 => self.clone3(),
            abi::__NR_fork => self.fork(),
            abi::__NR_vfork => self.vfork(),
            abi::__NR_exit => self.exit(),
            abi::__NR_exit_group => self.exit_group(),
            abi::__NR_wait4 => self.wait4(),
            abi::__NR_waitid => self.waitid(),
            abi::__NR_getpid => self.getpid(),
            abi::__NR_gettid => self.gettid(),
            abi::__NR_getppid => self.getppid(),
            abi::__NR_setpgid => self.setpgid(),
            abi::__NR_getpgid => self.getpgid(),
            abi::__NR_getpgrp => self.getpgrp(),
            abi::__NR_setsid => self.setsid(),
            abi::__NR_getsid => self.getsid(),
            abi::__NR_getuid | abi::__NR_getgid | abi::__NR_geteuid | abi::__NR_getegid => Ok(ids::ROOT_USER),
            abi::__NR_getresuid | abi::__NR_getresgid => self.getresuid(),
            abi::__NR_getgroups => Ok(0),
            abi::__NR_setuid
            | abi::__NR_setgid
            | abi::__NR_setreuid
            | abi::__NR_setregid
            | abi::__NR_setresuid
            | abi::__NR_setresgid
            | abi::__NR_setgroups => self.set_user(),
            abi::__NR_set_tid_address => self.set_tid_address(),
            abi::__NR_set_robust_list => self.set_robust_list(),
            abi::__NR_get_robust_list => self.get_robust_list(),
            abi::__NR_futex => self.futex(),
            abi::__NR_sched_yield => self.sched_yield(),
            abi::__NR_sched_getaffinity => self.sched_getaffinity(),
            abi::__NR_sched_setaffinity => self.sched_setaffinity(),
            abi::__NR_sched_getscheduler | abi::__NR_sched_setscheduler | abi::__NR_sched_setparam => Ok(0),
            abi::__NR_sched_getparam => self.sched_getparam(),
            abi::__NR_getpriority => Ok(20),
            abi::__NR_setpriority => Ok(0),
            abi::__NR_capget => self.capget(),
            abi::__NR_capset => self.capset(),
            abi::__NR_getcpu => self.getcpu(),
            abi::__NR_arch_prctl => self.arch_prctl(),
            abi::__NR_prctl => self.prctl(),
            abi::__NR_prlimit64 => self.prlimit(),
            abi::__NR_getrlimit => self.getrlimit(),
            abi::__NR_setrlimit => self.setrlimit(),
            abi::__NR_getrusage => self.getrusage(),
            abi::__NR_times => self.times(),
            abi::__NR_uname => self.uname(),
            abi::__NR_sysinfo => self.sysinfo(),
            abi::__NR_getrandom => self.getrandom(),

            // Signals.
            abi::__NR_rt_sigaction => self.rt_sigaction(),
            abi::__NR_rt_sigprocmask => self.rt_sigprocmask(),
            abi::__NR_rt_sigpending => self.rt_sigpending(),
            abi::__NR_rt_sigsuspend => self.rt_sigsuspend(),
            abi::__NR_rt_sigtimedwait => self.rt_sigtimedwait(),
            abi::__NR_rt_sigqueueinfo => self.rt_sigqueueinfo(),
            abi::__NR_sigaltstack => self.sigaltstack(),
            abi::__NR_kill => self.kill(),
            abi::__NR_tkill => self.tkill(),
            abi::__NR_tgkill => self.tgkill(),
            abi::__NR_pause => self.pause(),

            // Time.
            abi::__NR_nanosleep => self.nanosleep(),
            abi::__NR_clock_nanosleep => self.clock_nanosleep(),
            abi::__NR_clock_gettime => self.clock_gettime(),
            abi::__NR_clock_getres => self.clock_getres(),
            abi::__NR_gettimeofday => self.gettimeofday(),
            abi::__NR_time => self.time(),
            abi::__NR_alarm => self.alarm(),
            abi::__NR_setitimer => self.setitimer(),
            abi::__NR_getitimer => self.getitimer(),
            abi::__NR_timer_create => self.timer_create(),
            abi::__NR_timer_settime => self.timer_settime(),
            abi::__NR_timer_gettime => self.timer_gettime(),
            abi::__NR_timer_getoverrun => self.timer_getoverrun(),
            abi::__NR_timer_delete => self.timer_delete(),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn addr(&self, index: usize) -> VirtAddr {
        VirtAddr(self.arguments[index])
    }

    fn process(&self) -> &Arc<Process> {
        &self.task.process
    }

    /// Stores words where an argument points, unless it is 0.
    fn store_words(&self, at: u64, words: &[u64]) -> Result<(), Errno> {
        if at == 0 {
            return Ok(());
        }
        for (index, word) in words.iter().enumerate() {
            let at = at.checked_add(index as u64 * 8).ok_or(Errno::EFAULT)?;
            self.memory.write(VirtAddr(at), &word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Reads words from where an argument points.
    fn load_words<const WORDS: usize>(&self, at: u64) -> Result<[u64; WORDS], Errno> {
        let mut bytes = [[0; 8]; WORDS];
        self.memory.read(VirtAddr(at), bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }
}
